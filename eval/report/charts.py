"""Charts as hand-made SVG: lines, scatter plots, histograms, heat maps and forest plots.

- Each has a title and a description, and a table holds the same numbers.
- Colours are CSS classes (`s-tango`, `h3`), never values: the page's light and dark modes decide.
  Series differ by dash and marker too, for readers who do not tell the colours apart.

Usage: `lines("MACs", [Series(key="tango", …)], x=Axis(label="T"), y=Axis(label="MACs"))`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from tangobench.eval.render import Table
from tangobench.eval.report.drawing import (
    WIDE,
    Axis,
    Figure,
    Frame,
    Scale,
    Series,
    c,
    dots,
    end_labels,
    figure,
    framed,
    line,
    marker,
    path,
    point_labels,
    text,
)

__all__ = ["Axis", "Figure", "Series", "Table", "forest", "heat_map", "histogram", "lines"]


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
        parts = [_band(item, frame) for item in series if item.low]
        for item in series:
            places = path(frame.places(item.x, item.y))
            parts.append(f'<polyline class="line s-{item.key}" points="{places}"/>')
            parts += dots(item, frame, shown=points) if tips else []
        return parts + (end_labels(series, frame) if frame.wide else [])

    return framed((title, description, note), series, (x, y), draw, icons="line")


def _band(item: Series, frame: Frame) -> str:
    """The area between a series' low and high."""
    back = reversed(frame.places(item.x, item.low))
    around = path([*frame.places(item.x, item.high), *back])
    return f'<polygon class="band s-{item.key}" points="{around}"/>'


def scatter(
    title: str, series: Sequence[Series], *, x: Axis, y: Axis, description: str, note: str = ""
) -> Figure:
    """Points with optional vertical error bars; a hollow series is somebody else's."""

    def draw(frame: Frame) -> list[str]:
        parts: list[str] = []
        for item in series:
            for place, *ends in zip(item.x, item.low, item.high, strict=False):
                at, (low, high) = frame.x(place), map(frame.y, ends)
                parts.append(line(f"error s-{item.key}", (at, at), (low, high)))
            parts += dots(item, frame, shown=True)
        return parts + (point_labels(series, frame) if frame.wide else [])

    axes = (replace(x, margin=0.08), replace(y, margin=0.08))
    return framed((title, description, note), series, axes, draw, icons="marker")


def histogram(
    title: str,
    edges: Sequence[float],
    counts: Sequence[float],
    *,
    x: Axis,
    y: Axis,
    description: str,
    note: str = "",
) -> Figure:
    """Bars between consecutive edges."""
    bins = list(zip(edges, edges[1:], counts, strict=False))

    def bar(frame: Frame, left: float, right: float, count: float) -> str:
        start, stop, top = frame.x(left), frame.x(right), frame.y(count)
        width = max(stop - start - (1.5 if stop - start > 4 else 0), 0.5)
        tip = escape(f"{x.text(left)}–{x.text(right)}: {y.text(count)}")
        return (
            f'<rect class="bar s-data" x="{c(start)}" y="{c(top)}" width="{c(width)}" '
            f'height="{c(frame.bottom - top)}" data-tip="{tip}"/>'
        )

    shape = Series(key="data", label=title, x=edges, y=[0.0, *counts])
    head = (f"{x.label}, from", "below", y.label)
    table = Table(columns=head, rows=[(x.text(a), x.text(b), y.text(n)) for a, b, n in bins])
    words = (title, description, note)
    return framed(words, [shape], (x, y), lambda f: [bar(f, *b) for b in bins], table=table)


