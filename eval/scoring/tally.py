"""Sums of NLLs and counts of answers: what scores are made of, without the models.

- A mean is one division, of a sum by a count.
- Loads no torch: tables are made of tallies that were measured before.

Usage: `Tally(12.5, 5).nll`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tangobench.eval.intervals import wilson

NDArray = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Tally:
    """A sum of NLLs and how many they are."""

    sum: float
    count: int

    @property
    def nll(self) -> float:
        """The mean, in nats."""
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

    def tally(self, chosen: NDArray | None = None) -> Tally:
        """Sum and count over all tokens, or over the chosen ones."""
        values = self.nll if chosen is None else self.nll[chosen]
        return Tally(float(values.sum(dtype=np.float64)), len(values))

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
        """Share and interval of `all`, of each module, difficulty and combination."""
        groups: dict[str, list[int]] = {"all": list(range(len(self.names)))}
        for index, name in enumerate(self.names):
            module, _, difficulty = name.rpartition("/")
            for group in (f"module:{module}", f"difficulty:{difficulty}", f"combination:{name}"):
                groups.setdefault(group, []).append(index)
        return {name: self._share(members) for name, members in groups.items()}

    def as_json(self) -> dict[str, Any]:
        """Plain values, for results."""
        return {"shares": self.shares(), "wrong": self.wrong}

    def _share(self, members: Sequence[int]) -> dict[str, Any]:
        correct = sum(self.correct[index] for index in members)
        tried = sum(self.tried[index] for index in members)
        low, high = wilson(correct, tried)
        share = correct / tried if tried else None
        return {"correct": correct, "tried": tried, "share": share, "low": low, "high": high}
