"""Sums of NLLs and counts of answers: what scores are made of, without the models.

- A mean is one division, of a sum by a count.
- Loads no torch: tables are made of tallies that were measured before.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tangobench.eval.intervals import wilson

NDArray = np.ndarray[Any, Any]

# Parts of a combination's name, MODULE/LEVEL, where a module is GROUP__NAME.
PARTS: Final[dict[str, Callable[[str], str]]] = {
    "module": functools.cache(lambda name: name.split("/")[0]),
    "difficulty": functools.cache(lambda name: name.split("/")[1]),
    "group": functools.cache(lambda name: name.split("__")[0]),
}


@dataclass(frozen=True, slots=True)
class Tally:
    """A sum of NLLs and how many they are."""

    sum: float
    count: int

    @property
    def nll(self) -> float:
        return self.sum / self.count if self.count else math.nan

    def as_json(self) -> dict[str, Any]:
        """Plain values; the mean of nothing is null."""
        return {"nll": self.nll if self.count else None, "sum": self.sum, "count": self.count}


@dataclass(frozen=True, slots=True)
class Scored:
    """Every scored token of a split, in row order."""

    nll: NDArray
    row: NDArray
    position: NDArray
    """Place of the token in its row."""
    rank: NDArray
    """Which target of its row it is, from 0."""
    lead: NDArray
    """By how much its logit is above the best other one."""

    def tally(self) -> Tally:
        return Tally(float(self.nll.sum(dtype=np.float64)), len(self.nll))

    def by(self, labels: NDArray, names: list[str]) -> dict[str, Tally]:
        """Sum and count per label; labels without a token are left out."""
        sums = np.bincount(labels, self.nll, minlength=len(names))
        counts = np.bincount(labels, minlength=len(names))
        return {
            name: Tally(float(sums[label]), int(counts[label]))
            for label, name in enumerate(names)
            if counts[label]
        }


@dataclass(slots=True)
class MatchReport:
    """Correct and tried answers by combination number; some wrong answers to look at."""

    names: Sequence[str]
    correct: Counter[int] = field(default_factory=Counter)
    tried: Counter[int] = field(default_factory=Counter)
    wrong: list[dict[str, str]] = field(default_factory=list)

    def shares(self) -> dict[str, dict[str, Any]]:
        return shares_of({n: (self.correct[i], self.tried[i]) for i, n in enumerate(self.names)})

    def as_json(self) -> dict[str, Any]:
        """Plain values, for results."""
        return {"shares": self.shares(), "wrong": self.wrong}


def shares_of(counts: Mapping[str, tuple[int, int]]) -> dict[str, dict[str, Any]]:
    """Shares with intervals: all, by module, difficulty and combination; counts are of the last."""
    groups: dict[str, list[tuple[int, int]]] = {"all": list(counts.values())}
    for name, count in counts.items():
        module, _, difficulty = name.rpartition("/")
        for group in (f"module:{module}", f"difficulty:{difficulty}", f"combination:{name}"):
            groups.setdefault(group, []).append(count)
    found = {}
    for group, members in groups.items():
        correct, tried = (sum(count[i] for count in members) for i in (0, 1))
        low, high = wilson(correct, tried)
        share = correct / tried if tried else None
        found[group] = {"correct": correct, "tried": tried, "share": share}
        found[group] |= {"low": low, "high": high}
    return found
