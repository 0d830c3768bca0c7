"""Exact dedup of FineWeb-Edu as stages: a shuffle by key, then one by component.

- Documents that share a normalised URL or their exact bytes are linked, transitively.
- A component belongs to the partition of its earliest member: dump, date (none is last), id,
  content key, URL key. Rows with equal dump, id, content and URL are one record, met twice.
- The label of a component is its smallest node. Edges are linked in bounded memory, with a file of
  8 bytes per document.
- Keys by hash partition -> edges -> components -> linked documents by component -> decisions ->
  the decisions on all documents of a unit, read by all that follows.
- Memory is bounded by the partitions, whose number follows from the row count; neither that
  number nor the units' borders can change a decision.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tangobench.pipeline.core import shards
from tangobench.pipeline.core.build import Job, Nothing, Output, Record, Stage, Streamed
from tangobench.pipeline.core.hashing import Sink
from tangobench.pipeline.core.shards import NDArray, Section, Sections
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.fineweb import units as docs
from tangobench.pipeline.fineweb.keys import (
    FINE,
    IGNORED,
    KeysResult,
    by_part,
    changes,
    part_of,
    partitions_for,
)
from tangobench.pipeline.fineweb.spec import Duplicates

if TYPE_CHECKING:
    import polars as pl

Pairs = tuple[NDArray, NDArray]

_KEYS: Final = ["content_high", "content_low", "url_high", "url_low"]
_ORDER: Final = ["dump", "date", "id", *_KEYS, "document"]
TOGETHER: Final = 1 << 22  # edges that are linked at once, about 100 bytes each


def group_edges(high: NDArray, low: NDArray, document: NDArray) -> Pairs:
    """Edges from each document to the first with the same key; one key partition, whole."""
    order = np.argsort(high)
    high = high[order]
    equal = high[1:] == high[:-1]
    members = np.zeros(len(high), np.bool_)  # only keys that occur twice go on
    members[1:] = equal
    members[:-1] |= equal
    order, high = order[members], high[members]
    low, document = low[order], document[order]
    first = changes(high)
    if (low[1:] != low[:-1])[~first[1:]].any():  # keys that agree in one half only
        order = np.lexsort((low, high))
        document, first = document[order], changes(high[order], low[order])
    if len(document) == 0:
        return document, document
    leader = np.minimum.reduceat(document, np.flatnonzero(first))[np.cumsum(first) - 1]
    others = document != leader
    return document[others], leader[others]


def connect(left: NDArray, right: NDArray) -> Pairs:
    """(nodes, labels), sorted by node, of all nodes that the edges (left[i], right[i]) link."""
    left, right = left[left != right], right[left != right]
    nodes, compact = np.unique(np.concatenate([left, right]), return_inverse=True)
    a, b = np.split(compact.reshape(-1), 2)
    labels = np.arange(len(nodes))
    while len(a):  # hook to smaller labels, then shorten all paths
        low, high = np.minimum(labels[a], labels[b]), np.maximum(labels[a], labels[b])
        open_edges = low != high
        a, b, low, high = a[open_edges], b[open_edges], low[open_edges], high[open_edges]
        np.minimum.at(labels, high, low)
        while not np.array_equal(labels, shorter := labels[labels]):
            labels = shorter
    return nodes, nodes[labels]


def components(
    edges: Iterable[Pairs], *, nodes: int, folder: Path | None = None
) -> Iterator[Pairs]:
    """The same for edges between nodes 0..nodes-1, one range of nodes after another.

    Union-find over a mapped file: 0 for a node without edges, else 1 + how far below the node its
    parent is. A parent is never above its child, so the last one is the component's smallest node.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        # Written to a hole, a mapped file on a full disk would kill the process.
        os.posix_fallocate(file.fileno(), 0, 8 * max(1, nodes))
        up = np.memmap(file, np.int64, "r+", shape=(max(1, nodes),))

        def roots(found: NDArray) -> NDArray:
            while (step := up[found]).max(initial=0) > 1:
                found = found - np.maximum(step - 1, 0)
            return found

        for left, right in edges:
            for start in range(0, len(left), TOGETHER):
                ends = np.stack([side[start : start + TOGETHER] for side in (left, right)])
                ends = ends[:, ends[0] != ends[1]]
                tops = roots(ends)
                up[ends] = ends - tops + 1  # shorter ways for the next edges
                some, labels = connect(*tops)
                up[some] = some - labels + 1
        for first in range(0, nodes, TOGETHER):
            linked = first + np.flatnonzero(up[first : first + TOGETHER])
            yield linked, roots(linked)


