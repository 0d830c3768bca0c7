"""Dedup of documents: keys to groups, groups to components, components to one kept document.

- Documents that share a normalised URL or their exact bytes are linked, transitively.
- A component belongs to the partition of its earliest member: dump, date (none is last), id,
  content key, URL key. Nothing depends on the order of the input or on how it was partitioned.
- Rows with equal dump, id, content and URL are one record, met twice; only the first counts.
- The label of a component is its smallest node. Any number of edges is linked in bounded memory,
  with a file of 8 bytes per document.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from tangobench.pipeline.core.arrays import NDArray
from tangobench.pipeline.fineweb.spec import Duplicates

if TYPE_CHECKING:
    import polars as pl

Pairs = tuple[NDArray, NDArray]

KEY_ROW: Final = np.dtype([("high", "<u8"), ("low", "<u8"), ("document", "<u4")])
REASONS: Final = (
    "unique",
    "earliest",
    "reassigned",
    "duplicate-content",
    "duplicate-url",
    "duplicate-url-and-content",
    "duplicate-chain",
)
UNIQUE, EARLIEST, REASSIGNED, SAME_CONTENT, SAME_URL, SAME_BOTH, CHAIN = range(len(REASONS))
_KEYS: Final = ["content_high", "content_low", "url_high", "url_low"]
_ORDER: Final = ["dump", "date", "id", *_KEYS, "document"]
TOGETHER: Final = 1 << 22  # edges that are linked at once, about 100 bytes each


def part_of(high: NDArray, parts: int) -> NDArray:
    """The hash partition of a key (or any 64-bit hash), 0..parts-1."""
    return ((high >> np.uint64(32)) * np.uint64(parts)) >> np.uint64(32)


def by_part(part: NDArray, parts: int) -> tuple[NDArray, list[int]]:
    """The stable order of rows by partition, and where each partition begins in it."""
    order = np.argsort(part, kind="stable")
    return order, np.searchsorted(part[order], np.arange(parts + 1, dtype=part.dtype)).tolist()


def changes(*columns: NDArray) -> NDArray:
    """True where a row differs from the one before it, and at the first."""
    first = np.ones(len(columns[0]), np.bool_)
    first[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return first


def key_rows(
    url: NDArray, content: NDArray, linked: NDArray, parts: int
) -> tuple[NDArray, list[int]]:
    """(key, document) rows of the linked documents ordered by partition, and where each begins.

    `url` and `content` are (documents, 2) keys; a key of zeros links nothing.
    """
    documents = np.flatnonzero(linked).astype(np.uint32)
    rows = np.empty(2 * len(documents), KEY_ROW)
    both = np.concatenate([url[linked], content[linked]])
    rows["high"], rows["low"] = both[:, 0], both[:, 1]
    rows["document"] = np.tile(documents, 2)
    rows = rows[both.any(axis=1)]
    order, bounds = by_part(part_of(rows["high"], parts), parts)
    return rows[order], bounds


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
        reason = np.where(first, EARLIEST, np.where(moved, REASSIGNED, reason))
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
        [first, url & content, content, url], [EARLIEST, SAME_BOTH, SAME_CONTENT, SAME_URL], CHAIN
    )
