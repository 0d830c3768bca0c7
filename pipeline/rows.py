"""What a row means: which of its tokens are prediction targets, and how they read as text.

- Token 0 is never a target: a row of T tokens has at most T − 1 targets, the shift is inside it.
- A row with `target_start` is scored from there on; `masked_target` (GPT-2's EOT on FineWeb-Edu)
  is never scored. Nothing else is masked.

Usage: `row_view(lock, "proof", row).scored`, `target_mask(lock.configs["proof"], tokens, start)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tangobench.pipeline.core.lock import Lock
from tangobench.pipeline.reading import Dataset

NDArray = np.ndarray[Any, Any]


def target_mask(config: dict[str, Any], tokens: NDArray, target_start: int | None) -> NDArray:
    """True where a token is predicted and scored."""
    mask = np.ones(len(tokens), np.bool_)
    mask[: max(1, target_start or 0)] = False
    if config["masked_target"] is not None:
        mask &= tokens != config["masked_target"]
    return mask


@dataclass(frozen=True, slots=True)
class RowView:
    """A row with its meaning, for whoever shows it."""

    tokens: NDArray
    scored: NDArray
    masked: NDArray
    """Tokens that are never a target."""
    padding: int
    columns: dict[str, Any]
    """The row's other columns."""


def row_view(lock: Lock, config: str, row: dict[str, Any]) -> RowView:
    """Which tokens of a row are scored, which are masked, and its other columns."""
    convention, tokens = lock.configs[config], row["tokens"]
    masked = convention["masked_target"]
    return RowView(
        tokens,
        target_mask(convention, tokens, row.get("target_start")),
        np.zeros(len(tokens), np.bool_) if masked is None else tokens == masked,
        convention["context"] - len(tokens),
        {name: value for name, value in row.items() if name != "tokens"},
    )


def pieces(dataset: Dataset, tokens: NDArray) -> list[str]:
    """Each token as text; bytes that are no whole character are shown as \\xNN, ids that the
    tokenizer does not know (a lock may name another vocabulary) as ⟨ID⟩.
    """
    tokenizer = dataset.tokenizer
    if tokenizer is not None:

        def text(token: int) -> str:
            return tokenizer.decode_bytes([token]).decode("utf-8", "backslashreplace")
    else:
        from tangobench.pipeline.dm_math.vocabulary import SYMBOLS

        def text(token: int) -> str:
            return str(SYMBOLS[token])

    return [_known(text, token) for token in tokens.tolist()]


def _known(text: Callable[[int], str], token: int) -> str:
    try:
        return text(token)
    except LookupError:
        return f"⟨{token}⟩"