def decide(members: pl.DataFrame, *, train_through: int, duplicates: Duplicates) -> pl.DataFrame:
    """What becomes of the documents of whole components.

    `members` has `root` (the component) and the columns of `_ORDER`; the answer has one row per
    document: `document`, `repeated` (the same record met before), `kept`, `reason` (a place in
    `REASONS`), `validation`, `representative`, and the component's name as two numbers: its
    earliest member's content key, which no other component can have.
    """
    import polars as pl  # 0.17 s, in the one stage that needs it

    ordered = members.sort("root", maintain_order=True)
    starts = np.flatnonzero(changes(ordered["root"].to_numpy()))
    leader = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(ordered))))
    earliest = _earliest(ordered, starts, leader)
    leaders = ordered[earliest]
    first = np.zeros(len(ordered), np.bool_)
    first[earliest] = True
    validation = (leaders["dump"].to_numpy() > train_through)[leader]
    reason = _reasons(ordered, leaders, leader, first)
    kept = first
    if duplicates == "reassign":
        moved = (ordered["dump"].to_numpy() > train_through) != validation
        kept = np.ones(len(ordered), np.bool_)
        reason = np.where(first, docs.EARLIEST, np.where(moved, docs.REASSIGNED, reason))
    return pl.DataFrame(
        {
            "document": ordered["document"],
            "repeated": _repeated(ordered),
            "kept": kept,
            "reason": reason.astype(np.uint8),
            "validation": validation,
            "representative": leaders["id"].gather(leader),
            "component_high": leaders["content_high"].gather(leader),
            "component_low": leaders["content_low"].gather(leader),
        }
    ).sort("document")


def _earliest(ordered: pl.DataFrame, starts: NDArray, group: NDArray) -> NDArray:
    """The row of each group's earliest member; most groups need their dumps only."""
    import polars as pl

    dump = ordered["dump"].to_numpy()
    least = np.minimum.reduceat(dump, starts) if len(starts) else dump
    places = np.flatnonzero(dump == least[group])
    groups = group[places]
    found = places[np.searchsorted(groups, np.arange(len(starts)))]
    tied = places[np.bincount(groups, minlength=len(starts))[groups] > 1]
    if len(tied):
        few = ordered[tied].with_columns(place=pl.Series(tied), group=pl.Series(group[tied]))
        few = few.sort(["group", *_ORDER], nulls_last=True)
        few = few.unique("group", keep="first", maintain_order=True)
        found[few["group"].to_numpy()] = few["place"].to_numpy()
    return found


def _repeated(ordered: pl.DataFrame) -> NDArray:
    """Rows whose record came before; the full comparison is needed only where ids repeat."""
    import polars as pl

    repeated = np.zeros(len(ordered), np.bool_)
    again = np.flatnonzero(ordered["id"].hash().is_duplicated().to_numpy())
    if len(again):
        few = ordered[again].with_columns(place=pl.Series(again))
        few = few.sort(["root", *_ORDER], nulls_last=True)
        same = pl.struct("root", "dump", "id", *_KEYS)
        copies = few.select(same.is_first_distinct()).to_series().not_()
        repeated[few.filter(copies)["place"].to_numpy()] = True
    return repeated


