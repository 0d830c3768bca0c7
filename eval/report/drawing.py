"""What charts are drawn with: scales and ticks, frames with axes, markers, bands and labels.

- A `Figure` holds two drawings, wide and narrow, so that text keeps its size on a phone.
- Coordinates have one decimal: equal inputs give equal bytes everywhere.
- Overlapping labels are pushed apart, never dropped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

from tangobench.eval.render import Table

WIDE: Final = 1020  # the text column, so that chart text has the size it says
NARROW: Final = 350
_NO_RANGE: Final = 1e-9  # of the values: ticks between closer ones are below a float's precision
_SUFFIXES: Final = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_MARKERS: Final = {
    **dict.fromkeys(("tango", "fineweb"), "circle"),
    **dict.fromkeys(("wango", "lean"), "square"),
    **dict.fromkeys(("recurrent_transformer", "dm_math"), "up"),
    **dict.fromkeys(("untied_transformer", "training"), "down"),
    **dict.fromkeys(("gau", "verify"), "diamond"),
    "flash": "cross",
}
_CORNERS: Final = {
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


def coordinate(value: float) -> str:
    """A coordinate in an SVG, as short as one decimal allows."""
    return f"{value:.1f}".removesuffix(".0")


c = coordinate


def text(look: str, x: float, y: float, words: str) -> str:
    """Words at a place."""
    return f'<text class="{look}" x="{c(x)}" y="{c(y)}">{escape(words)}</text>'


def line(look: str, x: tuple[float, float], y: tuple[float, float]) -> str:
    """A straight line from one place to another."""
    ends = f'x1="{c(x[0])}" x2="{c(x[1])}" y1="{c(y[0])}" y2="{c(y[1])}"'
    return f'<line class="{look}" {ends}/>'


def path(points: Iterable[tuple[float, float]]) -> str:
    """Places as SVG writes them."""
    return " ".join(f"{c(x)},{c(y)}" for x, y in points)


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
    tips: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A chart ready for a page."""

    title: str
    description: str
    wide: str
    narrow: str
    table: Table
    legend: Sequence[tuple[str, str]] = ()
    """Icons and labels; the narrow chart has no room for labels inside."""
    note: str = ""
    variants: Sequence[tuple[str, Figure]] = ()
    """Other views of the same numbers, by the name that a reader chooses them by."""


Words = tuple[str, str, str]
"""Title, description and note of a figure."""


