"""Charts as hand-made SVG: lines with bands, histograms and scatter plots.

- A chart is drawn twice, wide and narrow, so that its text keeps its size on a phone; the page
  shows one of them. Each has a title and a description, and a table holds the same numbers.
- Colours are CSS classes (`s-tango`, `h3`), never values: the page's light and dark modes decide.
  Series differ by dash and marker too, for readers who do not tell the colours apart.
- The same numbers give the same bytes.

Usage: `lines("MACs", [Series(key="tango", …)], x=Axis(label="T"), y=Axis(label="MACs"))`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from tangobench.eval.render import Table
from tangobench.eval.report.charts_draw import (
    Figure,
    Frame,
    Series,
    band,
    dots,
    end_labels,
    figure,
    point_labels,
)
from tangobench.eval.report.charts_scale import Axis
from tangobench.eval.report.charts_scale import coordinate as c

__all__ = ["Axis", "Figure", "Series", "Table", "histogram", "lines", "scatter"]


def lines(
    title: str,
    series: Sequence[Series],
    *,
    x: Axis,
    y: Axis,
    description: str,
    note: str = "",
    points: bool = False,
    tips: bool = True,
) -> Figure:
    """Lines with optional bands; every point carries its own tip, unless `tips` is off."""

    def draw(frame: Frame) -> list[str]:
        parts = [band(item, frame) for item in series if item.low]
        for item in series:
            path = " ".join(
                f"{c(frame.x(a))},{c(frame.y(b))}" for a, b in zip(item.x, item.y, strict=True)
            )
            parts.append(f'<polyline class="line s-{item.key}" points="{path}"/>')
            parts += dots(item, frame, shown=points) if tips else []
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