def _reasons(
    ordered: pl.DataFrame, leaders: pl.DataFrame, leader: NDArray, first: NDArray
) -> NDArray:
    """Why a member is not the representative: what it shares with it."""

    def shared(name: str) -> NDArray:
        halves = [f"{name}_high", f"{name}_low"]
        mine = ordered.select(halves).to_numpy()
        equal = (mine == leaders.select(halves).to_numpy()[leader]).all(axis=1)
        return np.asarray(equal & mine.any(axis=1))

    url, content = shared("url"), shared("content")
    return np.select(
        [first, url & content, content, url],
        [docs.EARLIEST, docs.SAME_BOTH, docs.SAME_CONTENT, docs.SAME_URL],
        docs.CHAIN,
    )


_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_LABEL: Final = np.dtype([("document", "<i8"), ("root", "<i8")])
_MEMBER: Final = ("dump", "content_high", "content_low", "url_high", "url_low")
_COLUMNS: Final = (*_MEMBER, "document", "root")
_LINKED: Final = ("kept", "reason", "repeated", "component_high", "component_low")


class GroupsResult(TypedDict):
    """How many edges were found."""

    edges: int


def find_groups(
    keys: tuple[Section, ...], bases: tuple[int, ...], store: Store
) -> Output[GroupsResult]:
    """Edges of one partition of the keys of every unit, whose first documents are `bases`."""
    found = [shards.read(section, store)["keys"] for section in keys]
    high = np.concatenate([rows["high"] for rows in found])
    low = np.concatenate([rows["low"] for rows in found])
    numbered = zip(found, bases, strict=True)
    document = np.concatenate([rows["document"].astype(np.int64) + base for rows, base in numbered])
    del found
    left, right = group_edges(high, low, document)
    return Output(shards.pack({"left": left, "right": right}), {"edges": len(left)})


def find_components(
    edges: tuple[str, ...], bounds: tuple[int, ...], store: Store
) -> Streamed[Sections]:
    """(document, component) of every linked document, by document: rows without a container.

    `edges` are objects with edges, `bounds` those of the units.
    """

    def pairs() -> Iterator[Pairs]:
        for address in edges:
            found = shards.unpack(store.read(address))
            yield found["left"], found["right"]

    def write(sink: Sink) -> Sections:
        ends, folder = np.zeros(len(bounds), np.int64), store.spill_folder()
        for nodes, roots in components(pairs(), nodes=bounds[-1], folder=folder):
            rows = np.empty(len(nodes), _LABEL)
            rows["document"], rows["root"] = nodes, roots
            sink.write(rows)
            ends += np.searchsorted(nodes, bounds)
        return {"bounds": (ends * _LABEL.itemsize).tolist()}

    return Streamed(write, bounds[-1] * _LABEL.itemsize)


def collect_members(
    unit: docs.DocumentUnit, linked: Section, parts: int, store: Store
) -> Output[Sections]:
    """The linked documents of one unit, ordered by the hash partition of their component."""
    documents = shards.read(unit.documents, store)
    labels = np.frombuffer(store.read(*linked), _LABEL)
    part = part_of(labels["root"].astype(np.uint64) * _GOLDEN, parts)
    order, cuts = by_part(part, parts)
    labels = labels[order]
    at = labels["document"] - unit.base
    columns = {
        **{name: documents[name][at] for name in _MEMBER},
        **{name: labels[name] for name in ("document", "root")},
        **{n: shards.arrow_texts(documents, n).take(pa.array(at)) for n in ("id", "date")},
    }
    data, bounds = shards.pack_ranges(columns, cuts)
    return Output(data, {"bounds": bounds})


def choose_representatives(
    members: tuple[Section, ...],
    bounds: tuple[int, ...],
    train_through: int,
    duplicates: Duplicates,
    store: Store,
) -> Output[Sections]:
    """Decisions on the whole components of one partition, ordered by unit."""
    import polars as pl

    frames = []
    for found in (shards.read(section, store) for section in members):
        texts = {name: pl.Series(shards.arrow_texts(found, name)) for name in ("id", "date")}
        frames.append(pl.DataFrame({name: found[name] for name in _COLUMNS} | texts))
    # An empty date is none.
    whole = pl.concat(frames).with_columns(date=pl.when(pl.col("date") != "").then("date"))
    decided = decide(whole, train_through=train_through, duplicates=duplicates)
    names = pc.cast(decided["representative"].to_arrow(), pa.large_string())
    plain = decided.drop("representative")
    columns = {name: plain[name].to_numpy() for name in plain.columns} | {"representative": names}
    cuts = np.searchsorted(columns["document"], bounds).tolist()
    data, ends = shards.pack_ranges(columns, cuts)
    return Output(data, {"bounds": ends})