def figure(
    words: Words,
    table: Table,
    draw: Callable[[int], tuple[float, list[str]]],
    legend: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Both drawings of a chart, each with its accessible name; `draw` gives height and parts."""
    title, description, note = words
    drawings = {}
    for width in (WIDE, NARROW):
        height, parts = draw(width)
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") + f"-{width}"
        drawings[width] = (
            f'<svg viewBox="0 0 {width} {c(height)}" role="img" '
            f'aria-labelledby="{name}-t {name}-d"><title id="{name}-t">{escape(title)}</title>'
            f'<desc id="{name}-d">{escape(description)}</desc>{"".join(parts)}</svg>'
        )
    return Figure(
        title=title,
        description=description,
        wide=drawings[WIDE],
        narrow=drawings[NARROW],
        table=table,
        legend=legend,
        note=note,
    )


class Frame:
    """The plotting area of one drawing."""

    def __init__(self, width: int, x: Axis, y: Axis, series: Sequence[Series], room: int) -> None:
        self.wide = width == WIDE
        self.width, self.height = width, 440 if self.wide else 290
        self.left, self.top = 58.0, 34.0
        self.right = width - (room if self.wide else 14)
        self.bottom = self.height - 48.0
        across = [value for item in series for value in item.x]
        up = [value for item in series for value in (*item.y, *item.low, *item.high)]
        self.x = Scale(x, across, self.left, self.right, 7 if self.wide else 4)
        self.y = Scale(y, up, self.bottom, self.top, 6 if self.wide else 5)

    def places(self, x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
        """Values as coordinates."""
        return [(self.x(a), self.y(b)) for a, b in zip(x, y, strict=True)]

    def axes(self) -> list[str]:
        """Grid lines, tick labels and axis titles."""
        parts, bottom, across = [], self.bottom, (self.left, self.right)
        for tick in self.y.ticks:
            at = self.y(tick)
            parts.append(line("grid", across, (at, at)))
            parts.append(text("tick end", self.left - 8, at + 4, self.y.axis.text(tick)))
        for tick in self.x.ticks:
            at = self.x(tick)
            parts.append(line("axis", (at, at), (bottom, bottom + 5)))
            parts.append(text("tick mid", at, bottom + 20, self.x.axis.text(tick)))
        return [
            *parts,
            line("axis", across, (bottom, bottom)),
            text("label mid", sum(across) / 2, self.height - 8, self.x.axis.label),
            text("label", 0, 12, self.y.axis.label),
        ]


def framed(
    words: Words,
    series: Sequence[Series],
    axes: tuple[Axis, Axis],
    draw: Callable[[Frame], list[str]],
    *,
    icons: Literal["line", "marker"] | None = None,
    table: Table | None = None,
) -> Figure:
    """A chart in a frame whose inside `draw` fills; one with icons has room for labels."""
    longest = max((len(item.label) for item in series), default=0)
    room = 24 + 7 * longest if icons else 18

    def whole(width: int) -> tuple[float, list[str]]:
        frame = Frame(width, *axes, series, room)
        return frame.height, frame.axes() + draw(frame)

    legend = [(_icon(item, icons), item.label) for item in series] if icons else []
    return figure(words, table or _table_of(series, *axes), whole, legend)


def _table_of(series: Sequence[Series], x: Axis, y: Axis) -> Table:
    """The numbers of all series, one point per line."""
    banded = any(item.low for item in series)
    head = ("", x.label, y.label, *(("low", "high") if banded else ()))
    rows = []
    for item in series:
        for i, (a, b) in enumerate(zip(item.x, item.y, strict=True)):
            bounds = (y.text(item.low[i]), y.text(item.high[i])) if item.low else ("", "")
            rows.append((item.label, x.text(a), y.text(b), *(bounds if banded else ())))
    return Table(columns=head, rows=rows)


def dots(item: Series, frame: Frame, *, shown: bool) -> list[str]:
    """A marker per point; quiet ones appear under the pointer only."""
    tips = item.tips or [
        f"{item.label}: {frame.y.axis.text(b)} at {frame.x.axis.text(a)}"
        for a, b in zip(item.x, item.y, strict=True)
    ]
    look = ("dot hollow" if item.hollow else "dot") if shown else "dot quiet"
    return [
        f'<g class="{look} s-{item.key}" data-tip="{escape(tip)}">{marker(item.key, x, y)}'
        f'<circle class="reach" cx="{c(x)}" cy="{c(y)}" r="11"/></g>'
        for (x, y), tip in zip(frame.places(item.x, item.y), tips, strict=True)
    ]


def marker(key: str, x: float, y: float) -> str:
    """The shape of a series around a point."""
    shape, r = _MARKERS.get(key, "circle"), 4.5
    if shape == "circle":
        return f'<circle cx="{c(x)}" cy="{c(y)}" r="{r}"/>'
    if shape == "square":
        return f'<rect x="{c(x - 4)}" y="{c(y - 4)}" width="8" height="8"/>'
    return f'<polygon points="{path((x + r * a, y + r * b) for a, b in _CORNERS[shape])}"/>'


def end_labels(series: Sequence[Series], frame: Frame) -> list[str]:
    """Labels at the right ends of the lines, pushed apart where they would overlap."""
    ends = sorted((frame.y(item.y[-1]), item.key, item.label) for item in series if len(item.y))
    gap, placed = 17.0, -1e9
    spots = []
    for wanted, key, label in ends:
        placed = max(wanted, placed + gap)
        spots.append((placed, key, label))
    over = max(0.0, placed - frame.bottom)
    return [
        text(f"end-label f-{key}", frame.right + 10, at - over + 4, label)
        for at, key, label in spots
    ]


Box = tuple[float, float, float, float]


def point_labels(series: Sequence[Series], frame: Frame) -> list[str]:
    """Names beside single points, at the first place in the picture where they touch nothing."""
    taken = [_mark_box(item, frame) for item in series]
    parts = []
    for item in series:
        x, y = frame.x(item.x[-1]), frame.y(item.y[-1])
        wide = 7.2 * len(item.label)
        spots = [(x + 12, y), (x - 12 - wide, y)]
        above = (x + 8, x - 8 - wide)
        spots += [(left, y + shift) for shift in (-16, 16, -32, 32) for left in above]
        boxes = [(left, at - 9, left + wide, at + 9) for left, at in spots]
        boxes = [b for b in boxes if b[0] >= 0 and b[2] <= frame.width] or boxes
        free = [box for box in boxes if not any(_overlap(box, other) for other in taken)]
        box = (free or boxes)[0]
        taken.append(box)
        side, at = (" end", box[2]) if box[2] < x else ("", box[0])
        parts.append(text(f"end-label f-{item.key}{side}", at, box[1] + 13, item.label))
    return parts


def _mark_box(item: Series, frame: Frame) -> Box:
    x = frame.x(item.x[-1])
    ends = [frame.y(value) for value in (item.y[-1], *item.low[-1:], *item.high[-1:])]
    return (x - 6, min(ends) - 6, x + 6, max(ends) + 6)


def _overlap(one: Box, two: Box) -> bool:
    return one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]


def _icon(item: Series, kind: Literal["line", "marker"]) -> str:
    """The series as it looks in the chart, for the legend."""
    shape = f'<path class="line s-{item.key}" d="M1 6h24"/>'
    if kind == "marker":
        look = "dot hollow" if item.hollow else "dot"
        shape = f'<g class="{look} s-{item.key}">{marker(item.key, 13, 6)}</g>'
    return f'<svg viewBox="0 0 26 12" aria-hidden="true">{shape}</svg>'
