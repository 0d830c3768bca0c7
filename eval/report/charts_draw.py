"""The parts that charts are drawn from: series, frames with axes, markers, bands and labels.

- A frame maps data to coordinates for one of two widths; a `Figure` holds both drawings.
- Overlapping labels at the ends of lines are pushed apart, never dropped.

Usage: `frame = Frame(WIDE, x_axis, y_axis, series, room=100); frame.axes()`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final, Literal

from tangobench.eval.render import Table
from tangobench.eval.report.charts_scale import Axis, Scale
from tangobench.eval.report.charts_scale import coordinate as c

WIDE: Final = 1020  # the text column, so that chart text has the size it says
NARROW: Final = 350
_MARKERS: Final = {
    **dict.fromkeys(("tango", "fineweb"), "circle"),
    **dict.fromkeys(("wango", "lean"), "square"),
    **dict.fromkeys(("recurrent_transformer", "dm_math"), "up"),
    **dict.fromkeys(("untied_transformer", "training"), "down"),
    **dict.fromkeys(("gau", "verify"), "diamond"),
    "flash": "cross",
}


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
    legend: Sequence[tuple[str, str]] = field(default_factory=list)
    """Icons and labels; the narrow chart has no room for labels inside."""
    note: str = ""
    variants: Sequence[tuple[str, Figure]] = ()
    """Other views of the same numbers, by the name that a reader chooses them by."""


def slug(text: str) -> str:
    """An id for use in HTML."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


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

    def axes(self) -> list[str]:
        """Grid lines, tick labels and axis titles."""
        parts = []
        for tick in self.y.ticks:
            at = self.y(tick)
            parts.append(
                f'<line class="grid" x1="{c(self.left)}" x2="{c(self.right)}" y1="{c(at)}" '
                f'y2="{c(at)}"/><text class="tick end" x="{c(self.left - 8)}" y="{c(at + 4)}">'
                f"{escape(self.y.axis.text(tick))}</text>"
            )
        for tick in self.x.ticks:
            at = self.x(tick)
            parts.append(
                f'<line class="axis" x1="{c(at)}" x2="{c(at)}" y1="{c(self.bottom)}" '
                f'y2="{c(self.bottom + 5)}"/><text class="tick mid" x="{c(at)}" '
                f'y="{c(self.bottom + 20)}">{escape(self.x.axis.text(tick))}</text>'
            )
        middle = (self.left + self.right) / 2
        parts.append(
            f'<line class="axis" x1="{c(self.left)}" x2="{c(self.right)}" '
            f'y1="{c(self.bottom)}" y2="{c(self.bottom)}"/>'
            f'<text class="label mid" x="{c(middle)}" y="{c(self.height - 8)}">'
            f'{escape(self.x.axis.label)}</text><text class="label" x="0" y="12">'
            f"{escape(self.y.axis.label)}</text>"
        )
        return parts


def figure(
    title: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    description: str,
    note: str,
    draw: Callable[[Frame], list[str]],
    icons: Literal["line", "marker"] | None = None,
) -> Figure:
    """Both drawings of a chart whose inside `draw` fills; one with icons has room for labels."""
    longest = max((len(item.label) for item in series), default=0)
    room = 24 + 7 * longest if icons else 18
    drawings = []
    for width in (WIDE, NARROW):
        frame = Frame(width, x, y, series, room)
        parts = frame.axes() + draw(frame)
        drawings.append(svg(title, description, width, frame.height, parts))
    return Figure(
        title=title,
        description=description,
        wide=drawings[0],
        narrow=drawings[1],
        table=table_of(series, x, y),
        legend=[(_icon(item, icons), item.label) for item in series] if icons else [],
        note=note,
    )


def svg(title: str, description: str, width: int, height: float, parts: list[str]) -> str:
    """One drawing with its accessible name and description."""
    name = f"{slug(title)}-{width}"
    return (
        f'<svg viewBox="0 0 {width} {c(height)}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{escape(title)}</title>'
        f'<desc id="{name}-d">{escape(description)}</desc>{"".join(parts)}</svg>'
    )


