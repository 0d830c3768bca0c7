"""The audit that nothing leaks: no URL or content key occurs on both sides of the split.

- It does not use the graph: it takes the keys of both partitions, of dropped members too, so it
  proves more than the shards need.
- Linear: the keys of validation are sorted once, and every unit looks its training keys up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tangobench.errors import CorruptionError
from tangobench.pipeline.core import arrays
from tangobench.pipeline.core.arrays import NDArray, Section
from tangobench.pipeline.core.build import Arguments, Job, Output, Stage
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.fineweb.documents import (
    TRAIN,
    VALIDATION,
    Documents,
    DocumentUnit,
    run_units,
)
from tangobench.pipeline.fineweb.keys import FINE

_NAMED: Final = 5


def _keys(documents: Documents, partition: int) -> tuple[NDArray, NDArray]:
    """Every URL and content key of a partition's documents, and the place of each document."""
    mine = np.flatnonzero((documents.partition == partition) & (documents.status == FINE))
    keys = np.concatenate([documents.url[mine], documents.content[mine]])
    real = keys.any(axis=1)
    return keys[real], np.tile(mine, 2)[real]


def collect_keys(unit: DocumentUnit, store: Store) -> Output:
    """The keys of a unit that training must not have."""
    keys, _ = _keys(unit.load(store), VALIDATION)
    return Output(arrays.pack({"high": keys[:, 0], "low": keys[:, 1]}), {"keys": len(keys)})


def sort_keys(keys: tuple[str, ...], store: Store) -> Output:
    """All validation keys, sorted by their first half; the second halves apart, rarely read."""
    found = [arrays.unpack(store.read(address)) for address in keys]
    high = np.concatenate([np.empty(0, np.uint64), *(part["high"] for part in found)])
    low = np.concatenate([np.empty(0, np.uint64), *(part["low"] for part in found)])
    order = np.argsort(high)
    data, bounds = arrays.pack_sections([{"high": high[order]}, {"low": low[order]}])
    return Output(data, {"bounds": bounds})


@dataclass(frozen=True, slots=True)
class LookupArgs(Arguments):
    """A unit, and the sorted keys of validation."""

    unit: DocumentUnit
    high: Section
    low: Section


def look_up(args: LookupArgs, store: Store) -> Output:
    """Keys of a unit's training documents that some validation document has too."""
    documents = args.unit.load(store)
    keys, owner = _keys(documents, TRAIN)
    order = np.argsort(keys[:, 0])
    shared = order[_is_shared(keys[order], args, store)]
    names = documents.ident.take(np.unique(owner[shared])[:_NAMED]).to_pylist()
    distinct = len(np.unique(keys[shared], axis=0))
    return Output(b"", {"keys": len(keys), "shared": distinct, "documents": names})


def _is_shared(keys: NDArray, args: LookupArgs, store: Store) -> NDArray:
    """Which keys (two columns, sorted by the first) validation has too."""
    high = arrays.read(args.high, store)["high"]
    first = np.searchsorted(high, keys[:, 0], side="left")
    stop = np.searchsorted(high, keys[:, 0], side="right")
    found = np.zeros(len(keys), np.bool_)
    alike = np.flatnonzero(stop > first).tolist()  # equal first halves: none, unless it leaks
    low = arrays.read(args.low, store)["low"] if alike else high
    for at in alike:
        found[at] = (low[first[at] : stop[at]] == keys[at, 1]).any()
    return found


COLLECT: Final = Stage("fineweb-audit-keys", 2, collect_keys)
SORT: Final = Stage("fineweb-audit-sort", 2, sort_keys)
LOOKUP: Final = Stage("fineweb-audit", 3, look_up)


def audit(job: Job, units: Sequence[DocumentUnit]) -> dict[str, Any]:
    """Prove that no URL or content key occurs in both partitions; the numbers go into the lock."""
    collected = run_units(job, COLLECT, units, units)
    filled = tuple(record.address for record in collected if record.result["keys"])
    (ordered,) = job.run(SORT, [SORT.unit("validation keys", filled)])
    high, low = Section.of(ordered, 0), Section.of(ordered, 1)
    checks = run_units(job, LOOKUP, units, (LookupArgs(unit, high, low) for unit in units))
    shared = sum(check.result["shared"] for check in checks)
    if shared:
        names = [name for check in checks for name in check.result["documents"]][:_NAMED]
        raise CorruptionError(
            f"{shared} URL or content keys occur in training and in validation (near {names})",
            kind="split-leak",
            fix="this is a bug in the dedup: please report it with the input's sha256",
        )
    return {
        "train_keys": sum(check.result["keys"] for check in checks),
        "validation_keys": sum(record.result["keys"] for record in collected),
        "shared_keys": shared,
    }
