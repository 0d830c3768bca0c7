"""What became of every document, as a published table, and the audit that nothing leaks.

- One row per document of the input; the same record met twice has one row.
- Up to one hash partition of documents the rows are in the input's order. Beyond, they are
  partitioned by the hash of their id, so that one file tells what became of a document.
- A document's index is its row, counted through all files.
- The audit does not use the graph: it takes the keys of both partitions and looks for one that
  occurs in both. It covers dropped members too, so it proves more than the shards need.

Usage: `records, files = decide(job, units)`; `audit(job, decided)["shared_keys"] == 0`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tangobench.errors import CorruptionError
from tangobench.pipeline import dedup
from tangobench.pipeline.build import Job, Output, Record, SideFile, Stage, Unit
from tangobench.pipeline.fineweb_dedup import DecidedUnit, decided_documents, sections
from tangobench.pipeline.fineweb_keys import FINE, IGNORED, STATUS_NAMES, from_ipc
from tangobench.pipeline.fineweb_read import dump_name
from tangobench.pipeline.hashing import rows_sha256
from tangobench.pipeline.store import Store

PARTITIONS: Final = ("train", "validation", "ignored")
TRAIN, VALIDATION, OUTSIDE = range(len(PARTITIONS))
REASONS: Final = (*dedup.REASONS, "near-duplicate", *STATUS_NAMES)
_NEAR: Final = len(dedup.REASONS)
_STATUS: Final = _NEAR + 1
_KEY: Final = np.dtype([("high", "<u8"), ("low", "<u8")])


def unit_documents(args: dict[str, Any], store: Store) -> pl.DataFrame:
    """A unit's documents with final decisions: `partition` and `reason` are places in the tuples.

    `row` is a document's place in the unit.
    """
    decided: DecidedUnit = args["decided"]
    documents, repeated = decided_documents(decided, store)
    near = np.array(args.get("near") or [], np.int64) - decided.unit.base
    status = documents["status"].to_numpy()
    kept, reason = documents["kept"].to_numpy().copy(), documents["reason"].to_numpy().copy()
    kept[near], reason[near] = False, _NEAR
    late = documents["validation"].to_numpy()
    partition = np.where(status == IGNORED, OUTSIDE, np.where(late, VALIDATION, TRAIN))
    return documents.with_columns(
        row=pl.Series(np.arange(len(documents))),
        kept=pl.Series(kept),
        reason=pl.Series(np.where(status == FINE, reason, _STATUS + status), dtype=pl.UInt8),
        partition=pl.Series(partition, dtype=pl.UInt8),
    ).filter(pl.Series(~repeated))


def write_decisions(args: dict[str, Any], store: Store) -> Output:
    """The published table of one unit, and its counts."""
    documents = unit_documents(args, store)
    table, parts = _table(documents), args["parts"]
    train = documents.filter((pl.col("partition") == TRAIN) & pl.col("kept"))
    result = {
        "rows": table.num_rows,
        "train_bytes": int(train["size"].sum()),
        "repeated": args["decided"].unit.rows - table.num_rows,
        "outcomes": _outcomes(documents),
        "dumps": _dumps(documents),
    }
    if parts == 1:
        return Output(_parquet(table), {**result, "rows_sha256": rows_sha256(table)})
    part = id_parts(documents["id"], parts)
    bounds = np.searchsorted(np.sort(part), np.arange(parts + 1)).tolist()
    ordered = table.take(np.argsort(part, kind="stable"))
    pieces = sections([ordered.slice(a, b - a) for a, b in pairwise(bounds)])
    return Output(pieces.data, {**result, **pieces.result, "part_rows": np.diff(bounds).tolist()})


def merge_decisions(args: dict[str, Any], store: Store) -> Output:
    """The published table of one hash partition: its rows of every unit, in the input's order."""
    table = pa.concat_tables([from_ipc(store.read_range(*section)) for section in args["sections"]])
    return Output(_parquet(table), {"rows": table.num_rows, "rows_sha256": rows_sha256(table)})


