"""Connected components of a graph given as edges, in memory or spilled to disk.

- The label of a component is its smallest node, whatever the order of the edges.
- `connect` needs about 100 bytes per edge. `connect_spilled` alternates large-star and small-star
  steps (Kiveris et al. 2014) over files, so it needs memory for one part of the nodes only.
- Both give (nodes, labels) sorted by node, for the nodes that an edge links to another.

Usage: `nodes, labels = connect(np.array([5, 7]), np.array([1, 5]))  # labels: 1 1 1`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

Nodes = np.ndarray[Any, np.dtype[np.int64]]
Pairs = tuple[Nodes, Nodes]

_WRITE: Final = 1 << 21  # pairs buffered per write


def connect(left: Nodes, right: Nodes) -> Pairs:
    """Components of the edges (left[i], right[i]), by hooking to smaller labels and shortcuts."""
    left, right = left[left != right], right[left != right]
    nodes, compact = np.unique(np.concatenate([left, right]), return_inverse=True)
    a, b = np.split(compact.reshape(-1), 2)
    labels = np.arange(len(nodes))
    while len(a):
        low, high = np.minimum(labels[a], labels[b]), np.maximum(labels[a], labels[b])
        open_edges = low != high
        a, b, low, high = a[open_edges], b[open_edges], low[open_edges], high[open_edges]
        np.minimum.at(labels, high, low)
        while not np.array_equal(labels, shorter := labels[labels]):
            labels = shorter
    return nodes, nodes[labels]


def connect_spilled(
    edges: Iterable[Pairs], *, nodes: int, parts: int, folder: Path | None = None
) -> Iterator[Pairs]:
    """Components of edges between nodes 0..nodes-1, one range of nodes after another."""
    with tempfile.TemporaryDirectory(prefix="components-", dir=folder) as scratch:
        rounds = _Rounds(Path(scratch), max(1, -(-nodes // parts)), parts)
        rounds.write(edges, both=True)
        while True:
            moved = rounds.step(_large_star, both=False)
            if moved + rounds.step(_small_star, both=True) == 0:
                break
        yield from rounds.read_stars()


class _Rounds:
    """Edge files of one round, one per range of nodes; a step reads them and writes the next."""

    def __init__(self, folder: Path, width: int, parts: int) -> None:
        self._folder, self._width, self._parts, self._round = folder, width, parts, 0

    def _file(self, part: int, round_: int) -> Path:
        return self._folder / f"{round_:03d}-{part:05d}"

    def write(self, edges: Iterable[Pairs], *, both: bool) -> None:
        """Append each edge to the file of its larger node, or of both its nodes."""
        for high, low in edges:
            for start in range(0, len(high), _WRITE):
                a, b = high[start : start + _WRITE], low[start : start + _WRITE]
                a, b = a[a != b], b[a != b]
                self._append(np.maximum(a, b), np.minimum(a, b))
                if both:
                    self._append(np.minimum(a, b), np.maximum(a, b))

    def _append(self, node: Nodes, other: Nodes) -> None:
        part = node // self._width
        order = np.argsort(part, kind="stable")
        pairs = np.stack([node[order], other[order]], axis=1)
        bounds = np.searchsorted(part[order], np.arange(self._parts + 1))
        for index in np.flatnonzero(np.diff(bounds)).tolist():
            with self._file(index, self._round).open("ab") as file:
                file.write(pairs[bounds[index] : bounds[index + 1]].tobytes())

    def read(self, part: int, round_: int) -> Pairs:
        """Distinct (node, other) pairs of a range, sorted."""
        path = self._file(part, round_)
        if not path.exists():
            return np.empty(0, np.int64), np.empty(0, np.int64)
        pairs = np.fromfile(path, np.int64).reshape(-1, 2)
        order = np.lexsort((pairs[:, 1], pairs[:, 0]))
        pairs = pairs[order]
        new = np.ones(len(pairs), np.bool_)
        new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
        return pairs[new, 0], pairs[new, 1]

    def step(self, star: Any, *, both: bool) -> int:
        """Replace all edges by what `star` makes of them; how many moved to a smaller node."""
        before, self._round = self._round, self._round + 1
        moved = 0
        for part in range(self._parts):
            high, low, changes = star(*self.read(part, before))
            moved += changes
            self.write([(high, low)], both=both)
            self._file(part, before).unlink(missing_ok=True)
        return moved

    def read_stars(self) -> Iterator[Pairs]:
        """Labels, when every edge leads from a node to its component's smallest node."""
        for part in range(self._parts):
            node, other = self.read(part, self._round)
            centre = np.minimum(node, other)
            first = np.ones(len(node), np.bool_)
            first[1:] = node[1:] != node[:-1]
            yield node[first], centre[first]


def _smallest(node: Nodes, other: Nodes) -> tuple[Nodes, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Per pair, the smallest of its node's others; pairs are sorted by (node, other)."""
    first = np.ones(len(node), np.bool_)
    first[1:] = node[1:] != node[:-1]
    return other[first][np.cumsum(first) - 1], first


def _large_star(node: Nodes, other: Nodes) -> tuple[Nodes, Nodes, int]:
    """Link every larger neighbour to the smallest node around (both directions given)."""
    smallest, _ = _smallest(node, other)
    target = np.minimum(smallest, node)
    larger = other > node
    return other[larger], target[larger], int((target[larger] != node[larger]).sum())


def _small_star(node: Nodes, other: Nodes) -> tuple[Nodes, Nodes, int]:
    """Link a node and its smaller neighbours to the smallest (larger-to-smaller pairs given)."""
    smallest, first = _smallest(node, other)
    moving = ~first
    high = np.concatenate([node[first], other[moving]])
    low = np.concatenate([smallest[first], smallest[moving]])
    return high, low, int(moving.sum())