def heat_map(
    title: str,
    rows: Sequence[str],
    columns: Sequence[tuple[str, str]],
    values: Sequence[Sequence[float | None]],
    *,
    description: str,
    note: str = "",
) -> Figure:
    """Each cell's gap to the lowest of its row, which is framed; `columns` are (long, short)."""
    lowest = [min((v for v in row if v is not None), default=0.0) for row in values]
    known = zip(values, lowest, strict=True)
    top = max((v - best for row, best in known for v in row if v is not None), default=0.0)

    def cell(row: int, column: int, x: float, y: float, across: float) -> str:
        value, best = values[row][column], lowest[row]
        kind, words, number = "none", "–", "–"
        if value is not None:
            level = min(8, int(9 * (value - best) / top)) if top else 0
            kind, number = f"h{level}", f"{value:.3f}"
            words = f"{value:.2f}" if value == best else f"+{value - best:.2f}"
        mark = " best" if value == best else ""
        tip = escape(f"{rows[row]}, {columns[column][0]}: {number}")
        label = text(f"cell-text mid t-{kind}{mark}", x + across / 2, y + 14, words)
        return (
            f'<g data-tip="{tip}"><rect class="cell {kind}{mark}" x="{c(x + 1)}" y="{c(y + 1)}" '
            f'width="{c(across - 3)}" height="17"/>{label}</g>'
        )

    def draw(width: int) -> tuple[float, list[str]]:
        wide = width == WIDE
        left, tall, head = 290 if wide else 132, 20, 26
        across = (width - left) / len(columns)
        parts = [
            text("tick mid", left + (i + 0.5) * across, 16, names[0 if wide else 1])
            for i, names in enumerate(columns)
        ]
        for j, name in enumerate(rows):
            y = head + j * tall
            shown = name if wide or len(name) <= 19 else name[:18] + "…"
            parts.append(text("tick end", left - 8, y + 14, shown))
            parts += [cell(j, i, left + i * across, y, across) for i in range(len(columns))]
        return head + len(rows) * tall, parts

    numbers = [["–" if v is None else f"{v:.3f}" for v in row] for row in values]
    table = Table(
        columns=("", *(names[0] for names in columns)),
        rows=[(name, *row) for name, row in zip(rows, numbers, strict=True)],
    )
    return figure((title, description, note), table, draw)


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """A line of a forest plot: a difference, its interval if there is one, and a verdict."""

    key: str
    label: str
    mean: float
    interval: tuple[float, float] | None
    verdict: str

    def ends(self) -> str:
        """The interval as text."""
        return "–" if self.interval is None else "{:+.3f} to {:+.3f}".format(*self.interval)


def forest(
    title: str, effects: Sequence[Effect], *, x: Axis, description: str, note: str = ""
) -> Figure:
    """Differences with their intervals, one line each, the verdict in words beside it."""
    values = [0.0, *(v for e in effects for v in (e.mean, *(e.interval or ())))]

    def draw(width: int) -> tuple[float, list[str]]:
        wide = width == WIDE
        left, right, tall = (200.0, width - 290.0, 34) if wide else (10.0, width - 14.0, 58)
        scale = Scale(replace(x, margin=0.05), values, left, right, 6 if wide else 4)
        bottom = 8.0 + tall * len(effects)
        parts = []
        for tick in scale.ticks:
            at = scale(tick)
            parts.append(line("grid" if tick else "axis", (at, at), (8, bottom)))
            parts.append(text("tick mid", at, bottom + 18, x.text(tick)))
        for place, effect in enumerate(effects):
            parts.append(_effect(effect, scale, 8.0 + tall * place, wide=wide))
        parts.append(text("label mid", (left + right) / 2, bottom + 38, x.label))
        return bottom + 46, parts

    table = Table(
        columns=("Model", x.label, "95% interval", "Verdict"),
        rows=[(e.label, f"{e.mean:+.3f}", e.ends(), e.verdict) for e in effects],
    )
    return figure((title, description, note), table, draw)


def _effect(effect: Effect, scale: Scale, top: float, *, wide: bool) -> str:
    """One line: name, interval, marker and verdict; on a phone the words are above the marks."""
    y = top + (17 if wide else 42)
    level = y + 4 if wide else y - 22
    name, name_at = (" end", scale.start - 12) if wide else ("", scale.start)
    words, words_at = ("", scale.stop + 16) if wide else (" end", scale.stop)
    parts = [
        text(f"end-label f-{effect.key}{name}", name_at, level, effect.label),
        text(f"tick{words}", words_at, level, effect.verdict),
    ]
    if effect.interval:
        low, high = map(scale, effect.interval)
        parts.append(line(f"error s-{effect.key}", (low, high), (y, y)))
    tip = escape(f"{effect.label}: {effect.mean:+.3f} ({effect.ends()}), {effect.verdict}")
    shape = marker(effect.key, scale(effect.mean), y)
    return "".join(parts) + f'<g class="dot s-{effect.key}" data-tip="{tip}">{shape}</g>'
