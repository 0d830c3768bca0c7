"""TANGO's block: one cross-token gated update instead of attention and feed-forward (paper, §2.1).

- Parameters: norm, wq, wk, wg, wv, wo, theta, null_bias; matrices are (out, in), no biases.
- RoPE, then unit length (they commute), no 1/√d_h; τ = exp(min(θ, log 20)).
- The fast path is exact. It is fused with the projections when activations would be large.

Shapes: B batch, T positions, C model channels, H heads, K channels of a head, F gated width,
G = F/H.
Usage: `h_BTC = TangoBlock(config)(h_BTC)`.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tangobench.model import layers
from tangobench.model.config import ModelConfig
from tangobench.model.crossgate import HeadKernel, average, fused_update
from tangobench.model.decode import PrefixCache
from tangobench.model.init import INITIAL_THETA
from tangobench.model.tango_kernel import TangoKernel

FUSE_ABOVE: Final = 1 << 24  # gate entries (B·T·F) from which a block recomputes its activations


class TangoBlock(nn.Module):
    """Full-prefix aggregation; the base of WANGO, which has the same parameters."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        c, f = config.d_model, config.width
        self.config = config
        self.norm = nn.Parameter(torch.empty(c))
        self.wq = nn.Parameter(torch.empty(c, c))
        self.wk = nn.Parameter(torch.empty(c, c))
        self.wg = nn.Parameter(torch.empty(f, c))
        self.wv = nn.Parameter(torch.empty(f, c))
        self.wo = nn.Parameter(torch.empty(c, f))
        self.theta = nn.Parameter(torch.empty(config.heads)) if config.temperature else None
        self.null_bias = nn.Parameter(torch.empty(config.heads)) if config.null_gate else None

    @property
    def kernel(self) -> HeadKernel:
        """The exact full-prefix average."""
        return TangoKernel()

    def forward(self, h_BTC: Tensor, cache: PrefixCache | None = None) -> Tensor:
        """h + W_o(ḡ ⊙ W_v x), eq. 3; fills `cache` when decoding begins."""
        x_BTC = layers.rms_norm(h_BTC, self.norm)
        q, k = self.query_key(x_BTC, 0)
        features = self.features(q, k)
        if cache is None and x_BTC.shape[:2].numel() * self.config.width > FUSE_ABOVE:
            weights = (self.wg, self.wv, self.wo)
            return h_BTC + fused_update(self.kernel, features, x_BTC, weights, self.null_bias)
        gate_BTF = F.silu(F.linear(x_BTC, self.wg))
        mean_BTF = average(self.kernel, features, gate_BTF, self.null_bias)
        if cache is not None:
            self.fill(cache, k, layers.split_heads(gate_BTF, self.config.heads))
        return h_BTC + F.linear(mean_BTF * F.linear(x_BTC, self.wv), self.wo)

    def query_key(self, x_BTC: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Unit-length rotated queries and keys, (B, H, T, K), in at least float32."""
        heads, base = self.config.heads, self.config.rope_base
        q, k = (layers.split_heads(F.linear(x_BTC, w), heads) for w in (self.wq, self.wk))
        return layers.unit(layers.rope(q, start, base)), layers.unit(layers.rope(k, start, base))

    def log_tau_H11(self, like: Tensor) -> Tensor:
        """log τ per head; constant in the ablation without a learned temperature."""
        if self.theta is None:
            return like.new_full((self.config.heads, 1, 1), INITIAL_THETA)
        return layers.log_tau(self.theta)[:, None, None]

    def features(self, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        """What the kernel sees of queries and keys."""
        return q * self.log_tau_H11(q).exp(), k

    def empty_cache(self) -> PrefixCache:
        """Keys and gates of the whole prefix."""
        return PrefixCache()

    def fill(self, cache: PrefixCache, k_BHTK: Tensor, gate_BHTG: Tensor) -> None:
        """Remember a prompt."""
        cache.extend(k_BHTK, gate_BHTG)

    def step(self, h_B1C: Tensor, cache: PrefixCache, position: int) -> Tensor:
        """One more token."""
        x_B1C = layers.rms_norm(h_B1C, self.norm)
        q, k = self.query_key(x_B1C, position)
        gate = layers.split_heads(F.silu(F.linear(x_B1C, self.wg)), self.config.heads)
        with layers.full_precision(q):
            mean = self.step_average(q, k, gate, cache, position)
        product = layers.merge_heads(mean).to(gate.dtype) * F.linear(x_B1C, self.wv)
        return h_B1C + F.linear(product, self.wo)

    def step_average(
        self, q: Tensor, k: Tensor, gate: Tensor, cache: PrefixCache, position: int
    ) -> Tensor:
        """ḡ of the newest token, (B, H, 1, G)."""
        keys, gates = cache.extend(k, gate)
        mass_BH1T = (self.features(q, k)[0] @ keys.mT).exp()
        total = mass_BH1T.sum(-1, keepdim=True) + self.null_mass_H11(q, position)
        return layers.wide(mass_BH1T.to(gates.dtype) @ gates) / total

    def null_mass_H11(self, like: Tensor, position: int) -> Tensor:
        """n · exp(b) of one position."""
        if self.null_bias is None:
            return like.new_zeros(self.config.heads, 1, 1)
        return ((position + 1) * self.null_bias.to(like.dtype).exp())[:, None, None]
