"""Dedup of FineWeb-Edu as stages over the unit store: a shuffle by key, then one by component.

- groups: one hash partition of all keys -> edges between documents that share a key
- components: all edges -> the component of every linked document (spilled when they are many)
- members, representatives: linked documents by component -> what becomes of each
- decisions: unit by unit, the published table; documents without a link are decided on the spot
- Memory is bounded by the partitions, whose number follows from the row count; neither that
  number nor the units' borders can change a decision.

Usage: `decided = resolve(job, units, train_through=202340, duplicates="drop")`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from tangobench.pipeline import components, dedup
from tangobench.pipeline.build import Job, Output, Record, Stage, Unit
from tangobench.pipeline.fineweb_keys import FINE, from_ipc, to_ipc
from tangobench.pipeline.store import Store

PART_ROWS: Final = 4_000_000  # rows per partition: two keys each, about 400 MB while sorting
EDGES_IN_MEMORY: Final = 8_000_000  # about 100 bytes each
_DECIDED: Final = (
    "kept",
    "validation",
    "reason",
    "representative",
    "component_high",
    "component_low",
)
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


def partitions_for(rows: int) -> int:
    """How many hash partitions a corpus needs."""
    return max(1, -(-rows // PART_ROWS))


@dataclass(frozen=True, slots=True)
class KeyUnit:
    """A finished unit of the first pass; `base` is the number of its first document."""

    address: str
    keys_start: int
    bounds: tuple[int, ...]
    base: int
    rows: int

    def documents(self, store: Store) -> pa.Table:
        """Its documents."""
        return from_ipc(store.read_range(self.address, 0, self.keys_start))

    def key_rows(self, part: int, store: Store) -> Any:
        """Its key rows of one partition."""
        size = dedup.KEY_ROW.itemsize
        low, high = self.bounds[part], self.bounds[part + 1]
        raw = store.read_range(self.address, self.keys_start + low * size, (high - low) * size)
        return np.frombuffer(raw, dedup.KEY_ROW)


def key_units(records: Sequence[Record]) -> list[KeyUnit]:
    """Units numbered through, in the order of the input."""
    base, units = 0, []
    for record in records:
        result = record.result
        bounds = tuple(result["bounds"])
        units.append(KeyUnit(record.address, result["keys_start"], bounds, base, result["rows"]))
        base += result["rows"]
    return units


def find_groups(args: dict[str, Any], store: Store) -> Output:
    """Edges of one hash partition."""
    parts = [(unit, unit.key_rows(args["part"], store)) for unit in args["units"]]
    high = np.concatenate([rows["high"] for _, rows in parts])
    low = np.concatenate([rows["low"] for _, rows in parts])
    document = np.concatenate([rows["document"].astype(np.int64) + u.base for u, rows in parts])
    del parts
    left, right = dedup.group_edges(high, low, document)
    return Output(b"".join((left.tobytes(), right.tobytes())), {"edges": len(left)})


def _read_edges(record: tuple[str, int], store: Store) -> components.Pairs:
    address, count = record
    both = np.frombuffer(store.read(address), np.int64)
    return both[:count], both[count:]


def find_components(args: dict[str, Any], store: Store) -> Output:
    """(document, component) of every linked document, by document."""
    edges = [record for record in args["edges"] if record[1]]
    if sum(count for _, count in edges) <= args["in_memory"]:
        pairs = [_read_edges(record, store) for record in edges]
        none = np.empty(0, np.int64)
        left = np.concatenate([none, *(pair[0] for pair in pairs)])
        right = np.concatenate([none, *(pair[1] for pair in pairs)])
        nodes, labels = components.connect(left, right)
        data: Any = np.stack([nodes, labels], axis=1).tobytes()
    else:
        streamed = (_read_edges(record, store) for record in edges)
        parts = -(-sum(count for _, count in edges) // args["in_memory"]) * 4
        data = _spill_labels(
            components.connect_spilled(streamed, nodes=args["documents"], parts=parts)
        )
    nodes = np.frombuffer(data, np.int64).reshape(-1, 2)[:, 0]
    return Output(data, {"bounds": np.searchsorted(nodes, args["bases"]).tolist()})


def _spill_labels(labels: Iterator[components.Pairs]) -> Any:
    """Labels in a file that is mapped, not loaded, and gone with its last reader."""
    with tempfile.NamedTemporaryFile(prefix="labels-") as file:
        for nodes, roots in labels:
            file.write(np.stack([nodes, roots], axis=1).tobytes())
        file.flush()
        if Path(file.name).stat().st_size == 0:
            return b""
        with pa.memory_map(file.name) as mapped:
            return mapped.read_buffer()


def collect_members(args: dict[str, Any], store: Store) -> Output:
    """The linked documents of one unit, ordered by the hash partition of their component."""
    unit: KeyUnit = args["unit"]
    low, high = args["labels"]
    raw = store.read_range(args["components"], low * 16, (high - low) * 16)
    labels = np.frombuffer(raw, np.int64).reshape(-1, 2)
    table = unit.documents(store).take(labels[:, 0] - unit.base)
    part = dedup.part_of(labels[:, 1].astype(np.uint64) * _GOLDEN, args["parts"])
    order = np.argsort(part, kind="stable")
    table = table.drop_columns(["status", "size"])
    table = table.append_column("document", pa.array(labels[:, 0]))
    table = table.append_column("root", pa.array(labels[:, 1])).take(order)
    bounds = np.searchsorted(part[order], np.arange(args["parts"] + 1, dtype=np.uint64)).tolist()
    return sections([table.slice(a, b - a) for a, b in pairwise(bounds)])


def sections(tables: Sequence[pa.Table]) -> Output:
    """Tables as one object; the record says where each begins and how long it is."""
    buffers = [to_ipc(table.combine_chunks()) for table in tables]
    starts = np.cumsum([0, *(buffer.size for buffer in buffers)]).tolist()
    return Output(
        b"".join(buffers),
        {"sections": [[s, b.size] for s, b in zip(starts, buffers, strict=False)]},
    )


def choose_representatives(args: dict[str, Any], store: Store) -> Output:
    """Decisions on whole components, ordered by unit."""
    tables = [from_ipc(store.read_range(*section)) for section in args["members"]]
    members = pl.DataFrame(pl.from_arrow(pa.concat_tables(tables)))
    decided = dedup.decide(
        members, train_through=args["train_through"], duplicates=args["duplicates"]
    )
    documents = decided["document"].to_numpy()
    bounds = np.searchsorted(documents, args["bases"]).tolist()
    pieces = pairwise(bounds)
    return sections([decided.slice(a, b - a).to_arrow() for a, b in pieces])


@dataclass(frozen=True, slots=True)
class DecidedUnit:
    """A unit whose documents are decided: its keys, and the sections that speak of them."""

    unit: KeyUnit
    sections: tuple[tuple[str, int, int], ...]
    train_through: int


GROUPS: Final = Stage("fineweb-groups", 1, find_groups)
COMPONENTS: Final = Stage("fineweb-components", 1, find_components)
MEMBERS: Final = Stage("fineweb-members", 1, collect_members)
REPRESENTATIVES: Final = Stage("fineweb-representatives", 1, choose_representatives)


def resolve(
    job: Job, units: Sequence[KeyUnit], *, train_through: int, duplicates: dedup.Duplicates
) -> list[DecidedUnit]:
    """Run all stages; decisions are exact and the same for any partitioning."""
    parts = len(units[0].bounds) - 1
    addresses = [unit.address for unit in units]
    groups = job.run(
        GROUPS,
        [
            Unit(f"keys {p + 1}/{parts}", [p, addresses], {"part": p, "units": units})
            for p in range(parts)
        ],
    )
    bases = [unit.base for unit in units] + [units[-1].base + units[-1].rows]
    edges = [(record.address, record.result["edges"]) for record in groups]
    inputs = {"edges": edges, "bases": bases, "documents": bases[-1]}
    args = {**inputs, "in_memory": EDGES_IN_MEMORY}
    (labels,) = job.run(COMPONENTS, [Unit("all edges", inputs, args)])
    members = job.run(MEMBERS, list(_member_units(units, labels, parts)))
    rules = {"train_through": train_through, "duplicates": duplicates, "bases": bases}
    chosen = job.run(REPRESENTATIVES, [_part_unit(p, parts, members, rules) for p in range(parts)])
    return [
        DecidedUnit(
            unit, tuple((r.address, *r.result["sections"][n]) for r in chosen), train_through
        )
        for n, unit in enumerate(units)
    ]


def _member_units(units: Sequence[KeyUnit], labels: Record, parts: int) -> Iterator[Unit]:
    bounds = labels.result["bounds"]
    for n, unit in enumerate(units):
        inputs = [unit.address, unit.base, labels.address, bounds[n : n + 2], parts]
        args = {
            "unit": unit,
            "labels": bounds[n : n + 2],
            "components": labels.address,
            "parts": parts,
        }
        yield Unit(f"unit {n + 1}", inputs, args)


def _part_unit(part: int, parts: int, members: Sequence[Record], rules: dict[str, Any]) -> Unit:
    sections = [(r.address, *r.result["sections"][part]) for r in members]
    inputs = {**rules, "members": sections}
    return Unit(f"components {part + 1}/{parts}", inputs)


def decided_documents(decided: DecidedUnit, store: Store) -> tuple[pl.DataFrame, Any]:
    """A unit's documents with their decisions, and a mask of rows that are one record met again."""
    documents = pl.DataFrame(pl.from_arrow(decided.unit.documents(store)))
    tables = [from_ipc(store.read_range(*section)) for section in decided.sections]
    linked = pl.DataFrame(pl.from_arrow(pa.concat_tables(tables))).sort("document")
    at = linked["document"].to_numpy() - decided.unit.base
    documents = documents.with_columns(
        kept=documents["status"] == FINE,
        validation=documents["dump"] > decided.train_through,
        reason=pl.lit(dedup.UNIQUE, pl.UInt8),
        representative=documents["id"],
        component_high=documents["content_high"],
        component_low=documents["content_low"],
    )
    repeated = np.zeros(len(documents), np.bool_)
    if len(at):
        repeated[at] = linked["repeated"].to_numpy()
        documents = documents.with_columns(
            documents[name].scatter(at, linked[name]) for name in _DECIDED
        )
    return documents, repeated
