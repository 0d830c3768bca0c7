"""Dedup of FineWeb-Edu as stages over the unit store: a shuffle by key, then one by component.

- groups: one hash partition of all keys -> edges between documents that share a key
- components: all edges -> the component of every linked document (spilled when they are many)
- members, representatives: linked documents by component -> the decision on each
- decided: unit by unit, the decisions on all its documents, joined once and read by all that
  follows; documents without a link are decided on the spot
- Memory is bounded by the partitions, whose number follows from the row count; neither that
  number nor the units' borders can change a decision.

Usage: `decided = resolve(job, units, train_through=202340, duplicates="drop")`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tangobench.pipeline.core import arrays
from tangobench.pipeline.core.arrays import NDArray, Section
from tangobench.pipeline.core.build import (
    Arguments,
    Job,
    Output,
    Record,
    Stage,
    Streamed,
    UnitResult,
)
from tangobench.pipeline.core.hashing import Sink
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.fineweb import components, dedup
from tangobench.pipeline.fineweb.documents import DecidedUnit, pack_decided
from tangobench.pipeline.fineweb.keys import KeyUnit
from tangobench.pipeline.fineweb.spec import Duplicates

if TYPE_CHECKING:
    import polars as pl

PART_ROWS: Final = 4_000_000  # rows per partition: two keys each, about 400 MB while sorting
EDGES_IN_MEMORY: Final = 8_000_000  # about 100 bytes each
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_LABEL: Final = np.dtype([("document", "<i8"), ("root", "<i8")])
_COPY: Final = 1 << 24


def partitions_for(rows: int) -> int:
    """How many hash partitions a corpus needs."""
    return max(1, -(-rows // PART_ROWS))


@dataclass(frozen=True, slots=True)
class GroupsArgs(Arguments):
    """One partition of the keys of every unit, and the number of each unit's first document."""

    keys: tuple[Section, ...]
    bases: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupsResult(UnitResult):
    """How many edges were found."""

    edges: int


def find_groups(args: GroupsArgs, store: Store) -> Output:
    """Edges of one hash partition."""
    found = [arrays.read(section, store)["keys"] for section in args.keys]
    high = np.concatenate([rows["high"] for rows in found])
    low = np.concatenate([rows["low"] for rows in found])
    numbered = zip(found, args.bases, strict=True)
    document = np.concatenate([rows["document"].astype(np.int64) + base for rows, base in numbered])
    del found
    left, right = dedup.group_edges(high, low, document)
    return Output(arrays.pack({"left": left, "right": right}), GroupsResult(len(left)).plain())


@dataclass(frozen=True, slots=True)
class ComponentsArgs(Arguments):
    """Objects with edges, and the number of each unit's first document (the last is the total)."""

    edges: tuple[str, ...]
    total: int
    bases: tuple[int, ...]
    in_memory: int

    def key(self) -> Any:
        """Whether edges are spilled decides nothing."""
        return [self.edges, self.bases]


@dataclass(frozen=True, slots=True)
class ComponentsResult(UnitResult):
    """Where the rows begin in the object, and which are each unit's."""

    start: int
    bounds: list[int]

    def labels(self, address: str, unit: int) -> Section:
        """The rows of a unit, without the container's header."""
        low, high = self.bounds[unit], self.bounds[unit + 1]
        size = _LABEL.itemsize
        return Section(address, self.start + low * size, (high - low) * size)


def find_components(args: ComponentsArgs, store: Store) -> Streamed:
    """(document, component) of every linked document, by document."""

    def write(sink: Sink) -> dict[str, Any]:
        with tempfile.TemporaryFile(dir=store.spill_folder()) as spilled:
            bounds = np.zeros(len(args.bases), np.int64)
            for nodes, roots in _labels(args, store):
                rows = np.empty(len(nodes), _LABEL)
                rows["document"], rows["root"] = nodes, roots
                spilled.write(rows.tobytes())
                bounds += np.searchsorted(nodes, args.bases)
            header = arrays.header([("labels", _LABEL, int(bounds[-1]))])
            sink.write(header)
            spilled.seek(0)
            while piece := spilled.read(_COPY):
                sink.write(piece)
        return ComponentsResult(len(header), bounds.tolist()).plain()

    return Streamed(write, 2 * args.total * _LABEL.itemsize)


