"""GAU and FLASH: u ⊙ (A v) with squared-ReLU weights, over all pairs or inside chunks of 256.

- Parameters: norm_weight, norm_bias, w_in, b_in, gamma, beta, toeplitz, w_out, b_out. SiLU on
  u, v and the base; queries and keys are offset-scaled, rotated copies of the base.
- GAU divides by the configured context N, a constant: with the actual length an output would
  change with what follows it. FLASH divides by the chunk and adds a summary of earlier chunks.
Shapes: B batch, T positions, C channels, S query/key width, E width, n chunks of L rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tangobench.errors import InputError
from tangobench.model import layers
from tangobench.model.config import ModelConfig
from tangobench.model.kernels.squared_relu import squared_relu_mix
from tangobench.model.layers import PrefixCache


class GauBlock(nn.Module):
    """One GAU; the base of FLASH, which has two more offsets and a shorter bias."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        c, e, s = config.d_model, config.width, config.qk_width
        self.config = config
        self.norm_weight = nn.Parameter(torch.empty(c))
        self.norm_bias = nn.Parameter(torch.empty(c))
        self.w_in = nn.Parameter(torch.empty(2 * e + s, c))
        self.b_in = nn.Parameter(torch.empty(2 * e + s))
        self.gamma = nn.Parameter(torch.empty(config.offsets, s))
        self.beta = nn.Parameter(torch.empty(config.offsets, s))
        self.toeplitz = nn.Parameter(torch.empty(2 * config.bias_reach - 1))
        self.w_out = nn.Parameter(torch.empty(c, e))
        self.b_out = nn.Parameter(torch.empty(c))

    def forward(self, h_BTC: Tensor, cache: PrefixCache | None = None) -> Tensor:
        """h + W_o(u ⊙ A v) + b_o; fills `cache` when decoding begins."""
        u_BTE, v_BTE, heads_BOTS = self.project(h_BTC, 0)
        if cache is not None:
            self.fill(cache, heads_BOTS, v_BTE)
        return h_BTC + F.linear(u_BTE * self.mix(heads_BOTS, v_BTE), self.w_out, self.b_out)

    def project(self, h_BTC: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """u, v and the rotated offset-scaled heads (B, offsets, T, S)."""
        x_BTC = layers.layer_norm(h_BTC, self.norm_weight, self.norm_bias)
        inner = F.silu(F.linear(x_BTC, self.w_in, self.b_in))
        e, s = self.config.width, self.config.qk_width
        u_BTE, v_BTE, base_BTS = inner.split((e, e, s), dim=-1)
        base = layers.wide(base_BTS)[:, None]
        heads = torch.addcmul(self.beta[:, None], base, self.gamma[:, None])
        return u_BTE, v_BTE, layers.rope(heads, start, self.config.rope_base)

    def mix(self, heads_BOTS: Tensor, v_BTE: Tensor) -> Tensor:
        """A v over every causal pair."""
        self._check_position(v_BTE.shape[1])
        q, k = heads_BOTS.unbind(1)
        return squared_relu_mix(q, k, v_BTE, self.toeplitz, self.config.context)

    def fill(self, cache: PrefixCache, heads_BOTS: Tensor, v_BTE: Tensor) -> None:
        """Remember a prompt."""
        cache.extend(heads_BOTS[:, 1:2], v_BTE[:, None])

    def step(self, h_B1C: Tensor, cache: PrefixCache, position: int) -> Tensor:
        u, v, heads = self.project(h_B1C, position)
        with layers.full_precision(heads):
            mixed = self.step_mix(heads, v, cache, position)
        return h_B1C + F.linear(u * mixed.to(u.dtype), self.w_out, self.b_out)

    def step_mix(self, heads: Tensor, v: Tensor, cache: PrefixCache, position: int) -> Tensor:
        """A v of the newest token, (B, 1, E)."""
        self._check_position(position + 1)
        keys, values = cache.extend(heads[:, 1:2], v[:, None])
        return self.newest(heads[:, 0], keys[:, 0], values[:, 0])

    def newest(self, q_B1S: Tensor, keys_BTS: Tensor, values_BTE: Tensor) -> Tensor:
        """Squared-ReLU weights of the last position times the values."""
        reach = self.config.bias_reach
        bias = self.toeplitz[reach - keys_BTS.shape[1] : reach]
        score = q_B1S @ keys_BTS.mT / reach + bias
        return score.relu().square().to(values_BTE.dtype) @ values_BTE

    def _check_position(self, length: int) -> None:
        if length > self.config.context:
            raise InputError(
                f"GAU: {length} positions, but its Toeplitz bias and 1/N are made for a context"
                f" of {self.config.context}",
                kind="context-too-long",
                fix=f"give at most {self.config.context} tokens or a config with a longer context",
            )


class ChunkCache(PrefixCache):
    """The current chunk's quad_k, lin_k and v, and the sum over the earlier chunks."""

    quad_k: Tensor  # (B, L, S)
    lin_k: Tensor  # (B, L, S)
    v: Tensor  # (B, L, E)
    summary: Tensor  # (B, S, E)


class FlashBlock(GauBlock):
    """Offsets quad_q, quad_k, lin_q, lin_k; the summary is the mean over the chunks before the
    current one of (lin_kᵀ v / 256), so that one chunk of FLASH is exactly GAU."""

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
                earlier = torch.arange(chunks, device=v.device, dtype=lin_q.dtype).clamp(min=1)
                share = 1 / earlier if self.config.global_term == "mean" else earlier**0
                share = share[:, None, None] / self.config.chunk  # applied to the narrow queries
                lin_q = lin_q * share.repeat(batch, 1, 1)
                lin_k = lin_k.unflatten(0, (batch, chunks))[:, :-1]
                sums = (lin_k.mT @ layers.wide(v[:, :-1])).cumsum(1)  # of the chunks before each
                sums = F.pad(sums, (0, 0, 0, 0, 1, 0)).flatten(0, 1)
                if mixed.dtype == lin_q.dtype:
                    mixed = torch.baddbmm(mixed, lin_q, sums)
                else:
                    mixed = mixed + (lin_q @ sums).to(mixed.dtype)
        return mixed.view(batch, chunks * rows, -1)[:, :length]

    def empty_cache(self) -> ChunkCache:
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
        mixed = layers.wide(self.newest(heads[:, 0], cache.quad_k[:, seen], cache.v[:, seen]))
        if number:
            share = number if self.config.global_term == "mean" else 1
            mixed = mixed + heads[:, 2] @ cache.summary / share
        if slot == chunk - 1:
            cache.summary = cache.summary + cache.lin_k.mT @ layers.wide(cache.v) / chunk
        return mixed
