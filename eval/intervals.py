"""Intervals for what is counted and for what is averaged over seeds.

- `wilson`: for a share of successes; honest at 0 and 1, unlike the normal approximation.
- `paired_t`: for the mean of paired differences over few seeds (Student's t, no normality of large
  samples assumed).

Usage: `low, high = wilson(17, 200)`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

_Z95: Final = 1.959963984540054
# Two-sided 95% quantiles of Student's t by degrees of freedom, up to ten seeds.
_T95: Final = {
    1: 12.706204736,
    2: 4.302652730,
    3: 3.182446305,
    4: 2.776445105,
    5: 2.570581836,
    6: 2.446911851,
    7: 2.364624252,
    8: 2.306004135,
    9: 2.262157163,
}


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


def paired_t(differences: Sequence[float]) -> tuple[float, float, float] | None:
    """Mean and 95% interval of paired differences; None with fewer than two pairs."""
    pairs = len(differences)
    if pairs < 2:
        return None
    mean = statistics.fmean(differences)
    half = _T95[pairs - 1] * statistics.stdev(differences) / math.sqrt(pairs)
    return mean, mean - half, mean + half
