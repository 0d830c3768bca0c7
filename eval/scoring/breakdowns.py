"""Where a model is good or bad: the same NLLs by module, difficulty, position and directory.

- Every breakdown divides the same tokens: its sums and counts add up to the total's.
- Positions are exact up to 15 and in powers of two from there on.

Usage: `breakdowns(scored, stream, lock)["module"]["numbers__gcd"].nll`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tangobench.eval.scoring.tally import Scored, Tally
from tangobench.model.training.loader import Stream
from tangobench.pipeline.core.lock import Lock

NDArray = np.ndarray[Any, Any]
Breakdowns = dict[str, dict[str, Tally]]

_EXACT: Final = 16


def breakdowns(scored: Scored, stream: Stream, lock: Lock) -> Breakdowns:
    """All breakdowns that a dataset's columns allow."""
    found: Breakdowns = {}
    if lock.name == "dm_math":
        found |= _by_combination(scored, stream, lock)
    if lock.name == "lean":
        found["directory"] = _by_directory(scored, stream)
    prompted = "target_start" in _columns(stream)
    found["position"] = _by_position(scored, scored.rank if prompted else scored.position)
    return found


def _columns(stream: Stream) -> list[str]:
    return [name for name in stream.table[0] if name != "tokens"] if len(stream) else []


def _by_combination(scored: Scored, stream: Stream, lock: Lock) -> Breakdowns:
    names: list[str] = lock.notes["combinations"]  # MODULE/LEVEL; a module is GROUP__NAME
    combination = stream.table.column("combination").astype(np.int64)[scored.row]
    parts = {
        "module": [name.split("/")[0] for name in names],
        "difficulty": [name.split("/")[1] for name in names],
        "group": [name.split("__")[0] for name in names],
    }
    found = {"combination": scored.by(combination, names)}
    for part, labels in parts.items():
        distinct = list(dict.fromkeys(labels))
        label_of = np.array([distinct.index(label) for label in labels])
        found[part] = scored.by(label_of[combination], distinct)
    return found


def _by_directory(scored: Scored, stream: Stream) -> dict[str, Tally]:
    """By the first two levels: Mathlib/Algebra, Mathlib/Topology, …"""
    folders = [
        "/".join(stream.table.value(row, "path").split("/")[:-1][:2]) for row in range(len(stream))
    ]
    names = sorted(set(folders))
    place = {name: number for number, name in enumerate(names)}
    label_of = np.array([place[folder] for folder in folders], np.int64)
    return scored.by(label_of[scored.row], names)


def _by_position(scored: Scored, position: NDArray) -> dict[str, Tally]:
    powers = np.maximum(position, 1).astype(np.float64)
    octave = np.floor(np.log2(powers)).astype(np.int64)
    labels = np.where(position < _EXACT, position, _EXACT + octave - 4)
    last = int(labels.max()) if len(labels) else 0
    names = [str(p) for p in range(_EXACT)]
    names += [f"{1 << o}-{(2 << o) - 1}" for o in range(4, max(5, last - _EXACT + 5))]
    return scored.by(labels, names)
