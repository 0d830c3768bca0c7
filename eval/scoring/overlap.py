"""How much of a row occurs in training: the share of its runs of tokens that occur there.

- Exact but for collisions of 64-bit hashes: no run is sampled, none is left out. A row that is
  shorter than a run is one run, and equals only an equal row.
- Memory is O(validation): training rows go by one at a time, in any order.
- Runs do not cross rows, so a text that training cuts in two loses the few runs over the cut.

Usage: `shares(validation_rows, training_rows, size=16)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

NDArray = np.ndarray[Any, Any]

_MULTIPLIER: Final = 0x9E3779B97F4A7C15  # odd: multiplying loses nothing
_MASK: Final = (1 << 64) - 1


def runs_of(tokens: NDArray, size: int) -> NDArray:
    """A hash of every `size` tokens in a row; `size` is a power of two."""
    values = tokens.astype(np.uint64) + np.uint64(1)  # 0 fills up rows that are too short
    if len(values) < size:
        values = np.concatenate([values, np.zeros(size - len(values), np.uint64)])
    state, width, power = _mix(values), 1, _MULTIPLIER
    while width < size:  # a run's hash from those of its halves
        state = state[:-width] * np.uint64(power) + state[width:]
        width, power = 2 * width, power * power & _MASK
    return _mix(state)


def _mix(values: NDArray) -> NDArray:
    values = (values ^ (values >> np.uint64(32))) * np.uint64(_MULTIPLIER)
    return np.asarray(values ^ (values >> np.uint64(29)))


def shares(rows: Sequence[NDArray], training: Iterable[NDArray], *, size: int) -> NDArray:
    """Per row: the share of its runs of `size` tokens that occur in some training row."""
    if not rows:
        return np.zeros(0)
    parts = [runs_of(row, size) for row in rows]
    wanted = np.unique(np.concatenate(parts))
    seen = np.zeros(len(wanted), np.bool_)
    for row in training:
        found = runs_of(row, size)
        at = np.searchsorted(wanted, found)
        at[at == len(wanted)] = 0
        seen[at[wanted[at] == found]] = True
    return np.array([seen[np.searchsorted(wanted, part)].mean() for part in parts])
