"""The audit that nothing leaks: no URL or content key occurs on both sides of the split.

- It does not use the graph: it takes the keys of both partitions, of dropped members too, so it
  proves more than the shards need.
- Linear: the keys of validation are sorted once, and every unit looks its training keys up.

Usage: `audit(job, decided)["shared_keys"] == 0`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tangobench.errors import CorruptionError
from tangobench.pipeline.core import arrays
from tangobench.pipeline.core.arrays import NDArray, Section
from tangobench.pipeline.core.build import Arguments, Job, Output, Stage, UnitResult
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.fineweb.documents import TRAIN, VALIDATION, DecidedUnit, Documents
from tangobench.pipeline.fineweb.keys import FINE

_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class CollectArgs(Arguments):
    """A unit."""

    unit: DecidedUnit


@dataclass(frozen=True, slots=True)
class CollectResult(UnitResult):
    """How many keys a unit has."""

    keys: int


def _keys(documents: Documents, partition: int) -> tuple[NDArray, NDArray]:
    """Every URL and content key of a partition's documents, and the place of each document."""
    mine = np.flatnonzero((documents.partition == partition) & (documents.status == FINE))
    keys = np.concatenate([documents.url[mine], documents.content[mine]])
    real = keys.any(axis=1)
    return keys[real], np.tile(mine, 2)[real]


def collect_keys(args: CollectArgs, store: Store) -> Output:
    """The keys of a unit that training must not have."""
    keys, _ = _keys(args.unit.load(store), VALIDATION)
    packed = {"high": keys[:, 0], "low": keys[:, 1]}
    return Output(arrays.pack(packed), CollectResult(len(keys)).plain())


@dataclass(frozen=True, slots=True)
class SortArgs(Arguments):
    """Objects with the validation keys of units."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SortResult(UnitResult):
    """Where the two halves of the keys are."""

    bounds: list[int]


def sort_keys(args: SortArgs, store: Store) -> Output:
    """All validation keys, sorted by their first half; the second halves apart, rarely read."""
    found = [arrays.unpack(store.read(address)) for address in args.keys]
    high = np.concatenate([np.empty(0, np.uint64), *(part["high"] for part in found)])
    low = np.concatenate([np.empty(0, np.uint64), *(part["low"] for part in found)])
    order = np.argsort(high)
    data, bounds = arrays.pack_sections([{"high": high[order]}, {"low": low[order]}])
    return Output(data, SortResult(bounds).plain())


@dataclass(frozen=True, slots=True)
class LookupArgs(Arguments):
    """A unit, and the sorted keys of validation."""

    unit: DecidedUnit
    high: Section
    low: Section


@dataclass(frozen=True, kw_only=True, slots=True)
class LookupResult(UnitResult):
    """Training keys of a unit, how many of them validation has too, and some of their documents."""

    keys: int
    shared: int
    documents: list[str]


def look_up(args: LookupArgs, store: Store) -> Output:
    """Keys of a unit's training documents that some validation document has too."""
    documents = args.unit.load(store)
    keys, owner = _keys(documents, TRAIN)
    order = np.argsort(keys[:, 0])
    shared = order[_is_shared(keys[order], args, store)]
    names = documents.ident.take(np.unique(owner[shared])[:_NAMED]).to_pylist()
    distinct = len(np.unique(keys[shared], axis=0))
    result = LookupResult(keys=len(keys), shared=distinct, documents=names)
    return Output(b"", result.plain())


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


def audit(job: Job, units: Sequence[DecidedUnit]) -> dict[str, Any]:
    """Prove that no URL or content key occurs in both partitions; the numbers go into the lock."""
    collected = job.run(
        COLLECT, [COLLECT.unit(u.reading.label, CollectArgs(u), u.rows) for u in units]
    )
    counts = [CollectResult.of(record).keys for record in collected]
    filled = tuple(r.address for r, count in zip(collected, counts, strict=True) if count)
    (ordered,) = job.run(SORT, [SORT.unit("validation keys", SortArgs(filled))])
    bounds = SortResult.of(ordered).bounds
    high, low = (Section.at(ordered.address, bounds, half) for half in range(2))
    todo = [LOOKUP.unit(u.reading.label, LookupArgs(u, high, low), u.rows) for u in units]
    checks = [LookupResult.of(record) for record in job.run(LOOKUP, todo)]
    shared = sum(check.shared for check in checks)
    if shared:
        names = [name for check in checks for name in check.documents][:_NAMED]
        raise CorruptionError(
            f"{shared} URL or content keys occur in training and in validation (near {names})",
            kind="split-leak",
            fix="this is a bug in the dedup: please report it with the input's sha256",
        )
    return {
        "train_keys": sum(check.keys for check in checks),
        "validation_keys": sum(counts),
        "shared_keys": shared,
    }
