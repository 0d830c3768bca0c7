"""Intervals for what is counted and for what is averaged over seeds.

- `wilson` is own code, because the mean over seeds is no whole number of successes, which SciPy's
  interval asks for; `paired_t` is for paired differences over few seeds.
- `two_way`: scores by arm and by block (a seed pair), y = arm + block + error, by least squares, so
  that missing runs are allowed. One residual for all arms: 10 degrees of freedom for six arms and
  three blocks, where a paired difference of two arms has 2.
- Quantiles are computed here: loading `scipy.special` takes 0.2 s of CPU, `scipy.stats` a second.
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


def _around(middle: float, half: float) -> Interval:
    return middle, middle - half, middle + half


def paired_t(differences: Sequence[float]) -> Interval | None:
    """Mean and 95% interval of paired differences; None with fewer than two pairs."""
    if len(differences) < 2:
        return None
    error = float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
    return _around(float(np.mean(differences)), _student(len(differences) - 1) * error)


def _student(freedom: int) -> float:
    """The 97.5% quantile of Student's t: the range of two is |t|√2."""
    return _studentized_range(2, freedom) / math.sqrt(2)


@functools.cache
def _studentized_range(arms: int, freedom: int) -> float:
    """Its 95% quantile q: ∫ f(s) ∫ k φ(z) (Φ(z) − Φ(z − qs))^(k−1) dz ds = 0.95, by trapezoids.

    s = exp(u) is the root of a mean square of so many degrees of freedom. Integrands that fall off
    on both sides make trapezoids exact to 1e-8 of q: tests/eval/test_intervals.py asks SciPy.
    """
    deviation = 1 / math.sqrt(2 * freedom)
    u = np.arange(-8 * deviation - 28 / freedom, 8 * deviation, deviation / 4)[:, None]
    z = np.arange(-8, 8, 0.25)
    weights = np.exp(freedom * (u - np.expm1(2 * u) / 2) - z**2 / 2)
    weights *= arms / weights.sum()
    below = _normal(z)

    def excess(log_q: float) -> float:
        inside = below - _normal(z - np.exp(u + log_q))
        return math.log(1 - float((weights * inside ** (arms - 1)).sum())) - math.log(1 - _LEVEL)

    before, now = 1.0, 1.2  # secants: the tail is nearly a straight line in these logarithms
    last, found = excess(before), excess(now)
    while abs(now - before) > 1e-10:
        before, now = now, now - found * (now - before) / (found - last)
        last, found = found, excess(now)
    return math.exp(now)


def _normal(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return 0.5 + 0.5 * np.asarray(_erf(x * math.sqrt(0.5)), np.float64)


_erf: Final = np.frompyfunc(math.erf, 1, 1)


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

    def contrast(self, weights: Mapping[str, float], quantile: float | None = None) -> Interval:
        """A weighted sum of arms (weights sum to zero) with its 95% interval."""
        vector = np.array([weights.get(arm, 0.0) for arm in self.arms])
        error = self.residual * math.sqrt(float(vector @ self.unscaled @ vector))
        return _around(float(vector @ self.effects), (quantile or _student(self.freedom)) * error)

    def all_pairs(self) -> Iterator[tuple[str, str, Interval]]:
        """Second minus first for every two arms; the 95% holds for all of them together (Tukey)."""
        quantile = _studentized_range(len(self.arms), self.freedom) / math.sqrt(2)
        for first, second in itertools.combinations(self.arms, 2):
            yield first, second, self.contrast({second: 1.0, first: -1.0}, quantile)


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
    residual = math.sqrt(float(((values - design @ fitted) ** 2).sum()) / freedom)
    size = len(arms)
    return Layout(tuple(arms), fitted[:size], inverse[:size, :size], residual, freedom)


def detectable(
    residual: float, weights: Mapping[str, float], *, arms: int, blocks: int
) -> float | None:
    """The size of a contrast that a whole layout tells from zero in 80% of repetitions."""
    freedom = (arms - 1) * (blocks - 1)
    if freedom < 1:
        return None
    from scipy.special import nctdtrinc

    shift = float(nctdtrinc(freedom, 1 - _POWER, _student(freedom)))
    return shift * residual * math.sqrt(sum(w * w for w in weights.values()) / blocks)
