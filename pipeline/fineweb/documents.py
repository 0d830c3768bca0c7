"""The documents of a unit with the decisions on them: packed once, read by every later stage.

- The decisions are columns beside those of the first pass, row by row; nothing is joined again.
- The same record met twice is one document: only the first is read.
- Near-duplicates that the spec drops are applied when documents are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tangobench.pipeline.core import arrays
from tangobench.pipeline.core.arrays import NDArray, Section, Sections
from tangobench.pipeline.core.build import A, Arguments, Job, Record, Stage
from tangobench.pipeline.core.store import R, Store
from tangobench.pipeline.fineweb import dedup
from tangobench.pipeline.fineweb.keys import STATUS_NAMES, KeysResult
from tangobench.pipeline.fineweb.parquet import Reading

PARTITIONS: Final = ("train", "validation", "ignored")
TRAIN, VALIDATION, OUTSIDE = range(len(PARTITIONS))
REASONS: Final = (*dedup.REASONS, "near-duplicate", *STATUS_NAMES)
NEAR: Final = len(dedup.REASONS)


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
    place: NDArray
    """Hash, first token and number of tokens, where the first pass has encoded."""

    def __len__(self) -> int:
        return len(self.row)

    def where(self, mask: NDArray) -> Documents:
        if mask.all():
            return self
        columns = (getattr(self, field.name) for field in dataclasses.fields(self))
        return Documents(
            *(c[mask] if isinstance(c, np.ndarray) else c.filter(pa.array(mask)) for c in columns)
        )


@dataclass(frozen=True, slots=True)
class DocumentUnit(Arguments):
    """Where a unit's texts, its documents and the decisions on them are.

    `base` is the number of its first document; `near` lists the numbers of those that a near
    duplicate in training drops.
    """

    reading: Reading
    documents: Section
    base: int
    rows: int
    decided: str = ""
    near: Section | None = None
    tokens: Section | None = None
    """Those of the first pass, in hash order and without a container."""

    def key(self) -> Any:
        """All but where the texts are."""
        return [self.documents, self.decided, self.base, self.near]

    def load(self, store: Store) -> Documents:
        """The documents, one per record."""
        first = arrays.read(self.documents, store)
        decided = arrays.unpack(store.read(self.decided))
        ident = arrays.arrow_texts(first, "id")
        kept, reason = decided["kept"], decided["reason"]
        if self.near is not None:
            at = arrays.read(self.near, store)["document"] - self.base
            kept, reason = kept.copy(), reason.copy()
            kept[at], reason[at] = False, NEAR
        mask = np.zeros(len(ident), np.bool_)  # the others represent themselves
        mask[decided["linked"]] = True
        representative = arrays.arrow_texts(decided, "representative")
        place = np.zeros((self.rows, 3), np.uint64)
        if self.tokens:
            place = np.stack([first[name] for name in ("order", "start", "length")], axis=1)
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
            representative=pc.replace_with_mask(ident, mask, representative),
            place=place,
        )
        return documents.where(~decided["repeated"])

    def texts_of(self, documents: Documents) -> Iterator[tuple[slice, pa.Array]]:
        """The texts of some documents, a batch at a time, and which of the documents they are."""
        rows, first = documents.row, 0
        for batch in self.reading.texts() if len(rows) else ():
            low, high = np.searchsorted(rows, [first, first + len(batch)]).tolist()
            whole = high - low == len(batch)  # and need not be copied
            yield (
                slice(low, high),
                batch if whole else batch.take(pa.array(rows[low:high] - first)),
            )
            first += len(batch)


def _pair(found: dict[str, NDArray], name: str) -> NDArray:
    return np.stack([found[f"{name}_high"], found[f"{name}_low"]], axis=1)


def number_units(
    readings: Iterable[Reading], records: Iterable[Record[KeysResult]]
) -> list[DocumentUnit]:
    """Units of finished keys, their documents numbered through in the order of the input."""
    base, units = 0, []
    for reading, record in zip(readings, records, strict=True):
        rows, last = record.result["rows"], len(record.result["bounds"]) - 2
        tokens = Section.of(record, last) if "checked" in record.result else None
        units.append(DocumentUnit(reading, Section.of(record, 0), base, rows, tokens=tokens))
        base += rows
    return units


def bounds_of(units: Sequence[DocumentUnit]) -> tuple[int, ...]:
    """The number of each unit's first document, and of all documents."""
    return (*(unit.base for unit in units), units[-1].base + units[-1].rows)


def sections(
    records: Iterable[Record[Sections]], number: int, count: int = 1
) -> tuple[Section, ...]:
    return tuple(Section.of(record, number, count) for record in records)


def run_units(
    job: Job, stage: Stage[A, R], units: Iterable[DocumentUnit], args: Iterable[A]
) -> list[Record[R]]:
    pairs = zip(units, args, strict=True)
    return job.run(stage, [stage.unit(u.reading.label, a, u.rows) for u, a in pairs])


def run_parts(job: Job, stage: Stage[A, R], what: str, args: Iterable[A]) -> list[Record[R]]:
    todo = list(args)
    labels = (f"{what} {number + 1}/{len(todo)}" for number in range(len(todo)))
    return job.run(stage, list(map(stage.unit, labels, todo)))
