"""The decision on every document, as a published table.

- Rows are partitioned by the hash of their id and in the order of the input inside a file. The
  number of files follows from the number of rows: nothing but the input can change a file.
- A document's index is its row, counted through all files.
- The audit takes every URL and content key of both partitions, of dropped members too, and does
  not use the graph. Linear: validation's are sorted once, and every unit looks its own up.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tangobench.errors import CorruptionError
from tangobench.pipeline.core import arrays, build
from tangobench.pipeline.core.arrays import NDArray, Section, Sections
from tangobench.pipeline.core.build import Arguments, Job, Output, Record, SideFile, Stage, Streamed
from tangobench.pipeline.core.hashing import RowsHasher, Sink
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.fineweb import dedup
from tangobench.pipeline.fineweb.documents import (
    PARTITIONS,
    REASONS,
    TRAIN,
    VALIDATION,
    Documents,
    DocumentUnit,
    bounds_of,
    run_parts,
    run_units,
    sections,
)
from tangobench.pipeline.fineweb.keys import FINE
from tangobench.pipeline.fineweb.spec import dump_name

FILE_ROWS: Final = 1 << 17  # documents per file, until there are
_NAMED: Final = 5
MOST_FILES: Final = 128  # files: more would be a range read per file and unit, for nothing


@dataclass(frozen=True, slots=True)
class DecisionsArgs(Arguments):
    """A unit, and into how many files decisions are partitioned."""

    unit: DocumentUnit
    parts: int


class DecisionsResult(Sections):
    """Counts; `outcomes` are (partition, kept, reason, documents), `dumps` of training.

    A section per file, then one with the `keys` of validation, for the audit.
    """

    rows: int
    repeated: int
    keys: int
    train_bytes: int
    outcomes: list[tuple[str, bool, str, int]]
    dumps: dict[str, int]
    part_rows: list[int]


def write_decisions(args: DecisionsArgs, store: Store) -> Output[DecisionsResult]:
    documents = args.unit.load(store)
    order, cuts = _by_part(documents, args.parts)
    columns = {name: column.take(order) for name, column in _columns(documents).items()}
    keys, _ = _keys(documents, VALIDATION)
    parts = ({name: c[a:b] for name, c in columns.items()} for a, b in pairwise(cuts))
    data, bounds = arrays.pack_sections([*parts, {"high": keys[:, 0], "low": keys[:, 1]}])
    train = documents.partition == TRAIN
    kinds = np.stack([documents.partition, documents.kept, documents.reason], axis=1)
    found, counts = np.unique(kinds.astype(np.int64), axis=0, return_counts=True)
    dumps, by_dump = np.unique(documents.dump[train], return_counts=True)
    outcomes = [
        (PARTITIONS[partition], bool(kept), REASONS[reason], count)
        for (partition, kept, reason), count in zip(found.tolist(), counts.tolist(), strict=True)
    ]
    result: DecisionsResult = {
        "rows": len(documents),
        "repeated": args.unit.rows - len(documents),
        "keys": len(keys),
        "train_bytes": int(documents.size[train & documents.kept].sum()),
        "outcomes": outcomes,
        "dumps": dict(zip(map(dump_name, dumps.tolist()), by_dump.tolist(), strict=True)),
        "part_rows": np.diff(cuts).tolist(),
        "bounds": bounds,
    }
    return Output(data, result)


def write_file(rows: tuple[Section, ...], store: Store) -> Streamed[build.TableResult]:
    """The published table of one file, written a row group at a time, in the order of the units."""

    def tables() -> Iterator[pa.Table]:
        waiting: list[dict[str, NDArray]] = []
        for section in rows:
            waiting.append(arrays.read(section, store))
            if sum(len(part["dump"]) for part in waiting) >= FILE_ROWS:
                yield _table(waiting)
                waiting = []
        if waiting:
            yield _table(waiting)

    return publish_tables(tables(), sum(section.length for section in rows))


def id_parts(ids: Iterable[str], parts: int) -> NDArray:
    """The number of the decisions file that each id belongs to."""
    hashes = np.array([xxhash.xxh3_64_intdigest(ident.encode()) for ident in ids], np.uint64)
    return dedup.part_of(hashes, parts).astype(np.int64)


def doc_indices(documents: Documents, first: Sequence[int]) -> NDArray:
    """The index of each document of a unit; `first` is that of its first in each partition."""
    order, cuts = _by_part(documents, len(first))
    index = np.empty(len(documents), np.int64)
    index[order] = np.arange(len(documents)) + np.repeat(
        np.subtract(first, cuts[:-1]), np.diff(cuts)
    )
    return index


def _by_part(documents: Documents, parts: int) -> tuple[NDArray, list[int]]:
    if parts == 1:
        return np.arange(len(documents)), [0, len(documents)]
    return dedup.by_part(id_parts(documents.ident.to_pylist(), parts), parts)


def first_indices(records: Sequence[Record[DecisionsResult]]) -> NDArray:
    """Per unit, the index of its first document in each partition."""
    rows = np.array([record.result["part_rows"] for record in records], np.int64)
    starts = np.append(0, np.cumsum(rows.sum(axis=0))[:-1])
    return np.asarray(np.cumsum(rows, axis=0) - rows + starts)


def _columns(documents: Documents) -> dict[str, arrays.Column]:
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
        "id": documents.ident,
        "representative": documents.representative,
    }


def _table(found: Sequence[dict[str, NDArray]]) -> pa.Table:
    def whole(name: str) -> NDArray:
        return np.concatenate([part[name] for part in found])

    def texts(name: str) -> pa.Array:
        texts = [arrays.arrow_texts(part, name) for part in found]
        return pa.concat_arrays(texts).cast(pa.string())

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


def publish_tables(tables: Iterable[pa.Table], size: int) -> Streamed[build.TableResult]:
    """At least one table as one Parquet file beside the shards, of about `size` bytes."""

    def write(sink: Sink) -> build.TableResult:
        waiting = iter(tables)
        table, hasher, rows = next(waiting), RowsHasher(), 0
        with pq.ParquetWriter(sink, table.schema, compression="zstd") as writer:
            for part in itertools.chain([table], waiting):
                writer.write_table(part)
                hasher.update(part)
                rows += part.num_rows
        return {"rows": rows, "rows_sha256": hasher.hexdigest()}

    return Streamed(write, size)


def _named(places: NDArray, names: Sequence[str]) -> pa.Array:
    codes = pa.array(places.astype(np.int32))
    return pa.DictionaryArray.from_arrays(codes, pa.array(names, pa.string())).cast(pa.string())


def _hex(keys: NDArray) -> pa.Array:
    text = keys.astype(">u8").tobytes().hex().encode()
    offsets = np.arange(len(keys) + 1, dtype=np.int32) * 32
    return pa.StringArray.from_buffers(len(keys), pa.py_buffer(offsets), pa.py_buffer(text))


DECISIONS: Final = Stage("fineweb-decisions", 5, write_decisions)
FILES: Final = Stage("fineweb-decision-files", 1, write_file)


def decide(
    job: Job, units: Sequence[DocumentUnit]
) -> tuple[list[Record[DecisionsResult]], list[SideFile]]:
    parts = min(MOST_FILES, max(1, -(-bounds_of(units)[-1] // FILE_ROWS)))
    records = run_units(job, DECISIONS, units, (DecisionsArgs(unit, parts) for unit in units))
    files = run_parts(job, FILES, "decisions", (sections(records, part) for part in range(parts)))
    return records, side_files("decisions", "hash", files)


def side_files(
    kind: str, stem: str, records: Sequence[Record[build.TableResult]]
) -> list[SideFile]:
    return [
        SideFile(
            f"{kind}/{stem}-{n:05d}.parquet",
            kind,
            r.address,
            r.result["rows"],
            r.result["rows_sha256"],
        )
        for n, r in enumerate(records)
    ]


def outcome_counts(
    records: Sequence[Record[DecisionsResult]],
) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """Documents and kept documents per partition, and drops per reason."""
    counts = {name: {"documents": 0, "kept": 0} for name in PARTITIONS}
    drops: Counter[str] = Counter()
    rows = (row for record in records for row in record.result["outcomes"])
    for partition, kept, reason, number in rows:
        counts[partition]["documents"] += number
        counts[partition]["kept"] += number if kept else 0
        drops.update({} if kept else {reason: number})
    return counts, dict(sorted(drops.items()))


def train_dumps(records: Sequence[Record[DecisionsResult]]) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for record in records:
        totals.update(record.result["dumps"])
    return dict(sorted(totals.items()))


def _keys(documents: Documents, partition: int) -> tuple[NDArray, NDArray]:
    """Every URL and content key of a partition's documents, and the place of each document."""
    mine = np.flatnonzero((documents.partition == partition) & (documents.status == FINE))
    keys = np.concatenate([documents.url[mine], documents.content[mine]])
    real = keys.any(axis=1)
    return keys[real], np.tile(mine, 2)[real]


def sort_keys(keys: tuple[Section, ...], store: Store) -> Output[Sections]:
    """All validation keys, sorted by their first half; the second halves apart, rarely read."""
    found = [arrays.read(section, store) for section in keys]
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


class LookupResult(TypedDict):
    """Training keys, how many distinct ones validation has too, and ids of some documents."""

    keys: int
    shared: int
    documents: list[str]


def look_up(args: LookupArgs, store: Store) -> Output[LookupResult]:
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


SORT: Final = Stage("fineweb-audit-sort", 3, sort_keys)
LOOKUP: Final = Stage("fineweb-audit", 3, look_up)


def audit_leaks(
    job: Job, units: Sequence[DocumentUnit], decided: Sequence[Record[DecisionsResult]]
) -> dict[str, Any]:
    """Prove that no URL or content key occurs in both partitions; the numbers go into the lock."""
    with_keys = [record for record in decided if record.result["keys"]]
    filled = tuple(Section.of(r, len(r.result["part_rows"])) for r in with_keys)
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
        "validation_keys": sum(record.result["keys"] for record in decided),
        "shared_keys": shared,
    }
