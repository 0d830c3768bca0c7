"""The decision on every document, as a published table.

- Rows are partitioned by the hash of their id and in the order of the input inside a file. The
  number of files follows from the number of rows: nothing but the input can change a file.
- A document's index is its row, counted through all files.
- The audit takes every URL and content key of both partitions, of dropped members too, and does
  not use the graph. Linear: keys are partitioned by their hash, so that each is read once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tangobench.errors import CorruptionError
from tangobench.pipeline.core import build, shards
from tangobench.pipeline.core.build import Job, Output, Record, SideFile, Stage, Streamed
from tangobench.pipeline.core.hashing import RowsHasher, Sink
from tangobench.pipeline.core.shards import NDArray, Section, Sections
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.fineweb.keys import FINE, KEY_ROW, by_part, key_rows, part_of
from tangobench.pipeline.fineweb.spec import dump_name
from tangobench.pipeline.fineweb.units import (
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

FILE_ROWS: Final = 1 << 17  # documents per file, until there are
TOGETHER: Final = 1 << 20  # keys of validation that one unit of the audit sorts
_NAMED: Final = 5
MOST_FILES: Final = 128  # files: more would be a range read per file and unit, for nothing


class DecisionsResult(Sections):
    """Counts; `outcomes` are (partition, kept, reason, documents), `dumps` of training.

    A section per file, then, without a container, one per hash partition of training's keys and
    one per hash partition of validation's.
    """

    rows: int
    repeated: int
    train_keys: int
    validation_keys: int
    train_bytes: int
    outcomes: list[tuple[str, bool, str, int]]
    dumps: dict[str, int]
    part_rows: list[int]


def write_decisions(unit: DocumentUnit, parts: int, store: Store) -> Output[DecisionsResult]:
    """The decisions on a unit's documents, to be published in `parts` files."""
    documents = unit.load(store)
    order, cuts = _by_part(documents, parts)
    columns = {name: column.take(order) for name, column in _columns(documents).items()}
    data, bounds = shards.pack_ranges(columns, cuts)
    train, found = documents.partition == TRAIN, []
    for side in (train, documents.partition == VALIDATION):
        linked = side & (documents.status == FINE)
        keys, ends = key_rows(documents.url, documents.content, linked, parts)
        bounds += [bounds[-1] + keys.itemsize * end for end in ends[1:]]
        found.append(keys)
    kinds = np.stack([documents.partition, documents.kept, documents.reason], axis=1)
    combined, counts = np.unique(kinds.astype(np.int64), axis=0, return_counts=True)
    dumps, by_dump = np.unique(documents.dump[train], return_counts=True)
    outcomes = [
        (PARTITIONS[partition], bool(kept), REASONS[reason], count)
        for (partition, kept, reason), count in zip(combined.tolist(), counts.tolist(), strict=True)
    ]
    result: DecisionsResult = {
        "rows": len(documents),
        "repeated": unit.rows - len(documents),
        "train_keys": len(found[0]),
        "validation_keys": len(found[1]),
        "train_bytes": int(documents.size[train & documents.kept].sum()),
        "outcomes": outcomes,
        "dumps": dict(zip(map(dump_name, dumps.tolist()), by_dump.tolist(), strict=True)),
        "part_rows": np.diff(cuts).tolist(),
        "bounds": bounds,
    }
    return Output(b"".join([data, *(keys.tobytes() for keys in found)]), result)


def write_file(rows: tuple[Section, ...], store: Store) -> Streamed[build.TableResult]:
    """The published table of one file, written a row group at a time, in the order of the units."""

    def tables() -> Iterator[pa.Table]:
        waiting: list[dict[str, NDArray]] = []
        for section in rows:
            waiting.append(shards.read(section, store))
            if sum(len(part["dump"]) for part in waiting) >= FILE_ROWS:
                yield _table(waiting)
                waiting = []
        if waiting:
            yield _table(waiting)

    return publish_tables(tables(), sum(section.length for section in rows))


def id_parts(ids: Iterable[str], parts: int) -> NDArray:
    """The number of the decisions file that each id belongs to."""
    hashes = np.array([xxhash.xxh3_64_intdigest(ident.encode()) for ident in ids], np.uint64)
    return part_of(hashes, parts).astype(np.int64)


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
    return by_part(id_parts(documents.ident.to_pylist(), parts), parts)