def decide_unit(
    unit: docs.DocumentUnit, chosen: tuple[Section, ...], train_through: int, store: Store
) -> Output[Nothing]:
    """The decisions on all documents of a unit, by row; `chosen` has those on its linked ones."""
    documents = shards.read(unit.documents, store)
    linked = [shards.read(section, store) for section in chosen]
    status = documents["status"]
    late = documents["dump"] > train_through
    columns: dict[str, Any] = {
        "kept": status == FINE,
        "reason": np.where(status == FINE, docs.UNIQUE, docs.NEAR + 1 + status).astype(np.uint8),
        "repeated": np.zeros(len(status), np.bool_),
        "component_high": documents["content_high"].copy(),
        "component_low": documents["content_low"].copy(),
    }
    number = np.concatenate([np.empty(0, np.int64), *(part["document"] for part in linked)])
    order = np.argsort(number, kind="stable")
    at = number[order] - unit.base
    if len(at):
        for name in _LINKED:
            columns[name][at] = np.concatenate([part[name] for part in linked])[order]
        late[at] = np.concatenate([part["validation"] for part in linked])[order]
    partition = np.where(
        status == IGNORED, docs.OUTSIDE, np.where(late, docs.VALIDATION, docs.TRAIN)
    )
    names = [shards.arrow_texts(part, "representative") for part in linked]
    named = pa.concat_arrays([pa.array([], pa.large_string()), *names]).take(pa.array(order))
    columns |= {"partition": partition.astype(np.uint8), "linked": at, "representative": named}
    return Output(shards.pack(columns), {})


GROUPS: Final = Stage("fineweb-groups", 2, find_groups)
COMPONENTS: Final = Stage("fineweb-components", 3, find_components)
MEMBERS: Final = Stage("fineweb-members", 2, collect_members)
REPRESENTATIVES: Final = Stage("fineweb-representatives", 2, choose_representatives)
DECIDED: Final = Stage("fineweb-decided", 1, decide_unit)


def resolve(
    job: Job,
    units: Sequence[docs.DocumentUnit],
    keys: Sequence[Record[KeysResult]],
    *,
    train_through: int,
    duplicates: Duplicates,
) -> list[docs.DocumentUnit]:
    bounds = docs.bounds_of(units)
    # Section 0 has the documents, the last one tokens if there are any.
    parts = range(1, len(keys[0].result["bounds"]) - (2 if units[0].tokens else 1))
    args = ((docs.sections(keys, part), bounds[:-1]) for part in parts)
    groups = docs.run_parts(job, GROUPS, "keys", args)
    edges = tuple(r.address for r in groups if r.result["edges"])
    (labels,) = job.run(COMPONENTS, [COMPONENTS.unit("all edges", edges, bounds)])
    # From here on of linked documents only.
    count = partitions_for(labels.result["bounds"][-1] // _LABEL.itemsize)
    linked = ((unit, Section.of(labels, n), count) for n, unit in enumerate(units))
    members = docs.run_units(job, MEMBERS, units, linked)
    choices = (
        (docs.sections(members, part), bounds, train_through, duplicates) for part in range(count)
    )
    chosen = docs.run_parts(job, REPRESENTATIVES, "components", choices)
    found = ((u, docs.sections(chosen, n), train_through) for n, u in enumerate(units))
    decided = docs.run_units(job, DECIDED, units, found)
    return [replace(u, decided=r.address) for u, r in zip(units, decided, strict=True)]
