"""Charts: plots and histograms, with numbers as text, scales and ticks; a template draws the SVG.

- A `Figure` is drawn wide and narrow, so that text keeps its size on a phone. Each drawing has a
  title and a description, and a table holds the same numbers.
- Colours are CSS classes (`s-tango`), never values: the page's light and dark modes decide.
  Series differ by dash and marker too, for readers who do not tell the colours apart.
- Overlapping labels are pushed apart, never dropped. Coordinates have one decimal: equal inputs
  give equal bytes everywhere.

Usage: `plot("MACs", [Series(key="tango", …)], x=Axis(label="T"), y=Axis(label="MACs"))`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Final, Literal

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

Box = tuple[float, float, float, float]


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


def joined(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{c(x)},{c(y)}" for x, y in places)


def around(key: str, x: float, y: float) -> list[tuple[float, float]]:
    """Corners of a series' marker around a point; none if it is a circle."""
    return [(x + 4.5 * a, y + 4.5 * b) for a, b in _MARKERS.get(key, ())]


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A chart, which templates/chart.svg.j2 draws once wide and once narrow."""

    title: str
    description: str
    note: str = ""
    table: Table
    x: Axis
    y: Axis
    series: Sequence[Series]
    dots: Literal["dot", "dot quiet"] | None = None
    bars: Sequence[tuple[float, float, float]] = ()
    """Left and right end and height of each, instead of the series."""
    variants: Sequence[tuple[str, Figure]] = ()
    """Other views of the same numbers, by the name that a reader chooses them by."""

    @property
    def points(self) -> bool:
        return all(len(item.x) == 1 for item in self.series)

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    def frame(self, width: int) -> Frame:
        return Frame(width, self)


class Frame:
    """The plotting area of one drawing; the narrow one has no room for labels inside."""

    def __init__(self, width: int, chart: Figure) -> None:
        wide, named = width == WIDE, not (chart.points or chart.bars)
        longest = max((len(item.label) for item in chart.series), default=0)
        room = 24 + 7 * longest if named else 18  # names are right of lines, but beside points
        self.width, self.height = width, 440 if wide else 290
        self.left, self.top = 58.0, 34.0
        self.right = width - (room if wide else 14)
        self.bottom = self.height - 48.0
        across = [value for item in chart.series for value in item.x]
        up = [value for item in chart.series for value in (*item.y, *item.low, *item.high)]
        self.x = Scale(chart.x, across, self.left, self.right, 7 if wide else 4)
        self.y = Scale(chart.y, up, self.bottom, self.top, 6 if wide else 5)
        self.labels = _labels(chart.series, self) if wide and not chart.bars else []

    def places(self, x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
        return [(self.x(a), self.y(b)) for a, b in zip(x, y, strict=True)]


def plot(
    title: str,
    series: Sequence[Series],
    *,
    x: Axis,
    y: Axis,
    note: str = "",
    dots: Literal["dot", "dot quiet"] | None = "dot quiet",
) -> Figure:
    """Lines with bands; series of a single point each are markers with error bars and names.

    Quiet dots show under the pointer only. A hollow series is somebody else's.
    """
    if all(len(item.x) == 1 for item in series):
        x, y, dots = replace(x, margin=0.08), replace(y, margin=0.08), "dot"
    names, table = ", ".join(item.label for item in series), _table_of(series, x, y)
    about = f"{y.title} against {x.title}: {names}."
    shown: dict[str, Any] = {"x": x, "y": y, "series": series, "dots": dots}
    return Figure(title=title, description=about, note=note, table=table, **shown)


def _labels(series: Sequence[Series], frame: Frame) -> list[tuple[str, float, float, str]]:
    """Names right of lines and beside points."""
    ordered = sorted(series, key=lambda item: frame.y(item.y[-1]))
    lines = [item for item in ordered if len(item.x) > 1]
    ends = _apart([frame.y(item.y[-1]) for item in lines], frame.height)
    found: list[tuple[str, float, float, str]] = [
        (f"end-label f-{item.key}", frame.right + 10, y + 4, item.label)
        for item, y in zip(lines, ends, strict=True)
    ]
    points = [item for item in ordered if len(item.x) == 1]
    taken = [_mark(item, frame) for item in points]
    shifts = sorted(range(-150, 151, 3), key=abs)
    for item in points:
        x, y = frame.x(item.x[-1]), frame.y(item.y[-1])
        wide = 7.2 * len(item.label)
        sides = [x + 12, x - 12 - wide]
        boxes = [(at, y + up - 9, at + wide, y + up + 9) for up in shifts for at in sides]
        inside = [b for b in boxes if b[0] >= 0 and b[2] <= frame.width and b[3] <= frame.height]
        free = [box for box in inside if not any(_overlap(box, other) for other in taken)]
        box = (free or inside or boxes)[0]
        taken.append(box)
        side, at = (" end", box[2]) if box[2] < x else ("", box[0])
        found.append((f"end-label f-{item.key}{side}", at, box[1] + 13, item.label))
    return found


def _apart(wanted: Sequence[float], height: float) -> list[float]:
    """Heights of labels: as near as possible to those wanted, in the same order, 18 apart."""
    import numpy as np
    from scipy.optimize import isotonic_regression

    steps = 18.0 * np.arange(len(wanted))
    moved = isotonic_regression(np.asarray(wanted) - steps).x if len(wanted) else steps
    return list(moved.clip(9, max(9, height - 9 - steps.max(initial=0))) + steps)


def _mark(item: Series, frame: Frame) -> Box:
    x = frame.x(item.x[-1])
    ends = [frame.y(value) for value in (item.y[-1], *item.low[-1:], *item.high[-1:])]
    return (x - 6, min(ends) - 6, x + 6, max(ends) + 6)


def _overlap(one: Box, two: Box) -> bool:
    return one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]


def _table_of(series: Sequence[Series], x: Axis, y: Axis) -> Table:
    """The numbers of all series, one point per line."""
    banded = any(item.low for item in series)
    rows = []
    for item in series:
        ends = zip(item.low, item.high, strict=True) if item.low else repeat(())
        for a, b, both in zip(item.x, item.y, ends, strict=False):
            cells = [y.text(end) for end in both] if both else ["", ""]
            rows.append((item.label, x.text(a), y.text(b), *(cells if banded else ())))
    head = ("", x.label, y.label, *(("low", "high") if banded else ()))
    return Table(columns=head, rows=rows)


def histogram(
    title: str, edges: Sequence[float], counts: Sequence[float], *, x: Axis, y: Axis, note: str
) -> Figure:
    """Bars between consecutive edges."""
    bins = list(zip(edges, edges[1:], counts, strict=False))
    rows = [(x.text(low), x.text(high), y.text(count)) for low, high, count in bins]
    return Figure(
        title=title,
        description=f"Histogram of {y.label} by {x.label}: {note}.",
        note=note,
        table=Table(columns=(f"{x.label}, from", "below", y.label), rows=rows),
        x=x,
        y=y,
        series=[Series(key="data", label=title, x=edges, y=[0.0, *counts])],
        bars=bins,
    )
