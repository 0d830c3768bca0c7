"""Charts as hand-made SVG: plots and histograms; heat maps as tables.

- Each drawing has a title and a description, and a table holds the same numbers.
- Colours are CSS classes (`s-tango`, `h3`), never values: the page's light and dark modes decide.
  Series differ by dash and marker too, for readers who do not tell the colours apart.
- Overlapping labels are pushed apart, never dropped.

Usage: `plot("MACs", [Series(key="tango", …)], x=Axis(label="T"), y=Axis(label="MACs"))`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import repeat
from typing import Literal

from tangobench.eval.render import Table
from tangobench.eval.report import drawing
from tangobench.eval.report.drawing import Axis, Figure, Scale, Series, c, line, marker, path, text

Box = tuple[float, float, float, float]


class Frame:
    """The plotting area of one drawing."""

    def __init__(self, width: int, x: Axis, y: Axis, series: Sequence[Series], room: int) -> None:
        self.wide = width == drawing.WIDE
        self.width, self.height = width, 440 if self.wide else 290
        self.left, self.top = 58.0, 34.0
        self.right = width - (room if self.wide else 14)
        self.bottom = self.height - 48.0
        across = [value for item in series for value in item.x]
        up = [value for item in series for value in (*item.y, *item.low, *item.high)]
        self.x = Scale(x, across, self.left, self.right, 7 if self.wide else 4)
        self.y = Scale(y, up, self.bottom, self.top, 6 if self.wide else 5)

    def places(self, x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
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
            text("label mid", sum(across) / 2, self.height - 8, self.x.axis.title),
            text("label", 0, 12, self.y.axis.title),
        ]


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
    if points := all(len(item.x) == 1 for item in series):
        x, y, dots = replace(x, margin=0.08), replace(y, margin=0.08), "dot"
    longest = max((len(item.label) for item in series), default=0)
    room = 18 if points else 24 + 7 * longest  # names are right of lines, but beside points

    def draw(width: int) -> tuple[float, list[str]]:
        frame = Frame(width, x, y, series, room)
        parts = frame.axes()
        for item in series:
            parts += _spread(item, frame)
        for item in series:
            if not points:
                places = path(frame.places(item.x, item.y))
                parts.append(f'<polyline class="line s-{item.key}" points="{places}"/>')
            parts += _dots(item, frame, dots) if dots else []
        return frame.height, parts + (_labels(series, frame) if frame.wide else [])

    names = ", ".join(item.label for item in series)
    legend = [(_icon(item), item.label) for item in series]
    description = f"{y.title} against {x.title}: {names}."
    return drawing.figure(title, description, note, _table_of(series, x, y), draw, legend)


def _spread(item: Series, frame: Frame) -> list[str]:
    """The area between a series' low and high, or a bar at its only point."""
    low, high = (frame.places(item.x, ends) if ends else [] for ends in (item.low, item.high))
    if len(low) > 1:
        return [f'<polygon class="band s-{item.key}" points="{path([*high, *reversed(low)])}"/>']
    ends = zip(low, high, strict=True)
    return [line(f"error s-{item.key}", (a[0], a[0]), (a[1], b[1])) for a, b in ends]


def _look(item: Series, kind: str = "dot") -> str:
    return f"{kind}{' hollow' if item.hollow else ''} s-{item.key}"


def _dots(item: Series, frame: Frame, kind: str) -> list[str]:
    parts = []
    for a, b in zip(item.x, item.y, strict=True):
        tip = escape(f"{item.label}: {frame.y.axis.text(b)} at {frame.x.axis.text(a)}")
        x, y = frame.x(a), frame.y(b)
        parts.append(
            f'<g class="{_look(item, kind)}" data-tip="{tip}">{marker(item.key, x, y)}'
            f'<circle class="reach" cx="{c(x)}" cy="{c(y)}" r="11"/></g>'
        )
    return parts


def _labels(series: Sequence[Series], frame: Frame) -> list[str]:
    """Names right of lines and beside points."""
    ordered = sorted(series, key=lambda item: frame.y(item.y[-1]))
    lines = [item for item in ordered if len(item.x) > 1]
    parts = [
        text(f"end-label f-{item.key}", frame.right + 10, y + 4, item.label)
        for item, y in zip(
            lines, _apart([frame.y(item.y[-1]) for item in lines], frame.height), strict=True
        )
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
        parts.append(text(f"end-label f-{item.key}{side}", at, box[1] + 13, item.label))
    return parts


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


def _icon(item: Series) -> str:
    """The series as it looks in the chart, for the legend."""
    shape = f'<path class="line s-{item.key}" d="M1 6h24"/>'
    if len(item.x) == 1:
        shape = f'<g class="{_look(item)}">{marker(item.key, 13, 6)}</g>'
    return f'<svg viewBox="0 0 26 12" aria-hidden="true">{shape}</svg>'


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
    shape = Series(key="data", label=title, x=edges, y=[0.0, *counts])

    def bar(frame: Frame, left: float, right: float, count: float) -> str:
        start, stop, top = frame.x(left), frame.x(right), frame.y(count)
        width = max(stop - start - (1.5 if stop - start > 4 else 0), 0.5)
        tip = escape(f"{x.text(left)}–{x.text(right)}: {y.text(count)}")
        return (
            f'<rect class="bar s-data" x="{c(start)}" y="{c(top)}" width="{c(width)}" '
            f'height="{c(frame.bottom - top)}" data-tip="{tip}"/>'
        )

    def draw(width: int) -> tuple[float, list[str]]:
        frame = Frame(width, x, y, [shape], 18)
        return frame.height, frame.axes() + [bar(frame, *each) for each in bins]

    rows = [(x.text(low), x.text(high), y.text(count)) for low, high, count in bins]
    table = Table(columns=(f"{x.label}, from", "below", y.label), rows=rows)
    return drawing.figure(title, f"Histogram of {y.label} by {x.label}: {note}.", note, table, draw)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatMap:
    """A table of coloured cells: class, text and the whole number of each, by row."""

    title: str
    note: str
    columns: Sequence[tuple[str, str]]
    """Names, and what is left of them on a phone."""
    rows: Mapping[str, Sequence[tuple[str, str, str]]]


def heat_map(
    title: str,
    columns: Sequence[tuple[str, str]],
    values: Mapping[str, Sequence[float | None]],
    note: str = "",
) -> HeatMap:
    """Each cell's gap to the lowest of its row, which is framed."""
    known = {name: [v for v in row if v is not None] for name, row in values.items()}
    lowest = {name: min(row, default=0.0) for name, row in known.items()}
    top = max((max(row) - lowest[name] for name, row in known.items() if row), default=0.0)

    def cell(value: float | None, best: float) -> tuple[str, str, str]:
        if value is None:
            return "none", "–", "–"
        level = min(8, int(9 * (value - best) / top)) if top else 0
        if value == best:
            return f"h{level} best", f"{value:.2f}", f"{value:.3f}"
        return f"h{level}", f"+{value - best:.2f}", f"{value:.3f}"

    rows = {name: [cell(v, lowest[name]) for v in row] for name, row in values.items()}
    return HeatMap(title=title, note=note, columns=columns, rows=rows)