def _labels(args: ComponentsArgs, store: Store) -> Iterator[components.Pairs]:
    def pairs() -> Iterator[components.Pairs]:
        for address in args.edges:
            found = arrays.unpack(store.read(address))
            yield found["left"], found["right"]

    if args.total > args.in_memory:
        parts = -(-args.total // args.in_memory) * 4
        folder, nodes = store.spill_folder(), args.bases[-1]
        yield from components.connect_spilled(pairs(), nodes=nodes, parts=parts, folder=folder)
        return
    none = np.empty(0, np.int64)
    sides = zip(*pairs(), strict=True) if args.edges else ((), ())
    yield components.connect(*(np.concatenate([none, *side]) for side in sides))


@dataclass(frozen=True, slots=True)
class MembersArgs(Arguments):
    """A unit's documents, and the components of those that are linked."""

    documents: Section
    base: int
    labels: Section
    parts: int


@dataclass(frozen=True, slots=True)
class SectionsResult(UnitResult):
    """Where the sections of an object begin."""

    bounds: list[int]

    def section(self, address: str, number: int) -> Section:
        """One of them."""
        return Section.at(address, self.bounds, number)


_MEMBER: Final = ("dump", "content_high", "content_low", "url_high", "url_low")


def collect_members(args: MembersArgs, store: Store) -> Output:
    """The linked documents of one unit, ordered by the hash partition of their component."""
    documents = arrays.read(args.documents, store)
    labels = np.frombuffer(store.read_range(*args.labels), _LABEL)
    part = dedup.part_of(labels["root"].astype(np.uint64) * _GOLDEN, args.parts)
    order = np.argsort(part, kind="stable")
    bounds = np.searchsorted(part[order], np.arange(args.parts + 1, dtype=np.uint64))
    texts = {name: arrays.arrow_texts(documents, name) for name in ("id", "date")}
    tables: list[dict[str, NDArray]] = []
    for low, high in pairwise(bounds.tolist()):
        chosen = labels[order[low:high]]
        at = chosen["document"] - args.base
        table: dict[str, NDArray] = {name: documents[name][at] for name in _MEMBER}
        table |= {"document": chosen["document"], "root": chosen["root"]}
        for name, values in texts.items():
            table |= arrays.pack_texts(name, values.take(pa.array(at)))
        tables.append(table)
    data, places = arrays.pack_sections(tables)
    return Output(data, SectionsResult(places).plain())


@dataclass(frozen=True, slots=True)
class ChoiceArgs(Arguments):
    """The members of one partition of the components, and the rules of the choice."""

    members: tuple[Section, ...]
    bases: tuple[int, ...]
    train_through: int
    duplicates: Duplicates


def choose_representatives(args: ChoiceArgs, store: Store) -> Output:
    """Decisions on whole components, ordered by unit."""
    import polars as pl

    members = pl.concat([_frame(arrays.read(section, store)) for section in args.members])
    decided = dedup.decide(members, train_through=args.train_through, duplicates=args.duplicates)
    bounds = np.searchsorted(decided["document"].to_numpy(), args.bases).tolist()
    columns = {name: decided[name].to_numpy() for name in decided.columns}
    names = pc.cast(decided["representative"].to_arrow(), pa.large_string())
    tables = []
    for low, high in pairwise(bounds):
        table = {n: c[low:high] for n, c in columns.items() if n != "representative"}
        tables.append(table | arrays.pack_texts("representative", names.slice(low, high - low)))
    data, places = arrays.pack_sections(tables)
    return Output(data, SectionsResult(places).plain())


def _frame(found: dict[str, NDArray]) -> pl.DataFrame:
    """Members as `dedup.decide` takes them; an empty date is none."""
    import polars as pl

    plain = {name: found[name] for name in (*_MEMBER, "document", "root")}
    texts = {name: pl.Series(arrays.arrow_texts(found, name)) for name in ("id", "date")}
    frame = pl.DataFrame({**plain, **texts})
    return frame.with_columns(date=pl.when(pl.col("date") != "").then(pl.col("date")))


@dataclass(frozen=True, slots=True)
class DecideArgs(Arguments):
    """A unit's documents and what was decided on the linked ones among them."""

    documents: Section
    base: int
    linked: tuple[Section, ...]
    train_through: int


def decide_unit(args: DecideArgs, store: Store) -> Output:
    """The decisions on all documents of a unit, by row."""
    documents = arrays.read(args.documents, store)
    linked = [arrays.read(section, store) for section in args.linked]
    return Output(pack_decided(documents, linked, args.base, args.train_through))


GROUPS: Final = Stage("fineweb-groups", 2, find_groups)
COMPONENTS: Final = Stage("fineweb-components", 2, find_components)
MEMBERS: Final = Stage("fineweb-members", 2, collect_members)
REPRESENTATIVES: Final = Stage("fineweb-representatives", 2, choose_representatives)
DECIDED: Final = Stage("fineweb-decided", 1, decide_unit)


def resolve(
    job: Job, units: Sequence[KeyUnit], parts: int, *, train_through: int, duplicates: Duplicates
) -> list[DecidedUnit]:
    """Run all stages; decisions are exact and the same for any partitioning."""
    bases = tuple(unit.base for unit in units)
    bounds = (*bases, units[-1].base + units[-1].rows)
    groups = job.run(
        GROUPS,
        [
            GROUPS.unit(f"keys {p + 1}/{parts}", GroupsArgs(tuple(u.keys(p) for u in units), bases))
            for p in range(parts)
        ],
    )
    labels = _components(job, groups, bounds)
    parts = partitions_for(ComponentsResult.of(labels).bounds[-1])  # of linked documents only
    members = job.run(MEMBERS, _member_units(units, labels, parts))
    found = [(record.address, SectionsResult.of(record)) for record in members]
    chosen = job.run(
        REPRESENTATIVES,
        [
            REPRESENTATIVES.unit(
                f"components {p + 1}/{parts}",
                ChoiceArgs(
                    tuple(r.section(a, p) for a, r in found), bounds, train_through, duplicates
                ),
            )
            for p in range(parts)
        ],
    )
    return _decide(job, units, chosen, train_through)


def _components(job: Job, groups: Sequence[Record], bounds: tuple[int, ...]) -> Record:
    counts = [GroupsResult.of(record).edges for record in groups]
    edges = tuple(r.address for r, count in zip(groups, counts, strict=True) if count)
    args = ComponentsArgs(edges, sum(counts), bounds, EDGES_IN_MEMORY)
    (labels,) = job.run(COMPONENTS, [COMPONENTS.unit("all edges", args)])
    return labels


def _member_units(units: Sequence[KeyUnit], labels: Record, parts: int) -> list[Any]:
    found = ComponentsResult.of(labels)
    return [
        MEMBERS.unit(
            unit.reading.label,
            MembersArgs(unit.documents(), unit.base, found.labels(labels.address, n), parts),
        )
        for n, unit in enumerate(units)
    ]


def _decide(
    job: Job, units: Sequence[KeyUnit], chosen: Sequence[Record], train_through: int
) -> list[DecidedUnit]:
    found = [(record.address, SectionsResult.of(record)) for record in chosen]
    todo = []
    for n, unit in enumerate(units):
        linked = tuple(result.section(address, n) for address, result in found)
        args = DecideArgs(unit.documents(), unit.base, linked, train_through)
        todo.append(DECIDED.unit(unit.reading.label, args))
    return [
        DecidedUnit(unit.reading, unit.documents(), record.address, unit.base, unit.rows)
        for unit, record in zip(units, job.run(DECIDED, todo), strict=True)
    ]
