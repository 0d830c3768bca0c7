"""Pictures for docs: intervals of differences as one self-contained SVG.

- Drawn from results alone, with coordinates of one decimal: equal numbers give equal bytes.
- Own colours for light and dark pages: a README shows it as an image, without any page's CSS.

Usage: `forest("Sharing", [("TANGO", (0.036, 0.010, 0.062))], "nats")`.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from tangobench.eval.intervals import Interval

_LEFT, _WIDTH, _TALL, _TOP = 430, 900, 30, 60
_STYLE: Final = (
    "text{font:14px system-ui,sans-serif;fill:#222}.m{text-anchor:middle;font-size:12px}"
    ".e{text-anchor:end}.t{font-weight:600}line{stroke:#999}.i{stroke:#1b6ca8;stroke-width:3}"
    ".u{stroke:#999;stroke-width:3}circle{fill:#1b6ca8}.v{fill:#999}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}line{stroke:#777}"
    ".i{stroke:#6db3e8}circle{fill:#6db3e8}}"
)


def forest(title: str, rows: Sequence[tuple[str, Interval]], unit: str) -> str:
    """A line per difference with its interval; grey where the interval holds zero."""
    ends = [0.0, *(value for _, interval in rows for value in interval)]
    low, high = min(ends), max(ends)
    room = 0.05 * (high - low or 1.0)
    low, high = low - room, high + room

    def x(value: float) -> str:
        return f"{_LEFT + (_WIDTH - _LEFT - 20) * (value - low) / (high - low):.1f}"

    bottom = _TOP + _TALL * len(rows)
    parts = [
        f'<text class="t" x="10" y="24">{escape(title)}</text>',
        f'<line x1="{x(0)}" x2="{x(0)}" y1="{_TOP - 16}" y2="{bottom}"/>',
        f'<text class="m" x="{x(0)}" y="{bottom + 18}">0 {escape(unit)}</text>',
    ]
    for number, (label, (middle, left, right)) in enumerate(rows):
        y = _TOP + _TALL * number
        sure = left * right > 0
        parts += [
            f'<text class="e" x="{_LEFT - 12}" y="{y + 5}">{escape(label)}</text>',
            f'<line class="{"i" if sure else "u"}" x1="{x(left)}" x2="{x(right)}" y1="{y}" '
            f'y2="{y}"/>',
            f'<circle class="{"" if sure else "v"}" cx="{x(middle)}" cy="{y}" r="5"/>',
            f'<text class="m" x="{x(middle)}" y="{y - 8}">{middle:+.3f}</text>',
        ]
    size = f'viewBox="0 0 {_WIDTH} {bottom + 30}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">'
        f"<style>{_STYLE}</style>{''.join(parts)}</svg>\n"
    )
