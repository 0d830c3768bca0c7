"""Intervals for what is counted and for what is averaged over seeds.

- `wilson` is own code, because the mean over seeds is no whole number of successes, which SciPy's
  interval asks for; `paired_t` is for paired differences over few seeds.
- `two_way`: scores by arm and by block (a seed pair), y = arm + block + error, by least squares, so
  that missing runs are allowed. One residual for all arms: 10 degrees of freedom for six arms and
  three blocks, where a paired difference of two arms has 2.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Interval = tuple[float, float, float]
"""Estimate, lower and upper end at 95%."""

_Z95: Final = 1.959963984540054
_LEVEL: Final = 0.95
_POWER: Final = 0.8


def wilson(successes: float, total: int) -> tuple[float, float]:
    """The 95% Wilson score interval of a share; (0, 1) when nothing was tried."""
    if not 0 <= successes <= total:
        raise ValueError(f"{successes} successes of {total}")
    if total == 0:
        return 0.0, 1.0
    share, z2 = successes / total, _Z95**2
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = _Z95 / (1 + z2 / total) * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def paired_t(differences: Sequence[float]) -> Interval | None:
    """Mean and 95% interval of paired differences; None with fewer than two pairs."""
    if len(differences) < 2:
        return None
    mean = float(np.mean(differences))
    error = float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
    half = _student(len(differences) - 1) * error
    return mean, mean - half, mean + half


@functools.cache
def _student(freedom: int) -> float:
    """The quantile of Student's t for a 95% interval."""
    from scipy.special import stdtrit  # `scipy.stats` takes a second to load

    return float(stdtrit(freedom, (1 + _LEVEL) / 2))


@dataclass(frozen=True, slots=True)
class Layout:
    """A fitted two-way layout."""

    arms: tuple[str, ...]
    effects: np.ndarray[Any, Any]
    """Fitted level of each arm; only differences have a meaning of their own."""
    unscaled: np.ndarray[Any, Any]
    """Covariance of the effects, but for the residual variance."""
    residual: float
    """Standard deviation of what arm and block leave unexplained."""
    freedom: int

    def contrast(self, weights: Mapping[str, float]) -> Interval:
        """A weighted sum of arms (weights sum to zero) with its 95% interval."""
        estimate, error = self._contrast(weights)
        half = _student(self.freedom) * error
        return estimate, estimate - half, estimate + half

    def all_pairs(self) -> Iterator[tuple[str, str, Interval]]:
        """Second minus first for every two arms; the 95% holds for all of them together (Tukey)."""
        from scipy import stats

        quantile = float(stats.studentized_range.ppf(_LEVEL, len(self.arms), self.freedom))
        for first, second in itertools.combinations(self.arms, 2):
            estimate, error = self._contrast({second: 1.0, first: -1.0})
            half = quantile * error / math.sqrt(2)
            yield first, second, (estimate, estimate - half, estimate + half)

    def _contrast(self, weights: Mapping[str, float]) -> tuple[float, float]:
        vector = np.array([weights.get(arm, 0.0) for arm in self.arms])
        variance = float(vector @ self.unscaled @ vector)
        return float(vector @ self.effects), self.residual * math.sqrt(variance)


def two_way(scores: Mapping[str, Mapping[Any, float]]) -> Layout | None:
    """The layout of scores by arm and block; None if there are too few to judge noise by."""
    arms = [arm for arm in scores if scores[arm]]
    blocks = sorted({block for arm in arms for block in scores[arm]})
    cells = [(a, blocks.index(b), y) for a, arm in enumerate(arms) for b, y in scores[arm].items()]
    design = np.zeros((len(cells), len(arms) + max(0, len(blocks) - 1)))
    for row, (arm, block, _) in enumerate(cells):
        design[row, arm] = 1
        if block:
            design[row, len(arms) + block - 1] = 1
    values = np.array([value for *_, value in cells])
    freedom = len(cells) - design.shape[1]
    if freedom < 1 or np.linalg.matrix_rank(design) < design.shape[1]:  # arms that share no block
        return None
    inverse = np.linalg.pinv(design.T @ design)
    fitted = inverse @ design.T @ values
    squares = float(((values - design @ fitted) ** 2).sum())
    size = len(arms)
    residual = math.sqrt(squares / freedom)
    return Layout(tuple(arms), fitted[:size], inverse[:size, :size], residual, freedom)


def detectable(
    residual: float, weights: Mapping[str, float], *, arms: int, blocks: int
) -> float | None:
    """The size of a contrast that a whole layout tells from zero in 80% of repetitions."""
    from scipy import optimize, stats

    freedom = (arms - 1) * (blocks - 1)
    if freedom < 1:
        return None
    bound = stats.t.ppf((1 + _LEVEL) / 2, freedom)
    shift = optimize.brentq(lambda x: stats.nct.sf(bound, freedom, x) - _POWER, 0.0, 1e3)
    return float(shift) * residual * math.sqrt(sum(w * w for w in weights.values()) / blocks)
