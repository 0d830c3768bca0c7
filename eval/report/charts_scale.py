"""Scales and numbers for charts: where a value stands, which ticks to draw, how to write it.

- Ticks are 1, 2, 2.5 or 5 times a power of ten, or powers of the axis' base on a log axis.
- Coordinates are written with one decimal, so equal inputs give equal bytes everywhere.

Usage: `scale = Scale(Axis(label="T", log=True), [256, 8192], 50, 700); scale(1024)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

_SUFFIXES: Final = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def plain(value: float) -> str:
    """A number as people write it: thousands separated, no trailing zeros."""
    if value == 0:
        return "0"
    if abs(value) >= 1000 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.3g}"


def short(value: float) -> str:
    """A number with k, M, B or T, as the paper writes operation counts."""
    for size, suffix in _SUFFIXES:
        if abs(value) >= size:
            scaled = value / size
            return f"{scaled:,.0f}{suffix}" if scaled >= 1000 else f"{scaled:.3g}{suffix}"
    return plain(value)


def paper_macs(value: float) -> str:
    """Two decimals and B or T: the form of the paper's tables."""
    return f"{value / 1e12:.2f}T" if value >= 1e12 else f"{value / 1e9:.2f}B"


def coordinate(value: float) -> str:
    """A coordinate in an SVG, as short as one decimal allows."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """What an axis shows; `low` and `high` widen the range that the data gives."""

    label: str
    log: bool = False
    base: int = 10
    low: float | None = None
    high: float | None = None
    text: Callable[[float], str] = plain
    margin: float = 0.0
    """Share of the range to leave free at both ends."""
    rounded: bool = False
    """End the axis on ticks instead of on the data."""
    counts: bool = False
    """Ticks at whole numbers only."""


class Scale:
    """Maps values to coordinates between `start` and `stop`."""

    def __init__(
        self, axis: Axis, values: Sequence[float], start: float, stop: float, wanted: int = 5
    ) -> None:
        known = [*values, *(v for v in (axis.low, axis.high) if v is not None)]
        low, high = min(known), max(known)
        if low == high:
            low, high = (low / 2, high * 2) if axis.log else (low - 0.5, high + 0.5)
        if axis.log:
            ratio = (high / low) ** axis.margin
            low, high = low / ratio, high * ratio
        else:
            low, high = low - axis.margin * (high - low), high + axis.margin * (high - low)
        self.axis = axis
        self.start, self.stop = start, stop
        if axis.log:
            self.low, self.high, self.ticks = _log_range(low, high, axis, wanted)
        else:
            self.low, self.high, self.ticks = _linear_range(low, high, axis, wanted)

    def __call__(self, value: float) -> float:
        """The coordinate of a value."""
        if self.axis.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)


def _linear_range(
    low: float, high: float, axis: Axis, wanted: int
) -> tuple[float, float, list[float]]:
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough * 0.999)
    step = max(1.0, step) if axis.counts else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [round(index * step, 12) for index in range(first, last + 1)]
    if axis.rounded:
        return ticks[0], ticks[-1], ticks
    return low, high, [tick for tick in ticks if low - step / 1e6 <= tick <= high + step / 1e6]


def _log_range(
    low: float, high: float, axis: Axis, wanted: int
) -> tuple[float, float, list[float]]:
    base = axis.base
    first = math.floor(math.log(low, base) + 1e-9)
    last = math.ceil(math.log(high, base) - 1e-9)
    every = max(1, math.ceil((last - first) / max(wanted, 2)))
    ticks = [float(base) ** power for power in range(first, last + 1, every)]
    if base == 10 and last - first <= 2:
        ticks = [m * 10.0**power for power in range(first, last + 1) for m in (1, 2, 5)]
    if axis.rounded:
        ends = [float(base) ** power for power in (first - 1, first, last, last + 1)]
        low = max(tick for tick in (*ticks, *ends) if tick <= low)
        high = min(tick for tick in (*ticks, *ends) if tick >= high)
    return low, high, [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
