"""Dedup of FineWeb-Edu as stages over the unit store: a shuffle by key, then one by component.

- Keys by hash partition -> edges -> components -> linked documents by component -> decisions ->
  the decisions on all documents of a unit, read by all that follows.
- Memory is bounded by the partitions, whose number follows from the row count; neither that
  number nor the units' borders can change a decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tangobench.pipeline.core import arrays
from tangobench.pipeline.core.arrays import Section, Sections
from tangobench.pipeline.core.build import Arguments, Job, Nothing, Output, Record, Stage, Streamed
from tangobench.pipeline.core.hashing import Sink
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.fineweb import dedup
from tangobench.pipeline.fineweb.documents import (
    NEAR,
    OUTSIDE,
    TRAIN,
    VALIDATION,
    DocumentUnit,
    bounds_of,
    run_parts,
    run_units,
    sections,
)
from tangobench.pipeline.fineweb.keys import FINE, IGNORED, KeysResult
from tangobench.pipeline.fineweb.spec import Duplicates

PART_ROWS: Final = 5_000_000  # rows per partition: two keys each, about 500 MB while sorting
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_LABEL: Final = np.dtype([("document", "<i8"), ("root", "<i8")])
_MEMBER: Final = ("dump", "content_high", "content_low", "url_high", "url_low")
_COLUMNS: Final = (*_MEMBER, "document", "root")
_LINKED: Final = ("kept", "reason", "repeated", "component_high", "component_low")


def partitions_for(rows: int) -> int:
    return max(1, -(-rows // PART_ROWS))


@dataclass(frozen=True, slots=True)
class GroupsArgs(Arguments):
    """One partition of the keys of every unit, and the number of each unit's first document."""

    keys: tuple[Section, ...]
    bases: tuple[int, ...]


class GroupsResult(TypedDict):
    """How many edges were found."""

    edges: int


def find_groups(args: GroupsArgs, store: Store) -> Output[GroupsResult]:
    found = [arrays.read(section, store)["keys"] for section in args.keys]
    high = np.concatenate([rows["high"] for rows in found])
    low = np.concatenate([rows["low"] for rows in found])
    numbered = zip(found, args.bases, strict=True)
    document = np.concatenate([rows["document"].astype(np.int64) + base for rows, base in numbered])
    del found
    left, right = dedup.group_edges(high, low, document)
    return Output(arrays.pack({"left": left, "right": right}), {"edges": len(left)})


@dataclass(frozen=True, slots=True)
class ComponentsArgs(Arguments):
    """Objects with edges, and the units' bounds."""

    edges: tuple[str, ...]
    bases: tuple[int, ...]


def find_components(args: ComponentsArgs, store: Store) -> Streamed[Sections]:
    """(document, component) of every linked document, by document: rows without a container."""

    def pairs() -> Iterator[dedup.Pairs]:
        for address in args.edges:
            found = arrays.unpack(store.read(address))
            yield found["left"], found["right"]

    def write(sink: Sink) -> Sections:
        bounds, folder = np.zeros(len(args.bases), np.int64), store.spill_folder()
        for nodes, roots in dedup.components(pairs(), nodes=args.bases[-1], folder=folder):
            rows = np.empty(len(nodes), _LABEL)
            rows["document"], rows["root"] = nodes, roots
            sink.write(rows)
            bounds += np.searchsorted(nodes, args.bases)
        return {"bounds": (bounds * _LABEL.itemsize).tolist()}

    return Streamed(write, args.bases[-1] * _LABEL.itemsize)


@dataclass(frozen=True, slots=True)
class MembersArgs(Arguments):
    """A unit, and the components of those of its documents that are linked."""

    unit: DocumentUnit
    labels: Section
    parts: int


def collect_members(args: MembersArgs, store: Store) -> Output[Sections]:
    """The linked documents of one unit, ordered by the hash partition of their component."""
    documents = arrays.read(args.unit.documents, store)
    labels = np.frombuffer(store.read(*args.labels), _LABEL)
    part = dedup.part_of(labels["root"].astype(np.uint64) * _GOLDEN, args.parts)
    order, cuts = dedup.by_part(part, args.parts)
    labels = labels[order]
    at = labels["document"] - args.unit.base
    columns = {
        **{name: documents[name][at] for name in _MEMBER},
        **{name: labels[name] for name in ("document", "root")},
        **{n: arrays.arrow_texts(documents, n).take(pa.array(at)) for n in ("id", "date")},
    }
    data, bounds = arrays.pack_ranges(columns, cuts)
    return Output(data, {"bounds": bounds})


@dataclass(frozen=True, slots=True)
class ChoiceArgs(Arguments):
    """The members of one partition of the components, and the rules of the choice."""

    members: tuple[Section, ...]
    bases: tuple[int, ...]
    train_through: int
    duplicates: Duplicates


