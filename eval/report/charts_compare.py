"""Charts that compare models: a heat map of gaps to the best, and a forest plot of differences.

- A heat map colours how far a model is from the lowest of its row, not how hard the row is.
- A forest plot has a line per model: difference, interval and the verdict in words.

Usage: `forest("Against TANGO", [Effect(key="gau", …)], x=Axis(label="difference"), …)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape

from tangobench.eval.render import Table
from tangobench.eval.report.charts_draw import NARROW, WIDE, Figure, marker, svg
from tangobench.eval.report.charts_scale import Axis, Scale
from tangobench.eval.report.charts_scale import coordinate as c

Values = Sequence[Sequence[float | None]]


def heat_map(
    title: str,
    rows: Sequence[str],
    columns: Sequence[tuple[str, str]],
    values: Values,
    *,
    description: str,
    note: str = "",
) -> Figure:
    """Each cell's gap to the lowest of its row, which is framed; `columns` are (long, short)."""
    lowest = [min((v for v in line if v is not None), default=0.0) for line in values]
    known = zip(values, lowest, strict=True)
    top = max((v - best for line, best in known for v in line if v is not None), default=0.0)

    def cell(row: int, column: int, x: float, y: float, across: float) -> str:
        value, best = values[row][column], lowest[row]
        kind, text, number = "none", "–", "–"
        if value is not None:
            level = min(8, int(9 * (value - best) / top)) if top else 0
            kind, number = f"h{level}", f"{value:.3f}"
            text = f"{value:.2f}" if value == best else f"+{value - best:.2f}"
        mark = " best" if value == best else ""
        tip = escape(f"{rows[row]}, {columns[column][0]}: {number}")
        return (
            f'<g data-tip="{tip}"><rect class="cell {kind}{mark}" x="{c(x + 1)}" y="{y + 1}" '
            f'width="{c(across - 3)}" height="17"/><text class="cell-text mid t-{kind}{mark}" '
            f'x="{c(x + across / 2)}" y="{y + 14}">{text}</text></g>'
        )

    table = Table(
        columns=("", *(names[0] for names in columns)),
        rows=[
            (name, *("–" if v is None else f"{v:.3f}" for v in line))
            for name, line in zip(rows, values, strict=True)
        ],
    )
    return _both(title, description, note, table, lambda width: _grid(width, rows, columns, cell))


def _grid(
    width: int,
    rows: Sequence[str],
    columns: Sequence[tuple[str, str]],
    cell: Callable[[int, int, float, float, float], str],
) -> tuple[float, list[str]]:
    """Height and parts of a heat map."""
    wide = width == WIDE
    left = 290 if wide else 132
    across, tall, head = (width - left) / len(columns), 20, 26
    parts = [
        f'<text class="tick mid" x="{c(left + (i + 0.5) * across)}" y="16">'
        f"{escape(names[0 if wide else 1])}</text>"
        for i, names in enumerate(columns)
    ]
    for j, name in enumerate(rows):
        y = head + j * tall
        shown = name if wide or len(name) <= 19 else name[:18] + "…"
        parts.append(f'<text class="tick end" x="{left - 8}" y="{y + 14}">{escape(shown)}</text>')
        parts += [cell(j, i, left + i * across, y, across) for i in range(len(columns))]
    return head + len(rows) * tall, parts


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
        parts = [
            f'<line class="{"axis" if tick == 0 else "grid"}" x1="{c(scale(tick))}" '
            f'x2="{c(scale(tick))}" y1="8" y2="{c(bottom)}"/><text class="tick mid" '
            f'x="{c(scale(tick))}" y="{c(bottom + 18)}">{escape(x.text(tick))}</text>'
            for tick in scale.ticks
        ]
        for place, effect in enumerate(effects):
            parts.append(_effect(effect, scale, 8.0 + tall * place, wide=wide))
        parts.append(
            f'<text class="label mid" x="{c((left + right) / 2)}" y="{c(bottom + 38)}">'
            f"{escape(x.label)}</text>"
        )
        return bottom + 46, parts

    table = Table(
        columns=("Model", x.label, "95% interval", "Verdict"),
        rows=[(e.label, f"{e.mean:+.3f}", e.ends(), e.verdict) for e in effects],
    )
    return _both(title, description, note, table, draw)


def _effect(effect: Effect, scale: Scale, top: float, *, wide: bool) -> str:
    """One line: name, interval, marker and verdict; on a phone the words are above the marks."""
    y = top + (17 if wide else 42)
    level = y + 4 if wide else y - 22
    name = (scale.start - 12, " end") if wide else (scale.start, "")
    words = (scale.stop + 16, "") if wide else (scale.stop, " end")
    texts = "".join(
        f'<text class="{look}{side}" x="{c(at)}" y="{c(level)}">{escape(text)}</text>'
        for text, (at, side), look in (
            (effect.label, name, f"end-label f-{effect.key}"),
            (effect.verdict, words, "tick"),
        )
    )
    bar = ""
    if effect.interval:
        low, high = (c(scale(end)) for end in effect.interval)
        place = f'y1="{c(y)}" y2="{c(y)}"'
        bar = f'<line class="error s-{effect.key}" x1="{low}" x2="{high}" {place}/>'
    tip = escape(f"{effect.label}: {effect.mean:+.3f} ({effect.ends()}), {effect.verdict}")
    shape = marker(effect.key, scale(effect.mean), y)
    return f'{texts}{bar}<g class="dot s-{effect.key}" data-tip="{tip}">{shape}</g>'


def _both(
    title: str,
    description: str,
    note: str,
    table: Table,
    draw: Callable[[int], tuple[float, list[str]]],
) -> Figure:
    """A figure of both drawings."""
    wide, narrow = (svg(title, description, width, *draw(width)) for width in (WIDE, NARROW))
    return Figure(
        title=title, description=description, wide=wide, narrow=narrow, table=table, note=note
    )
