"""FLASH: GAU inside chunks of 256 tokens and a linear-attention summary of the earlier chunks.

- Offsets in the order quad_q, quad_k, lin_q, lin_k; the quadratic term is scaled by 1/256 and has
  a Toeplitz bias of 2·256 − 1 entries.
- The global term is lin_q · mean over the earlier chunks of (lin_kᵀ v / 256); the current chunk is
  excluded, so one chunk of FLASH is exactly GAU. `global_term = "sum"` does not average.
- Linear in T; decoding keeps one chunk and one S × E sum.

Shapes: B batch, n chunks, L rows of a chunk, S query/key width, E expansion width.
Usage: `h_BTC = FlashBlock(config)(h_BTC)`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tangobench.model import layers
from tangobench.model.decode import PrefixCache
from tangobench.model.gau import GauBlock
from tangobench.model.kernels.squared_relu import squared_relu_mix


class ChunkCache(PrefixCache):
    """The current chunk's quad_k, lin_k and v, and the sum over the earlier chunks."""

    quad_k: Tensor  # (B, L, S)
    lin_k: Tensor  # (B, L, S)
    v: Tensor  # (B, L, E)
    summary: Tensor  # (B, S, E)


class FlashBlock(GauBlock):
    """Chunked mixed attention."""

    def mix(self, heads_BOTS: Tensor, v_BTE: Tensor) -> Tensor:
        """Quadratic term inside each chunk plus the linear term over the chunks before it."""
        batch, length, _ = v_BTE.shape
        rows = min(self.config.chunk, length)
        chunks = -(-length // rows)
        if chunks * rows > length:
            room = (0, 0, 0, chunks * rows - length)
            heads_BOTS, v_BTE = F.pad(heads_BOTS, room), F.pad(v_BTE, room)
        heads = heads_BOTS.unflatten(2, (chunks, rows)).transpose(0, 1).flatten(1, 2)
        v = v_BTE.unflatten(1, (chunks, rows))
        quad_q, quad_k, lin_q, lin_k = heads.unbind(0)
        flat_v = v.flatten(0, 1)
        mixed = squared_relu_mix(quad_q, quad_k, flat_v, self.toeplitz, self.config.chunk)
        if chunks > 1:
            with layers.full_precision(v):
                lin_q = lin_q * self._shares_n11(lin_q, chunks).repeat(batch, 1, 1)
                summaries = _summaries(lin_k.unflatten(0, (batch, chunks)), v)
                mixed = _add_product(mixed, lin_q, summaries.flatten(0, 1))
        return mixed.view(batch, chunks * rows, -1)[:, :length]

    def _shares_n11(self, like: Tensor, chunks: int) -> Tensor:
        """What the sum over the earlier chunks is multiplied by; applied to the narrow queries."""
        number = torch.arange(chunks, device=like.device, dtype=like.dtype).clamp(min=1)
        share = 1 / number if self.config.global_term == "mean" else torch.ones_like(number)
        return share[:, None, None] / self.config.chunk

    def empty_cache(self) -> ChunkCache:
        """One chunk and one sum."""
        return ChunkCache()

    def fill(self, cache: PrefixCache, heads_BOTS: Tensor, v_BTE: Tensor) -> None:
        """Remember a prompt: whole chunks in the summary, the rest in the chunk."""
        assert isinstance(cache, ChunkCache)
        chunk, length = self.config.chunk, v_BTE.shape[1]
        whole = length // chunk * chunk
        lin_k = heads_BOTS[:, 3]
        cache.summary = lin_k[:, :whole].mT @ layers.wide(v_BTE[:, :whole]) / chunk
        cache.quad_k, cache.lin_k, cache.v = (
            F.pad(x[:, whole:], (0, 0, 0, chunk - (length - whole)))
            for x in (heads_BOTS[:, 1], lin_k, v_BTE)
        )
        cache.length = length

    def step_mix(self, heads: Tensor, v: Tensor, cache: PrefixCache, position: int) -> Tensor:
        """Both terms of the newest token; a chunk that is full moves into the summary."""
        assert isinstance(cache, ChunkCache)
        if position == 0:
            self.fill(cache, heads[:, :, :0], v[:, :0])
        chunk = self.config.chunk
        number, slot = divmod(position, chunk)
        cache.quad_k[:, slot] = heads[:, 1, 0]
        cache.lin_k[:, slot] = heads[:, 3, 0]
        cache.v[:, slot] = v[:, 0]
        seen = slice(0, slot + 1)
        score = heads[:, 0] @ cache.quad_k[:, seen].mT / chunk
        score = score + self.toeplitz[chunk - 1 - slot : chunk]
        mixed = layers.wide(score.relu().square().to(v.dtype) @ cache.v[:, seen])
        if number:
            share = number if self.config.global_term == "mean" else 1
            mixed = mixed + heads[:, 2] @ cache.summary / share
        if slot == chunk - 1:
            cache.summary = cache.summary + cache.lin_k.mT @ layers.wide(cache.v) / chunk
        return mixed


def _summaries(lin_k: Tensor, v: Tensor) -> Tensor:
    """Sums of lin_kᵀ v over the chunks before each, (B, n, S, E); the first has none."""
    sums = (lin_k[:, :-1].mT @ layers.wide(v[:, :-1])).cumsum(1)
    return F.pad(sums, (0, 0, 0, 0, 1, 0))


def _add_product(mixed: Tensor, lin_q: Tensor, summaries: Tensor) -> Tensor:
    if mixed.dtype == lin_q.dtype:
        return torch.baddbmm(mixed, lin_q, summaries)
    return mixed + (lin_q @ summaries).to(mixed.dtype)
