"""The decision on every document, as a published table.

- One row per document of the input; the same record met twice has one row.
- Rows are partitioned by the hash of their id, so that one file has all rows of an id, and in the
  order of the input inside a file. The number of files follows from the number of rows: neither
  units nor workers nor the place of the input can change a file.
- A document's index is its row, counted through all files.

Usage: `records, files = decide(job, units)`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tangobench.pipeline.core import arrays
from tangobench.pipeline.core.arrays import NDArray, Section
from tangobench.pipeline.core.build import (
    Arguments,
    Job,
    Output,
    Record,
    SideFile,
    Stage,
    Streamed,
    UnitResult,
)
from tangobench.pipeline.core.hashing import RowsHasher, Sink
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.fineweb import dedup
from tangobench.pipeline.fineweb.documents import (
    PARTITIONS,
    REASONS,
    TRAIN,
    DecidedUnit,
    Documents,
)
from tangobench.pipeline.fineweb.keys import FINE
from tangobench.pipeline.fineweb.spec import dump_name

FILE_ROWS: Final = 1 << 17  # documents per file, until there are
MOST_FILES: Final = 128  # files: more would be a range read per file and unit, for nothing


@dataclass(frozen=True, slots=True)
class DecisionsArgs(Arguments):
    """A unit, and into how many files decisions are partitioned."""

    unit: DecidedUnit
    parts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionsResult(UnitResult):
    """Counts of a unit's documents, and where each partition's rows begin in the object."""

    rows: int
    repeated: int
    train_bytes: int
    outcomes: list[list[Any]]
    """[partition, kept, reason, documents]."""
    dumps: dict[str, int]
    """Training documents by dump."""
    part_rows: list[int]
    bounds: list[int]

    def section(self, address: str, part: int) -> Section:
        """The rows of one partition."""
        return Section.at(address, self.bounds, part)


@dataclass(frozen=True, kw_only=True, slots=True)
class FileResult(UnitResult):
    """A published table."""

    rows: int
    rows_sha256: str


def write_decisions(args: DecisionsArgs, store: Store) -> Output:
    """The decisions of one unit by partition, and its counts."""
    documents = args.unit.load(store)
    columns = _columns(documents)
    order, cuts = _by_part(documents, args.parts)
    train = (documents.partition == TRAIN) & documents.kept
    data, bounds = arrays.pack_sections(_take(columns, order[a:b]) for a, b in pairwise(cuts))
    result = DecisionsResult(
        rows=len(documents),
        repeated=args.unit.rows - len(documents),
        train_bytes=int(documents.size[train].sum()),
        outcomes=_outcomes(documents),
        dumps=_dumps(documents),
        part_rows=np.diff(cuts).tolist(),
        bounds=bounds,
    )
    return Output(data, result.plain())


@dataclass(frozen=True, slots=True)
class FileArgs(Arguments):
    """The rows of one file, in the order of the units."""

    sections: tuple[Section, ...]


def write_file(args: FileArgs, store: Store) -> Streamed:
    """The published table of one file, written a row group at a time."""

    def tables() -> Iterator[pa.Table]:
        waiting: list[dict[str, NDArray]] = []
        rows = 0
        for section in args.sections:
            waiting.append(arrays.read(section, store))
            rows += len(waiting[-1]["dump"])
            if rows >= FILE_ROWS:
                yield _table(waiting)
                waiting, rows = [], 0
        if waiting:
            yield _table(waiting)

    return publish_tables(tables(), sum(section.length for section in args.sections))


def files_for(rows: int) -> int:
    """How many files the decisions on so many rows of input have."""
    return min(MOST_FILES, max(1, -(-rows // FILE_ROWS)))


def id_parts(ids: Iterable[str], parts: int) -> NDArray:
    """The file of each document's decision."""
    hashes = np.array([xxhash.xxh3_64_intdigest(ident.encode()) for ident in ids], np.uint64)
    return dedup.part_of(hashes, parts).astype(np.int64)


def doc_indices(documents: Documents, first: Sequence[int]) -> NDArray:
    """The index of each document of a unit; `first` is that of its first in each partition."""
    order, cuts = _by_part(documents, len(first))
    index = np.empty(len(documents), np.int64)
    index[order] = np.arange(len(documents)) + np.repeat(first - cuts[:-1], np.diff(cuts))
    return index


def _by_part(documents: Documents, parts: int) -> tuple[NDArray, NDArray]:
    """Documents by file, and where each file's begin."""
    if parts == 1:
        return np.arange(len(documents)), np.array([0, len(documents)])
    part = id_parts(documents.ident.to_pylist(), parts)
    order = np.argsort(part, kind="stable")
    return order, np.searchsorted(part[order], np.arange(parts + 1))


def first_indices(results: Sequence[DecisionsResult]) -> NDArray:
    """Per unit, the index of its first document in each partition."""
    rows = np.array([result.part_rows for result in results], np.int64)
    starts = np.append(0, np.cumsum(rows.sum(axis=0))[:-1])
    return np.asarray(np.cumsum(rows, axis=0) - rows + starts)


def _columns(documents: Documents) -> dict[str, NDArray]:
    """What is published, as arrays; a document that cannot be used is its own component."""
    component = documents.component.copy()
    for at in np.flatnonzero(documents.status != FINE).tolist():
        key = xxhash.xxh3_128_intdigest(documents.ident[at].as_py().encode())
        component[at] = key >> 64, key & 0xFFFFFFFFFFFFFFFF
    return {
        "dump": documents.dump,
        "partition": documents.partition,
        "kept": documents.kept,
        "reason": documents.reason,
        "component_high": component[:, 0],
        "component_low": component[:, 1],
        **arrays.pack_texts("id", documents.ident),
        **arrays.pack_texts("representative", documents.representative),
    }