def table_of(series: Sequence[Series], x: Axis, y: Axis) -> Table:
    """The numbers of all series, one point per line."""
    banded = any(item.low for item in series)
    head = ("", x.label, y.label, *(("low", "high") if banded else ()))
    rows = []
    for item in series:
        for i, (a, b) in enumerate(zip(item.x, item.y, strict=True)):
            bounds = (y.text(item.low[i]), y.text(item.high[i])) if item.low else ("", "")
            rows.append((item.label, x.text(a), y.text(b), *(bounds if banded else ())))
    return Table(columns=head, rows=rows)


def band(item: Series, frame: Frame) -> str:
    """The area between a series' low and high."""
    there = [(frame.x(a), frame.y(b)) for a, b in zip(item.x, item.high, strict=True)]
    back = [(frame.x(a), frame.y(b)) for a, b in zip(item.x, item.low, strict=True)]
    path = " ".join(f"{c(a)},{c(b)}" for a, b in [*there, *reversed(back)])
    return f'<polygon class="band s-{item.key}" points="{path}"/>'


def dots(item: Series, frame: Frame, *, shown: bool) -> list[str]:
    """A marker per point; quiet ones appear under the pointer only."""
    tips = item.tips or [
        f"{item.label}: {frame.y.axis.text(b)} at {frame.x.axis.text(a)}"
        for a, b in zip(item.x, item.y, strict=True)
    ]
    look = ("dot hollow" if item.hollow else "dot") if shown else "dot quiet"
    return [
        f'<g class="{look} s-{item.key}" data-tip="{escape(tip)}">'
        f'{marker(item.key, frame.x(a), frame.y(b))}<circle class="reach" cx="{c(frame.x(a))}" '
        f'cy="{c(frame.y(b))}" r="11"/></g>'
        for a, b, tip in zip(item.x, item.y, tips, strict=True)
    ]


def marker(key: str, x: float, y: float) -> str:
    """The shape of a series around a point."""
    shape, r = _MARKERS.get(key, "circle"), 4.5
    if shape == "circle":
        return f'<circle cx="{c(x)}" cy="{c(y)}" r="{r}"/>'
    if shape == "square":
        return f'<rect x="{c(x - 4)}" y="{c(y - 4)}" width="8" height="8"/>'
    ways = {
        "up": ((0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
        "down": ((0, 1.2), (1.1, -0.8), (-1.1, -0.8)),
        "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
        "cross": ((-1, -1), (0, -0.4), (1, -1), (0.4, 0), (1, 1), (0, 0.4), (-1, 1), (-0.4, 0)),
    }[shape]
    return f'<polygon points="{" ".join(f"{c(x + r * a)},{c(y + r * b)}" for a, b in ways)}"/>'


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
        f'<text class="end-label f-{key}" x="{c(frame.right + 10)}" y="{c(at - over + 4)}">'
        f"{escape(label)}</text>"
        for at, key, label in spots
    ]


def point_labels(series: Sequence[Series], frame: Frame) -> list[str]:
    """Names beside single points, at the first place in the picture where they touch nothing."""
    taken = [_mark_box(item, frame) for item in series]
    parts = []
    for item in series:
        x, y = frame.x(item.x[-1]), frame.y(item.y[-1])
        wide = 7.2 * len(item.label)
        beside, above = ((x + 12, x - 12 - wide), (x + 8, x - 8 - wide))
        spots = [*((left, y) for left in beside)]
        spots += [(left, y + shift) for shift in (-16, 16, -32, 32) for left in above]
        boxes = [(left, at - 9, left + wide, at + 9) for left, at in spots]
        boxes = [b for b in boxes if b[0] >= 0 and b[2] <= frame.width] or boxes
        free = [box for box in boxes if not any(_overlap(box, other) for other in taken)]
        box = (free or boxes)[0]
        taken.append(box)
        before = box[2] < x
        parts.append(
            f'<text class="end-label f-{item.key}{" end" if before else ""}" '
            f'x="{c(box[2] if before else box[0])}" y="{c(box[1] + 13)}">'
            f"{escape(item.label)}</text>"
        )
    return parts


Box = tuple[float, float, float, float]


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
