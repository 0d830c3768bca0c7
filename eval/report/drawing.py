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
_MARKERS: Final = {
    **{"wango": "square", "recurrent_transformer": "up", "untied_transformer": "down"},
    **{"gau": "diamond", "flash": "cross"},
}
_CORNERS: Final = {
    "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "up": ((0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
    "down": ((0, 1.2), (1.1, -0.8), (-1.1, -0.8)),
    "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    "cross": ((-1, -1), (0, -0.4), (1, -1), (0.4, 0), (1, 1), (0, 0.4), (-1, 1), (-0.4, 0)),
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
            scaled = value / size
            return f"{scaled:,.0f}{suffix}" if scaled >= 1000 else f"{scaled:.3g}{suffix}"
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
    shape, r = _MARKERS.get(key, "circle"), 4.5
    if shape == "circle":
        return f'<circle cx="{c(x)}" cy="{c(y)}" r="{r}"/>'
    return f'<polygon points="{path((x + r * a, y + r * b) for a, b in _CORNERS[shape])}"/>'


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """What an axis shows; `low` widens the range that the data gives."""

    label: str
    log: bool = False
    base: int = 10
    low: float | None = None
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
        known = [*values, *([] if axis.low is None else [axis.low])]
        low, high = min(known), max(known)
        if high - low <= _NO_RANGE * max(abs(low), abs(high), 1e-290):
            low, high = (low / 2, high * 2) if axis.log else (low - 0.5, high + 0.5)
        if axis.log:
            ratio = (high / low) ** axis.margin
            low, high = low / ratio, high * ratio
        else:
            low, high = low - axis.margin * (high - low), high + axis.margin * (high - low)
        self.axis, self.start, self.stop = axis, start, stop
        spanned = _log_range if axis.log else _linear_range
        self.low, self.high, self.ticks = spanned(low, high, axis, wanted)

    def __call__(self, value: float) -> float:
        of = math.log if self.axis.log else float
        share = (of(value) - of(self.low)) / (of(self.high) - of(self.low))
        return self.start + share * (self.stop - self.start)


def _linear_range(
    low: float, high: float, axis: Axis, wanted: int
) -> tuple[float, float, list[float]]:
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough * 0.999)
    step = max(1.0, step) if axis.counts else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = max(12, 3 - math.floor(math.log10(step)))
    ticks = [round(index * step, digits) for index in range(first, last + 1)]
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