def choose_representatives(args: ChoiceArgs, store: Store) -> Output[Sections]:
    """Decisions on whole components, ordered by unit."""
    import polars as pl

    frames = []
    for found in (arrays.read(section, store) for section in args.members):
        texts = {name: pl.Series(arrays.arrow_texts(found, name)) for name in ("id", "date")}
        frames.append(pl.DataFrame({name: found[name] for name in _COLUMNS} | texts))
    # An empty date is none.
    members = pl.concat(frames).with_columns(date=pl.when(pl.col("date") != "").then("date"))
    decided = dedup.decide(members, train_through=args.train_through, duplicates=args.duplicates)
    names = pc.cast(decided["representative"].to_arrow(), pa.large_string())
    plain = decided.drop("representative")
    columns = {name: plain[name].to_numpy() for name in plain.columns} | {"representative": names}
    cuts = np.searchsorted(columns["document"], args.bases).tolist()
    data, bounds = arrays.pack_ranges(columns, cuts)
    return Output(data, {"bounds": bounds})


@dataclass(frozen=True, slots=True)
class DecideArgs(Arguments):
    """A unit and what was decided on the linked ones among its documents."""

    unit: DocumentUnit
    linked: tuple[Section, ...]
    train_through: int


def decide_unit(args: DecideArgs, store: Store) -> Output[Nothing]:
    """The decisions on all documents of a unit, by row."""
    documents = arrays.read(args.unit.documents, store)
    linked = [arrays.read(section, store) for section in args.linked]
    status = documents["status"]
    late = documents["dump"] > args.train_through
    columns: dict[str, Any] = {
        "kept": status == FINE,
        "reason": np.where(status == FINE, dedup.UNIQUE, NEAR + 1 + status).astype(np.uint8),
        "repeated": np.zeros(len(status), np.bool_),
        "component_high": documents["content_high"].copy(),
        "component_low": documents["content_low"].copy(),
    }
    number = np.concatenate([np.empty(0, np.int64), *(part["document"] for part in linked)])
    order = np.argsort(number, kind="stable")
    at = number[order] - args.unit.base
    if len(at):
        for name in _LINKED:
            columns[name][at] = np.concatenate([part[name] for part in linked])[order]
        late[at] = np.concatenate([part["validation"] for part in linked])[order]
    partition = np.where(status == IGNORED, OUTSIDE, np.where(late, VALIDATION, TRAIN))
    names = [arrays.arrow_texts(part, "representative") for part in linked]
    named = pa.concat_arrays([pa.array([], pa.large_string()), *names]).take(pa.array(order))
    columns |= {"partition": partition.astype(np.uint8), "linked": at, "representative": named}
    return Output(arrays.pack(columns), {})


GROUPS: Final = Stage("fineweb-groups", 2, find_groups)
COMPONENTS: Final = Stage("fineweb-components", 3, find_components)
MEMBERS: Final = Stage("fineweb-members", 2, collect_members)
REPRESENTATIVES: Final = Stage("fineweb-representatives", 2, choose_representatives)
DECIDED: Final = Stage("fineweb-decided", 1, decide_unit)


def resolve(
    job: Job,
    units: Sequence[DocumentUnit],
    keys: Sequence[Record[KeysResult]],
    *,
    train_through: int,
    duplicates: Duplicates,
) -> list[DocumentUnit]:
    bounds = bounds_of(units)
    # Section 0 has the documents, the last one tokens if there are any.
    parts = range(1, len(keys[0].result["bounds"]) - (2 if units[0].tokens else 1))
    args = (GroupsArgs(sections(keys, part), bounds[:-1]) for part in parts)
    groups = run_parts(job, GROUPS, "keys", args)
    edges = ComponentsArgs(tuple(r.address for r in groups if r.result["edges"]), bounds)
    (labels,) = job.run(COMPONENTS, [COMPONENTS.unit("all edges", edges)])
    # From here on of linked documents only.
    count = partitions_for(labels.result["bounds"][-1] // _LABEL.itemsize)
    linked = (MembersArgs(unit, Section.of(labels, n), count) for n, unit in enumerate(units))
    members = run_units(job, MEMBERS, units, linked)
    choices = (
        ChoiceArgs(sections(members, part), bounds, train_through, duplicates)
        for part in range(count)
    )
    chosen = run_parts(job, REPRESENTATIVES, "components", choices)
    found = (DecideArgs(u, sections(chosen, n), train_through) for n, u in enumerate(units))
    decided = run_units(job, DECIDED, units, found)
    return [replace(u, decided=r.address) for u, r in zip(units, decided, strict=True)]
