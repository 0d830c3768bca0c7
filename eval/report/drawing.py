"""What charts are drawn with: numbers as text, shapes, scales with ticks, and figures.

- A `Figure` holds two drawings, wide and narrow, so that text keeps its size on a phone.
- Coordinates have one decimal: equal inputs give equal bytes everywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from tangobench.eval.render import Table

WIDE: Final = 1020  # the text column, so that chart text has the size it says
NARROW: Final = 350
_NO_RANGE: Final = 1e-9  # of the values: ticks between closer ones are below a float's precision
_SUFFIXES: Final = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_EXPONENT: Final[dict[int, Callable[[float], float]]] = {0: float, 2: math.log2, 10: math.log10}
_MARKERS: Final = {  # corners around a point; a circle for every other key
    "wango": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "recurrent_transformer": ((0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
    "untied_transformer": ((0, 1.2), (1.1, -0.8), (-1.1, -0.8)),
    "gau": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    "flash": (
        *((-1.3, -0.8), (-0.8, -1.3), (0, -0.5), (0.8, -1.3), (1.3, -0.8), (0.5, 0)),
        *((1.3, 0.8), (0.8, 1.3), (0, 0.5), (-0.8, 1.3), (-1.3, 0.8), (-0.5, 0)),
    ),
}


def plain(value: float) -> str:
    """A number as people write it: thousands separated, no trailing zeros."""
    if abs(value) >= 1000 or float(value).is_integer():
        return f"{value or 0:,.0f}"
    return f"{value:.3g}"


def short(value: float) -> str:
    """A number with k, M, B or T, as the paper writes operation counts."""
    for size, suffix in _SUFFIXES:
        if abs(value) >= size:
            return f"{value / size:{',.0f' if abs(value) >= 1000 * size else '.3g'}}{suffix}"
    return plain(value)


def module_label(module: str) -> str:
    """`algebra__linear_1d` as people read it."""
    return module.replace("__", " · ").replace("_", " ")


def c(value: float) -> str:
    """A coordinate in an SVG, as short as one decimal allows."""
    return f"{value:.1f}".removesuffix(".0")


def text(look: str, x: float, y: float, words: str) -> str:
    return f'<text class="{look}" x="{c(x)}" y="{c(y)}">{escape(words)}</text>'


def line(look: str, x: tuple[float, float], y: tuple[float, float]) -> str:
    ends = f'x1="{c(x[0])}" x2="{c(x[1])}" y1="{c(y[0])}" y2="{c(y[1])}"'
    return f'<line class="{look}" {ends}/>'


def path(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{c(x)},{c(y)}" for x, y in points)


def marker(key: str, x: float, y: float) -> str:
    """The shape of a series around a point."""
    r = 4.5
    if key not in _MARKERS:
        return f'<circle cx="{c(x)}" cy="{c(y)}" r="{r}"/>'
    return f'<polygon points="{path((x + r * a, y + r * b) for a, b in _MARKERS[key])}"/>'


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """What an axis shows; `low` widens the range that the data gives."""

    label: str
    log: int = 0
    """Base of a log axis; its ticks are powers of it. 0: linear."""
    low: float | None = None
    text: Callable[[float], str] = plain
    margin: float = 0.0
    """Share of the range to leave free at both ends."""
    rounded: bool = False
    """End a linear axis on ticks instead of on the data."""
    counts: bool = False
    """Ticks at whole numbers only."""

    @property
    def title(self) -> str:
        return f"{self.label} (log scale)" if self.log else self.label


class Scale:
    """Maps values to coordinates between `start` and `stop`; a log axis maps exponents."""

    def __init__(
        self, axis: Axis, values: Sequence[float], start: float, stop: float, wanted: int = 5
    ) -> None:
        self.axis, self.start, self.stop, self._of = axis, start, stop, _EXPONENT[axis.log]
        known = [self._of(v) for v in (*values, *([] if axis.low is None else [axis.low]))]
        low, high = min(known), max(known)
        if high - low <= _NO_RANGE * max(abs(low), abs(high), 1.0 if axis.log else 1e-290):
            low, high = low - 0.5, high + 0.5
        room = axis.margin * (high - low)
        low, high = low - room, high + room
        if axis.log:
            ticks = [tick for tick in _powers(low, high, axis.log, wanted) if tick > 0]
        else:
            ticks = _steps(low, high, wanted, least=1.0 if axis.counts else 0.0)
            low, high = (ticks[0], ticks[-1]) if axis.rounded else (low, high)
        near = (high - low) / 1e8
        self._low, self._high = low, high
        self.ticks = [tick for tick in ticks if low - near <= self._of(tick) <= high + near]

    def __call__(self, value: float) -> float:
        share = (self._of(value) - self._low) / (self._high - self._low)
        return self.start + share * (self.stop - self.start)


def _steps(low: float, high: float, wanted: int, least: float = 0.0) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten, from below the range to above it."""
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(least, next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough * 0.999))
    digits = max(12, 3 - math.floor(math.log10(step)))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, digits) for index in range(first, last + 1)]


def _powers(low: float, high: float, base: int, wanted: int) -> list[float]:
    """Powers of a base between exponents; less than one apart, what a linear axis has."""
    if high - low < 1:
        return _steps(float(base) ** low, float(base) ** high, wanted)
    first, last = math.floor(low), math.ceil(high)
    every = max(1, math.ceil((last - first) / wanted))
    factors = (1, 2, 5) if base == 10 and last - first <= 2 else (1,)
    powers = range(first, last + every, every)
    return [factor * float(base) ** power for power in powers for factor in factors]


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """A named set of points; `low` and `high` give a band, `key` chooses colour and marker."""

    key: str
    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    hollow: bool = False

    @classmethod
    def over(
        cls, runs: Sequence[Sequence[float]], x: Sequence[float], *, key: str, label: str
    ) -> Series:
        """The mean over runs, with a band from the lowest to the highest if there are several."""
        points = list(zip(*runs, strict=True))
        mean = [math.fsum(values) / len(values) for values in points]
        low, high = ([end(values) for values in points if len(runs) > 1] for end in (min, max))
        return cls(key=key, label=label, x=x, y=mean, low=low, high=high)


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart ready for a page."""

    title: str
    description: str
    note: str
    table: Table
    wide: str
    narrow: str
    legend: Sequence[tuple[str, str]] = ()
    """Icons and labels; the narrow chart has no room for labels inside."""
    variants: Sequence[tuple[str, Figure]] = ()
    """Other views of the same numbers, by the name that a reader chooses them by."""


def figure(
    title: str,
    description: str,
    note: str,
    table: Table,
    draw: Callable[[int], tuple[float, list[str]]],
    legend: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Both drawings of a chart, each with its accessible name; `draw` gives height and parts."""

    def drawing(width: int) -> str:
        height, parts = draw(width)
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") + f"-{width}"
        return (
            f'<svg viewBox="0 0 {width} {c(height)}" role="img" '
            f'aria-labelledby="{name}-t {name}-d"><title id="{name}-t">{escape(title)}</title>'
            f'<desc id="{name}-d">{escape(description)}</desc>{"".join(parts)}</svg>'
        )

    return Figure(title, description, note, table, drawing(WIDE), drawing(NARROW), legend)
