"""Decoding token by token: the growing cache of the quadratic models, and the generation loop.

- All rows of a batch are at the same position. A row with a longer prompt is fed its own tokens
  while shorter ones already generate, so ragged prompts need neither padding nor masks.
- Greedy unless a temperature is given; sampling draws from the caller's generator only.
- Decoding equals the parallel forward pass at every position (tests).

Shapes: B batch, T positions, H heads, X channels.
Usage: `new_tokens = model.generate(prompt, max_new_tokens=32, stop=50256)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from tangobench.errors import InputError

if TYPE_CHECKING:
    from tangobench.model.language import LanguageModel


_SPARE: Final = 64  # positions; a short prefix grows as often as a long one


class PrefixCache:
    """Keys and values of all positions so far.

    Buffers have room for a quarter more than they must hold, so an append is O(1) amortised.
    """

    def __init__(self) -> None:
        self.length = 0
        self._buffers: list[Tensor] = []

    def extend(self, *new_BHTX: Tensor) -> list[Tensor]:
        """Append along the position axis; give views of everything up to now."""
        stop = self.length + new_BHTX[0].shape[2]
        if not self._buffers or stop > self._buffers[0].shape[2]:
            old = self._buffers
            self._buffers = [_room(x, stop + stop // 4 + _SPARE) for x in new_BHTX]
            for buffer, before in zip(self._buffers, old, strict=False):  # the first has none
                buffer[:, :, : self.length] = before[:, :, : self.length]
        for buffer, new in zip(self._buffers, new_BHTX, strict=True):
            buffer[:, :, self.length : stop] = new
        self.length = stop
        return [buffer[:, :, :stop] for buffer in self._buffers]

    def reorder(self, rows_B: Tensor) -> None:
        """Row i becomes a copy of row `rows_B[i]`, in every tensor of this cache."""
        self._buffers = [buffer[rows_B] for buffer in self._buffers]
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value[rows_B])


def _room(like: Tensor, length: int) -> Tensor:
    return like.new_empty(*like.shape[:2], length, like.shape[3])


@dataclass(kw_only=True, slots=True)
class DecodeState:
    """One cache per block application (shared blocks have several) and the next position."""

    caches: list[Any] = field(default_factory=list)
    position: int = 0


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompt_BT: Tensor,
    max_new_tokens: int,
    *,
    stop: int | None = None,
    lengths: Tensor | None = None,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """New tokens of each row, (B, at most max_new_tokens).

    `lengths` gives each row's prompt length where rows are right-padded. A row that has produced
    `stop` (included) is filled up with it; generation ends when all rows have.
    """
    batch, width = prompt_BT.shape
    if lengths is None:
        lengths = torch.full((batch,), width)
    lengths = lengths.to(prompt_BT.device)
    shortest = int(lengths.min())
    if max_new_tokens < 1 or shortest < 1 or int(lengths.max()) > width:
        raise InputError(
            f"generate: {max_new_tokens} new tokens after prompts of {shortest} to"
            f" {int(lengths.max())} tokens in rows of {width}",
            kind="bad-prompt",
            fix="ask for at least one token, after prompts of at least one token",
        )
    logits_BV, state = model.prefill(prompt_BT[:, :shortest])
    out = prompt_BT.new_full((batch, max_new_tokens), 0 if stop is None else stop)
    done = torch.zeros(batch, dtype=torch.bool, device=prompt_BT.device)
    rows = torch.arange(batch, device=prompt_BT.device)
    while True:
        token_B = _choose(logits_BV, temperature, generator).to(prompt_BT.dtype)
        index_B = state.position - lengths
        prompted = index_B < 0
        token_B = torch.where(prompted, prompt_BT[rows, min(state.position, width - 1)], token_B)
        writing = ~prompted & ~done & (index_B < max_new_tokens)
        out[rows[writing], index_B[writing]] = token_B[writing]
        done |= writing & (index_B + 1 == max_new_tokens)
        if stop is not None:
            done |= writing & (token_B == stop)
        if bool(done.all()):
            return out[:, : _longest(out, stop)]
        logits_BV = model.step(token_B, state)


def _choose(logits_BV: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    if temperature == 0.0:
        return logits_BV.argmax(-1)
    weights = (logits_BV / temperature).softmax(-1)
    return torch.multinomial(weights, 1, generator=generator)[:, 0]


def _longest(out: Tensor, stop: int | None) -> int:
    """Columns up to the last row's stop token."""
    if stop is None:
        return out.shape[1]
    return int((out != stop).sum(1).max().clamp(max=out.shape[1] - 1)) + 1