def first_indices(records: Sequence[Record[DecisionsResult]]) -> NDArray:
    """Per unit, the index of its first document in each partition."""
    rows = np.array([record.result["part_rows"] for record in records], np.int64)
    starts = np.append(0, np.cumsum(rows.sum(axis=0))[:-1])
    return np.asarray(np.cumsum(rows, axis=0) - rows + starts)


def _columns(documents: Documents) -> dict[str, shards.Packable]:
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
        texts = [shards.arrow_texts(part, name) for part in found]
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
    return pa.array(names, pa.string()).take(pa.array(places))


def _hex(keys: NDArray) -> pa.Array:
    text = keys.astype(">u8").tobytes().hex().encode()
    offsets = np.arange(len(keys) + 1, dtype=np.int32) * 32
    return pa.StringArray.from_buffers(len(keys), pa.py_buffer(offsets), pa.py_buffer(text))


DECISIONS: Final = Stage("fineweb-decisions", 6, write_decisions)
FILES: Final = Stage("fineweb-decision-files", 1, write_file)


def decide(
    job: Job, units: Sequence[DocumentUnit]
) -> tuple[list[Record[DecisionsResult]], list[SideFile]]:
    parts = min(MOST_FILES, max(1, -(-bounds_of(units)[-1] // FILE_ROWS)))
    records = run_units(job, DECISIONS, units, ((unit, parts) for unit in units))
    files = run_parts(job, FILES, "decisions", ((sections(records, n),) for n in range(parts)))
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


class AuditResult(TypedDict):
    """How many distinct keys both have, and where some of them are: a section, a document."""

    shared: int
    near: list[tuple[int, int]]


def find_leaks(
    validation: tuple[Section, ...], train: tuple[Section, ...], store: Store
) -> Output[AuditResult]:
    """Keys of training documents that some validation document has too.

    They are the same hash partitions of validation's keys and of training's, of every unit.
    """
    late = _key_rows(validation, store)
    order = np.argsort(late["high"])
    high = np.append(late["high"][order], np.uint64(0))  # a place for what is above all others
    shared: set[tuple[int, int]] = set()
    near: list[tuple[int, int]] = []
    for number, section in enumerate(train):
        keys = _key_rows([section], store)
        first = np.searchsorted(high[:-1], keys["high"])
        alike = np.flatnonzero(high[first] == keys["high"])  # none, unless it leaks
        stop = np.searchsorted(high[:-1], keys["high"][alike], side="right")
        for a, b, key in zip(first[alike], stop, keys[alike], strict=True):
            if key["low"] in late["low"][order[a:b]]:
                shared.add((int(key["high"]), int(key["low"])))
                near.append((number, int(key["document"])))
    return Output(b"", {"shared": len(shared), "near": near[:_NAMED]})


def _key_rows(sections: Iterable[Section], store: Store) -> NDArray:
    return np.frombuffer(b"".join(store.read(*section) for section in sections), KEY_ROW)


AUDIT: Final = Stage("fineweb-audit", 4, find_leaks)


def audit_leaks(
    job: Job, units: Sequence[DocumentUnit], decided: Sequence[Record[DecisionsResult]]
) -> dict[str, Any]:
    """Prove that no URL or content key occurs in both partitions; the numbers go into the lock."""
    parts = len(decided[0].result["part_rows"])
    late = [record for record in decided if record.result["validation_keys"]]
    early = [record for record in decided if record.result["train_keys"]]
    total = sum(record.result["validation_keys"] for record in late)
    cuts = np.linspace(0, parts, min(parts, -(-total // TOGETHER)) + 1).astype(int).tolist()
    args = (
        (sections(late, 2 * parts + a, b - a), sections(early, parts + a, b - a))
        for a, b in pairwise(cuts)
    )
    checks = run_parts(job, AUDIT, "keys", args)
    if shared := sum(check.result["shared"] for check in checks):
        found = [place for check in checks for place in check.result["near"]][:_NAMED]
        both = zip(units, decided, strict=True)
        owners = [unit for unit, record in both if record.result["train_keys"]]
        names = [owners[n].load(job.store).ident[document].as_py() for n, document in found]
        why = f"{shared} URL or content keys occur in training and in validation (near {names})"
        fix = "this is a bug in the dedup: please report it with the input's sha256"
        raise CorruptionError(why, kind="split-leak", fix=fix)
    return {
        "train_keys": sum(record.result["train_keys"] for record in early),
        "validation_keys": total,
        "shared_keys": shared,
    }
