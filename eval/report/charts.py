"""Charts as hand-made SVG: lines with bands, histograms, scatter plots and heat maps.

- A chart is drawn twice, wide and narrow, so that its text keeps its size on a phone; the page
  shows one of them. Each has a title and a description, and a table holds the same numbers.
- Colours are CSS classes (`s-tango`, `h3`), never values: the page's light and dark modes decide.
  Series differ by dash and marker too, for readers who do not tell the colours apart.
- The same numbers give the same bytes.

Usage: `lines("MACs", [Series(key="tango", …)], x=Axis(label="T"), y=Axis(label="MACs"))`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape

from tangobench.eval.render import Table
from tangobench.eval.report.charts_draw import (
    NARROW,
    WIDE,
    Figure,
    Frame,
    Series,
    band,
    dots,
    end_labels,
    figure,
    point_labels,
    svg,
)
from tangobench.eval.report.charts_scale import Axis
from tangobench.eval.report.charts_scale import coordinate as c

__all__ = ["Axis", "Figure", "Series", "Table", "heat_map", "histogram", "lines", "scatter"]


def lines(
    title: str,
    series: Sequence[Series],
    *,
    x: Axis,
    y: Axis,
    description: str,
    note: str = "",
    points: bool = False,
) -> Figure:
    """Lines with optional bands; every point carries its own tip."""

    def draw(frame: Frame) -> list[str]:
        parts = [band(item, frame) for item in series if item.low]
        for item in series:
            path = " ".join(
                f"{c(frame.x(a))},{c(frame.y(b))}" for a, b in zip(item.x, item.y, strict=True)
            )
            parts.append(f'<polyline class="line s-{item.key}" points="{path}"/>')
            parts += dots(item, frame, shown=points)
        return parts + (end_labels(series, frame) if frame.wide else [])

    return figure(title, series, x, y, description, note, draw, icons="line")


def scatter(
    title: str, series: Sequence[Series], *, x: Axis, y: Axis, description: str, note: str = ""
) -> Figure:
    """Points with optional vertical error bars; a hollow series is somebody else's."""

    def draw(frame: Frame) -> list[str]:
        parts: list[str] = []
        for item in series:
            for place, low, high in zip(item.x, item.low, item.high, strict=False):
                at = c(frame.x(place))
                parts.append(
                    f'<line class="error s-{item.key}" x1="{at}" x2="{at}" '
                    f'y1="{c(frame.y(low))}" y2="{c(frame.y(high))}"/>'
                )
            parts += dots(item, frame, shown=True)
        return parts + (point_labels(series, frame) if frame.wide else [])

    x, y = replace(x, margin=0.08), replace(y, margin=0.08)
    return figure(title, series, x, y, description, note, draw, icons="marker")


def histogram(
    title: str,
    edges: Sequence[float],
    counts: Sequence[float],
    *,
    x: Axis,
    y: Axis,
    description: str,
    key: str = "data",
    note: str = "",
) -> Figure:
    """Bars between consecutive edges."""
    tips = [
        f"{x.text(a)}–{x.text(b)}: {y.text(n)}"
        for a, b, n in zip(edges, edges[1:], counts, strict=False)
    ]

    def draw(frame: Frame) -> list[str]:
        bars = []
        for left, right, count, tip in zip(edges, edges[1:], counts, tips, strict=False):
            start, stop, top = frame.x(left), frame.x(right), frame.y(count)
            width = max(stop - start - (1.5 if stop - start > 4 else 0), 0.5)
            bars.append(
                f'<rect class="bar s-{key}" x="{c(start)}" y="{c(top)}" width="{c(width)}" '
                f'height="{c(frame.bottom - top)}" data-tip="{escape(tip)}"/>'
            )
        return bars

    shape = Series(key=key, label=title, x=list(edges), y=[0.0, *counts])
    drawn = figure(title, [shape], x, y, description, note, draw)
    table = Table(
        columns=(f"{x.label}, from", "below", y.label),
        rows=[
            (x.text(a), x.text(b), y.text(n))
            for a, b, n in zip(edges, edges[1:], counts, strict=False)
        ],
    )
    return Figure(
        title=title,
        description=description,
        wide=drawn.wide,
        narrow=drawn.narrow,
        table=table,
        note=note,
    )


def heat_map(
    title: str,
    rows: Sequence[str],
    columns: Sequence[tuple[str, str]],
    values: Sequence[Sequence[float | None]],
    *,
    text: Callable[[float], str],
    description: str,
    note: str = "",
) -> Figure:
    """Cells coloured by value in nine steps, low values light; `columns` are (long, short)."""
    known = [value for row in values for value in row if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)

    def level(value: float) -> int:
        return min(8, int(9 * (value - low) / (high - low))) if high > low else 4

    def draw(width: int) -> str:
        left = 290 if width == WIDE else 138
        cell, tall, top = (width - left) / len(columns), 20, 26
        parts = [
            f'<text class="tick mid" x="{c(left + (i + 0.5) * cell)}" y="16">'
            f"{escape(names[0] if width == WIDE else names[1])}</text>"
            for i, names in enumerate(columns)
        ]
        for j, (name, line) in enumerate(zip(rows, values, strict=True)):
            y = top + j * tall
            shown = name if width == WIDE or len(name) <= 19 else name[:18] + "…"
            parts.append(
                f'<text class="tick end" x="{left - 8}" y="{y + 14}">{escape(shown)}</text>'
            )
            for i, value in enumerate(line):
                x, kind = left + i * cell, "none" if value is None else f"h{level(value)}"
                number = "–" if value is None else text(value)
                tip = escape(f"{name}, {columns[i][0]}: {number}")
                parts.append(
                    f'<g data-tip="{tip}"><rect class="cell {kind}" x="{c(x)}" y="{y}" '
                    f'width="{c(cell - 1.5)}" height="{tall - 1.5}"/><text class="cell-text mid '
                    f't-{kind}" x="{c(x + cell / 2)}" y="{y + 14}">{number}</text></g>'
                )
        return svg(title, description, width, top + len(rows) * tall, parts)

    table = Table(
        columns=("", *(names[0] for names in columns)),
        rows=[
            (name, *("–" if v is None else text(v) for v in line))
            for name, line in zip(rows, values, strict=True)
        ],
    )
    return Figure(
        title=title,
        description=description,
        wide=draw(WIDE),
        narrow=draw(NARROW),
        table=table,
        note=note,
    )
