"""The documents of a unit with the decisions on them: packed once, read by every later stage.

- The decisions are columns beside those of the first pass, row by row; nothing is joined again.
- The same record met twice is one document: only the first is read.
- Near-duplicates that the spec drops are applied when documents are read.

Usage: `documents = unit.load(store)`; `train = documents.where(documents.partition == TRAIN)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tangobench.pipeline.core import arrays
from tangobench.pipeline.core.arrays import NDArray, Section
from tangobench.pipeline.core.build import Arguments
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.fineweb import dedup
from tangobench.pipeline.fineweb.keys import FINE, IGNORED, STATUS_NAMES
from tangobench.pipeline.fineweb.reading import Reading

PARTITIONS: Final = ("train", "validation", "ignored")
TRAIN, VALIDATION, OUTSIDE = range(len(PARTITIONS))
REASONS: Final = (*dedup.REASONS, "near-duplicate", *STATUS_NAMES)
_NEAR: Final = len(dedup.REASONS)
_STATUS: Final = _NEAR + 1
_CHOSEN: Final = ("kept", "reason", "repeated", "component_high", "component_low")


@dataclass(frozen=True, slots=True)
class Documents:
    """Columns of a unit's documents; `row` is a document's place in the unit.

    `partition` and `reason` are places in `PARTITIONS` and `REASONS`; keys have two columns.
    """

    row: NDArray
    ident: pa.Array
    dump: NDArray
    status: NDArray
    url: NDArray
    content: NDArray
    size: NDArray
    partition: NDArray
    kept: NDArray
    reason: NDArray
    component: NDArray
    representative: pa.Array

    def __len__(self) -> int:
        return len(self.row)

    def where(self, mask: NDArray) -> Documents:
        """Some of them."""
        if mask.all():
            return self
        chosen = pa.array(mask)
        columns = (getattr(self, field.name) for field in dataclasses.fields(self))
        return Documents(
            *(c[mask] if isinstance(c, np.ndarray) else c.filter(chosen) for c in columns)
        )


@dataclass(frozen=True, slots=True)
class DecidedUnit(Arguments):
    """Where a unit's documents, the decisions on them and its texts are.

    `base` is the number of its first document; `near` lists the numbers of those that a near
    duplicate in training drops.
    """

    reading: Reading
    documents: Section
    decided: str
    base: int
    rows: int
    near: Section | None = None

    def key(self) -> Any:
        """All but where the texts are."""
        return [self.documents, self.decided, self.base, self.near]

    def without(self, near: Section) -> DecidedUnit:
        """The unit with these documents dropped."""
        return dataclasses.replace(self, near=near)

    def load(self, store: Store) -> Documents:
        """The documents, one per record."""
        first = arrays.read(self.documents, store)
        decided = arrays.unpack(store.read(self.decided))
        ident = arrays.arrow_texts(first, "id")
        kept, reason = decided["kept"], decided["reason"]
        if self.near is not None:
            at = arrays.read(self.near, store)["document"] - self.base
            kept, reason = kept.copy(), reason.copy()
            kept[at], reason[at] = False, _NEAR
        documents = Documents(
            row=np.arange(self.rows),
            ident=ident,
            dump=first["dump"],
            status=first["status"],
            url=_pair(first, "url"),
            content=_pair(first, "content"),
            size=first["size"],
            partition=decided["partition"],
            kept=kept,
            reason=reason,
            component=_pair(decided, "component"),
            representative=_representatives(ident, decided),
        )
        return documents.where(~decided["repeated"])


def _pair(found: dict[str, NDArray], name: str) -> NDArray:
    return np.stack([found[f"{name}_high"], found[f"{name}_low"]], axis=1)


def _representatives(ident: pa.Array, decided: dict[str, NDArray]) -> pa.Array:
    """A document is its own representative unless its component decided otherwise."""
    if len(decided["linked"]) == 0:
        return ident
    mask = np.zeros(len(ident), np.bool_)
    mask[decided["linked"]] = True
    return pc.replace_with_mask(ident, mask, arrays.arrow_texts(decided, "representative"))


def pack_decided(
    documents: dict[str, NDArray], linked: Sequence[dict[str, NDArray]], base: int, last_train: int
) -> bytes:
    """The decisions on all documents of a unit; `linked` has those on some of them."""
    status = documents["status"]
    late = documents["dump"] > last_train
    columns: dict[str, NDArray] = {
        "kept": status == FINE,
        "reason": np.full(len(status), dedup.UNIQUE, np.uint8),
        "repeated": np.zeros(len(status), np.bool_),
        "component_high": documents["content_high"].copy(),
        "component_low": documents["content_low"].copy(),
    }
    number = np.concatenate([np.empty(0, np.int64), *(part["document"] for part in linked)])
    order = np.argsort(number, kind="stable")
    at = number[order] - base
    if len(at):
        for name in _CHOSEN:
            columns[name][at] = np.concatenate([part[name] for part in linked])[order]
        late[at] = np.concatenate([part["validation"] for part in linked])[order]
    columns["reason"] = np.where(status == FINE, columns["reason"], _STATUS + status).astype(
        np.uint8
    )
    partition = np.where(status == IGNORED, OUTSIDE, np.where(late, VALIDATION, TRAIN))
    names = [arrays.arrow_texts(part, "representative") for part in linked]
    named = pa.concat_arrays([pa.array([], pa.large_string()), *names]).take(pa.array(order))
    columns |= {"partition": partition.astype(np.uint8), "linked": at}
    return arrays.pack({**columns, **arrays.pack_texts("representative", named)})