def _take(columns: dict[str, NDArray], rows: NDArray) -> dict[str, NDArray]:
    taken: dict[str, NDArray] = {}
    for name, column in columns.items():
        if f"{name}_offsets" in columns:
            taken |= arrays.pack_texts(name, arrays.arrow_texts(columns, name).take(pa.array(rows)))
        elif not name.endswith("_offsets"):
            taken[name] = column[rows]
    return taken


def _table(found: Sequence[dict[str, NDArray]]) -> pa.Table:
    def whole(name: str) -> NDArray:
        return np.concatenate([part[name] for part in found])

    def texts(name: str) -> pa.Array:
        return pa.concat_arrays([arrays.arrow_texts(part, name) for part in found]).cast(
            pa.string()
        )

    dumps, place = np.unique(whole("dump"), return_inverse=True)
    return pa.table(
        {
            "id": texts("id"),
            "dump": _named(place, [dump_name(order) for order in dumps.tolist()]),
            "component": _hex(np.stack([whole("component_high"), whole("component_low")], axis=1)),
            "partition": _named(whole("partition"), PARTITIONS),
            "kept": pa.array(whole("kept")),
            "reason": _named(whole("reason"), REASONS),
            "representative": texts("representative"),
        }
    )


def publish_tables(tables: Iterable[pa.Table], size: int) -> Streamed:
    """At least one table as one Parquet file beside the shards, of about `size` bytes."""

    def write(sink: Sink) -> dict[str, Any]:
        hasher, rows = RowsHasher(), 0
        with contextlib.ExitStack() as stack:
            writer = None
            for table in tables:
                if writer is None:
                    opened = pq.ParquetWriter(sink, table.schema, compression="zstd")
                    writer = stack.enter_context(opened)
                writer.write_table(table)
                hasher.update(table)
                rows += table.num_rows
        return FileResult(rows=rows, rows_sha256=hasher.hexdigest()).plain()

    return Streamed(write, size)


def _named(places: NDArray, names: Sequence[str]) -> pa.Array:
    codes = pa.array(places.astype(np.int32))
    return pa.DictionaryArray.from_arrays(codes, pa.array(names, pa.string())).cast(pa.string())


def _hex(keys: NDArray) -> pa.Array:
    text = keys.astype(">u8").tobytes().hex().encode()
    offsets = np.arange(len(keys) + 1, dtype=np.int32) * 32
    return pa.StringArray.from_buffers(len(keys), pa.py_buffer(offsets), pa.py_buffer(text))


def _outcomes(documents: Documents) -> list[list[Any]]:
    kinds = np.stack([documents.partition, documents.kept, documents.reason], axis=1)
    found, counts = np.unique(kinds.astype(np.int64), axis=0, return_counts=True)
    return [
        [PARTITIONS[partition], bool(kept), REASONS[reason], count]
        for (partition, kept, reason), count in zip(found.tolist(), counts.tolist(), strict=True)
    ]


def _dumps(documents: Documents) -> dict[str, int]:
    train = documents.dump[documents.partition == TRAIN]
    dumps, counts = np.unique(train, return_counts=True)
    return {dump_name(d): n for d, n in zip(dumps.tolist(), counts.tolist(), strict=True)}


DECISIONS: Final = Stage("fineweb-decisions", 4, write_decisions)
FILES: Final = Stage("fineweb-decision-files", 1, write_file)


def decide(job: Job, units: Sequence[DecidedUnit]) -> tuple[list[DecisionsResult], list[SideFile]]:
    """The results of all units, and the published files."""
    parts = files_for(units[-1].base + units[-1].rows)
    todo = [DECISIONS.unit(u.reading.label, DecisionsArgs(u, parts), u.rows) for u in units]
    records = job.run(DECISIONS, todo)
    results = [DecisionsResult.of(record) for record in records]
    files = []
    for part in range(parts):
        found = zip(records, results, strict=True)
        sections = tuple(result.section(record.address, part) for record, result in found)
        files.append(FILES.unit(f"decisions {part + 1}/{parts}", FileArgs(sections)))
    return results, side_files("decisions", "hash", job.run(FILES, files))


def side_files(kind: str, stem: str, records: Sequence[Record]) -> list[SideFile]:
    """Published tables, as files in a folder named after their kind."""
    return [
        SideFile(
            f"{kind}/{stem}-{n:05d}.parquet",
            kind,
            record.address,
            record.result["rows"],
            record.result["rows_sha256"],
        )
        for n, record in enumerate(records)
    ]


def outcome_counts(
    results: Sequence[DecisionsResult],
) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """Documents and kept documents per partition, and drops per reason."""
    counts = {name: {"documents": 0, "kept": 0} for name in PARTITIONS}
    drops: dict[str, int] = {}
    for result in results:
        for partition, kept, reason, number in result.outcomes:
            counts[partition]["documents"] += number
            if kept:
                counts[partition]["kept"] += number
            else:
                drops[reason] = drops.get(reason, 0) + number
    return counts, dict(sorted(drops.items()))


def train_dumps(results: Sequence[DecisionsResult]) -> dict[str, int]:
    """Training documents by dump."""
    totals: dict[str, int] = {}
    for result in results:
        for dump, number in result.dumps.items():
            totals[dump] = totals.get(dump, 0) + number
    return dict(sorted(totals.items()))
