"""A browser of real rows: token boundaries, context, scored targets and masked ones.

- Rows are chosen evenly over a split, never at random, and shown as stored.
- A long row is cut to a window around its first target; the page says what was left out.
- A character that takes several tokens is shown at the last of them, `░` at the others.
- Runs of equal meaning are one element, so a row costs about 20 bytes of HTML per token.

Usage: `row_views(dataset, "proof", "train", wanted=8)`.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from tangobench.pipeline.core.lock import Lock
from tangobench.pipeline.reading import Dataset
from tangobench.pipeline.rows import pieces, row_view

_PART: Final = "░"
_WINDOW: Final = 520
_BEFORE: Final = 0.3  # share of a window that is context before the first target


def spread(total: int, wanted: int) -> list[int]:
    """Row numbers spread evenly over a split, the first one included."""
    count = min(total, wanted)
    return [index * total // count for index in range(count)]


def row_views(dataset: Dataset, config: str, split: str, wanted: int) -> list[dict[str, Any]]:
    """Some rows of a split, ready for the page."""
    rows = dataset.rows(config, split)
    return [
        {"number": index, **shown_row(dataset, config, rows[index])}
        for index in spread(len(rows), wanted)
    ]


def shown_row(dataset: Dataset, config: str, row: dict[str, Any]) -> dict[str, Any]:
    """One row: its markup, its counts and its other columns."""
    view = row_view(dataset.lock, config, row)
    tokens, scored = view.tokens, view.scored
    kinds = np.where(view.masked, "m", np.where(scored, "t", "p"))
    start = window_start(scored, len(tokens), _WINDOW)
    stop = min(len(tokens), start + _WINDOW)
    return {
        "tokens": len(tokens),
        "scored": int(scored.sum()),
        "padding": view.padding,
        "before": start,
        "after": len(tokens) - stop,
        "start": start,
        "ids": " ".join(str(token) for token in tokens[start:stop].tolist()),
        "markup": markup(texts(dataset, tokens[start:stop]), kinds[start:stop].tolist()),
        "facts": _facts(dataset.lock, view.columns),
    }


def texts(dataset: Dataset, tokens: np.ndarray[Any, Any]) -> list[str]:
    """Each token's text; bytes join across tokens, for Lean is full of characters that need it."""
    if dataset.tokenizer is None:
        return pieces(dataset, tokens)
    decode = dataset.tokenizer.decode_bytes
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return [decoder.decode(decode([token])) or _PART for token in tokens.tolist()]


def markup(shown: list[str], kinds: list[str], colours: Sequence[str] = ()) -> Markup:
    """Tokens as HTML: one element per run of a kind, one per token inside, of its colour."""
    parts = []
    opened = [f'<i class="{colour}">' for colour in colours] or ["<i>"] * len(shown)
    for kind, run in groupby(zip(kinds, shown, opened, strict=True), key=lambda item: item[0]):
        inside = "".join(f"{i}{escape(visible(text), quote=False)}</i>" for _, text, i in run)
        parts.append(f'<span class="{kind}">{inside}</span>')
    return Markup("".join(parts))


def visible(text: str) -> str:
    """A token's text with line ends and tabs made visible."""
    return text.replace("\t", "⇥\t").replace("\r", "␍").replace("\n", "⏎\n")


def window_start(scored: np.ndarray[Any, Any], length: int, window: int) -> int:
    """Where a window of a row begins that shows its first target after some context."""
    if length <= window:
        return 0
    first = int(scored.argmax()) if scored.any() else 0
    return max(0, min(first - int(_BEFORE * window), length - window))


def _facts(lock: Lock, row: dict[str, Any]) -> list[tuple[str, str]]:
    """The other columns of a row, in words."""
    facts = []
    for name, value in row.items():
        if name == "combination":
            facts.append((name, str(lock.notes["combinations"][value])))
        elif name == "doc_index":
            facts.append(("parts of documents", f"{len(value):,}"))
        elif not isinstance(value, list):
            facts.append((name.replace("_", " "), str(value)))
    return facts