def id_parts(ids: Iterable[str], parts: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The partition of each document in a table of decisions that is partitioned."""
    hashes = np.array([xxhash.xxh3_64_intdigest(ident.encode()) for ident in ids], np.uint64)
    return dedup.part_of(hashes, parts).astype(np.int64)


def doc_indices(documents: pl.DataFrame, first: Sequence[int]) -> np.ndarray[Any, Any]:
    """The index of each document of a unit; `first` is that of its first in each partition."""
    if len(first) == 1:
        return np.arange(len(documents)) + first[0]
    part = id_parts(documents["id"], len(first))
    order = np.argsort(part, kind="stable")
    begins = np.searchsorted(part[order], np.arange(len(first)))
    index = np.empty(len(documents), np.int64)
    index[order] = np.arange(len(documents)) + (np.array(first) - begins)[part[order]]
    return index


def first_indices(records: Sequence[Record]) -> list[list[int]]:
    """Per unit, the index of its first document in each partition."""
    rows = np.array([r.result.get("part_rows", [r.result["rows"]]) for r in records], np.int64)
    starts = np.append(0, np.cumsum(rows.sum(axis=0))[:-1])
    found: list[list[int]] = (np.cumsum(rows, axis=0) - rows + starts).tolist()
    return found


def _table(documents: pl.DataFrame) -> pa.Table:
    dumps = documents["dump"].unique().sort()
    place = dumps.search_sorted(documents["dump"]).to_numpy()
    return pa.table(
        {
            "id": documents["id"].to_arrow().cast(pa.string()),
            "dump": _named(place, [dump_name(order) for order in dumps.to_list()]),
            "component": _component_names(documents),
            "partition": _named(documents["partition"].to_numpy(), PARTITIONS),
            "kept": documents["kept"].to_arrow(),
            "reason": _named(documents["reason"].to_numpy(), REASONS),
            "representative": documents["representative"].to_arrow().cast(pa.string()),
        }
    )


def _parquet(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def _named(places: Any, names: Sequence[str]) -> pa.Array:
    codes = pa.array(places.astype(np.int32))
    return pa.DictionaryArray.from_arrays(codes, pa.array(names, pa.string())).cast(pa.string())


def _component_names(documents: pl.DataFrame) -> pa.Array:
    """Component keys in hex; a document without one (dropped, ignored) is its own component."""
    keys = documents.select("component_high", "component_low").to_numpy().copy()
    for at in np.flatnonzero(documents["status"].to_numpy() != FINE).tolist():
        key = xxhash.xxh3_128_intdigest(documents["id"][at].encode())
        keys[at] = key >> 64, key & 0xFFFFFFFFFFFFFFFF
    text = keys.astype(">u8").tobytes().hex().encode()
    offsets = np.arange(len(keys) + 1, dtype=np.int32) * 32
    return pa.StringArray.from_buffers(len(keys), pa.py_buffer(offsets), pa.py_buffer(text))


def _outcomes(documents: pl.DataFrame) -> list[list[Any]]:
    grouped = documents.group_by("partition", "kept", "reason").len()
    return [
        [PARTITIONS[partition], kept, REASONS[reason], count]
        for partition, kept, reason, count in sorted(grouped.rows())
    ]


def _dumps(documents: pl.DataFrame) -> dict[str, int]:
    train = documents.filter(pl.col("partition") == TRAIN)
    grouped = train.group_by("dump").len().sort("dump")
    return {dump_name(dump): count for dump, count in grouped.iter_rows()}


def _keys(documents: pl.DataFrame, partition: int) -> np.ndarray[Any, np.dtype[Any]]:
    """Every URL and content key of a partition's documents."""
    mine = documents.filter((pl.col("partition") == partition) & (pl.col("status") == FINE))
    both = [mine.select(f"{kind}_high", f"{kind}_low").to_numpy() for kind in ("url", "content")]
    pairs = np.concatenate(both)
    pairs = pairs[pairs.any(axis=1)]
    keys = np.empty(len(pairs), _KEY)
    keys["high"], keys["low"] = pairs[:, 0], pairs[:, 1]
    return keys


def _frame(keys: np.ndarray[Any, np.dtype[Any]]) -> pl.DataFrame:
    return pl.DataFrame({name: np.ascontiguousarray(keys[name]) for name in ("high", "low")})


def validation_keys(args: dict[str, Any], store: Store) -> Output:
    """The keys that training must not have, of one unit."""
    keys = _keys(unit_documents(args, store), VALIDATION)
    return Output(keys.tobytes(), {"keys": len(keys)})


def find_shared(args: dict[str, Any], store: Store) -> Output:
    """Keys of a unit's training documents that some validation document has too."""
    documents = unit_documents(args, store)
    train = _frame(_keys(documents, TRAIN))
    parts = [np.frombuffer(store.read(a), _KEY) for a in args["validation_keys"]]
    validation = _frame(np.concatenate([np.empty(0, _KEY), *parts]))
    shared = train.join(validation, on=["high", "low"], how="semi").unique().rows()
    names = documents.filter(
        pl.struct("url_high", "url_low").is_in([{"url_high": h, "url_low": w} for h, w in shared])
    )["id"].to_list()
    return Output(b"", {"keys": len(train), "shared": len(shared), "documents": names[:5]})


DECISIONS: Final = Stage("fineweb-decisions", 2, write_decisions)
MERGE: Final = Stage("fineweb-merge", 1, merge_decisions)
AUDIT_KEYS: Final = Stage("fineweb-audit-keys", 1, validation_keys)
AUDIT: Final = Stage("fineweb-audit", 1, find_shared)


def decide(job: Job, units: Sequence[Unit]) -> tuple[list[Record], list[SideFile]]:
    """Records of all units, and the published files."""
    records = job.run(DECISIONS, units)
    parts = units[0].args["parts"]
    if parts == 1:
        return records, _files("part", records)
    todo = []
    for part in range(parts):
        pieces = [(r.address, *r.result["sections"][part]) for r in records]
        todo.append(Unit(f"decisions {part + 1}/{parts}", {"sections": pieces}))
    return records, _files("hash", job.run(MERGE, todo))


def _files(stem: str, records: Sequence[Record]) -> list[SideFile]:
    return [
        SideFile(
            f"decisions/{stem}-{n:05d}.parquet",
            "decisions",
            record.address,
            record.result["rows"],
            record.result["rows_sha256"],
        )
        for n, record in enumerate(records)
    ]


def decision_units(decided: Sequence[DecidedUnit], near: Sequence[Sequence[int]]) -> list[Unit]:
    """One unit per input unit; `near` lists the documents that the near-duplicate audit drops."""
    return [
        Unit(
            f"unit {n + 1}",
            [d.unit.address, d.unit.base, d.sections, d.train_through, list(near[n])],
            {"decided": d, "near": list(near[n]), "parts": len(d.unit.bounds) - 1},
            d.unit.rows,
        )
        for n, d in enumerate(decided)
    ]


def audit(job: Job, units: Sequence[Unit]) -> dict[str, Any]:
    """Prove that no URL or content key occurs in both partitions; the numbers go into the lock."""
    validation = job.run(AUDIT_KEYS, units)
    addresses = sorted({record.address for record in validation if record.size})
    checks = job.run(
        AUDIT,
        [
            Unit(u.label, [u.inputs, addresses], {**u.args, "validation_keys": addresses}, u.weight)
            for u in units
        ],
    )
    shared = sum(record.result["shared"] for record in checks)
    if shared:
        names = [name for record in checks for name in record.result["documents"]][:5]
        raise CorruptionError(
            f"{shared} URL or content keys occur in training and in validation (near {names})",
            kind="split-leak",
            fix="this is a bug in the dedup: please report it with the input's sha256",
        )
    return {
        "train_keys": sum(record.result["keys"] for record in checks),
        "validation_keys": sum(record.result["keys"] for record in validation),
        "shared_keys": shared,
    }


def outcome_counts(records: Sequence[Record]) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """Documents and kept documents per partition, and drops per reason."""
    counts = {name: {"documents": 0, "kept": 0} for name in PARTITIONS}
    drops: dict[str, int] = {}
    for record in records:
        for partition, kept, reason, number in record.result["outcomes"]:
            counts[partition]["documents"] += number
            if kept:
                counts[partition]["kept"] += number
            else:
                drops[reason] = drops.get(reason, 0) + number
    return counts, dict(sorted(drops.items()))
