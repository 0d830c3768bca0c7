"""Full-attention gated attention unit (GAU): u ⊙ (A v) with squared-ReLU weights.

- Parameters: norm_weight, norm_bias, w_in, b_in, gamma, beta, toeplitz, w_out, b_out.
- SiLU on all of u, v and the base; queries and keys are offset-scaled, rotated copies of the base.
- Weights are relu(q·k / N + w[(j − i) + N − 1])² with N the configured context, a constant: with
  the actual length instead, a prefix's output would change with what follows it.

Shapes: B batch, T positions, C model channels, S query/key width, E expansion width.
Usage: `h_BTC = GauBlock(config)(h_BTC)`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tangobench.errors import InputError
from tangobench.model import layers
from tangobench.model.config import ModelConfig
from tangobench.model.decode import PrefixCache
from tangobench.model.kernels.squared_relu import squared_relu_mix


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

    def empty_cache(self) -> PrefixCache:
        """Keys and values of the whole prefix."""
        return PrefixCache()

    def fill(self, cache: PrefixCache, heads_BOTS: Tensor, v_BTE: Tensor) -> None:
        """Remember a prompt."""
        cache.extend(heads_BOTS[:, 1:2], v_BTE[:, None])

    def step(self, h_B1C: Tensor, cache: PrefixCache, position: int) -> Tensor:
        """One more token."""
        u, v, heads = self.project(h_B1C, position)
        with layers.full_precision(heads):
            mixed = self.step_mix(heads, v, cache, position)
        return h_B1C + F.linear(u * mixed.to(u.dtype), self.w_out, self.b_out)

    def step_mix(self, heads: Tensor, v: Tensor, cache: PrefixCache, position: int) -> Tensor:
        """A v of the newest token, (B, 1, E)."""
        self._check_position(position + 1)
        keys, values = cache.extend(heads[:, 1:2], v[:, None])
        score = heads[:, 0] @ keys[:, 0].mT / self.config.context
        reach = self.config.bias_reach
        score = score + self.toeplitz[reach - 1 - position : reach]
        return score.relu().square().to(values.dtype) @ values[:, 0]

    def _check_position(self, length: int) -> None:
        if length > self.config.context:
            raise InputError(
                f"GAU: {length} positions, but its Toeplitz bias and 1/N are made for a context"
                f" of {self.config.context}",
                kind="context-too-long",
                fix=f"give at most {self.config.context} tokens or a config with a longer context",
            )
