"""TANGO's block: one cross-token gated update instead of attention and feed-forward (paper, §2.1).

- Parameters: norm, wq, wk, wg, wv, wo, theta, null_bias; matrices are (out, in), no biases.
- RoPE, then unit length (they commute), no 1/√d_h; τ = exp(min(θ, log 20)).
- The fast path is exact. It is fused with the projections when activations would be large.

Shapes: B batch, T positions, C model channels, H heads, K channels of a head, F gated width,
G = F/H.
Usage: `h_BTC = TangoBlock(config)(h_BTC)`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tangobench.model import layers
from tangobench.model.config import ModelConfig
from tangobench.model.decode import PrefixCache
from tangobench.model.kernels import select
from tangobench.model.kernels.batched import AllHeads, strip_of
from tangobench.model.kernels.crossgate import average, fused_update
from tangobench.model.kernels.head import HeadKernel
from tangobench.model.kernels.tango_strips import TangoKernel


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
        """The exact full-prefix average, strip by strip."""
        return TangoKernel()

    def wide_kernel(self, length: int) -> HeadKernel:
        """The same for many heads at once."""
        return TangoKernel(strip=strip_of(length))

    def triton_kernel(self) -> HeadKernel:
        """The same in Triton."""
        from tangobench.model.kernels.triton.tango import TangoTriton

        return TangoTriton()

    def forward(self, h_BTC: Tensor, cache: PrefixCache | None = None) -> Tensor:
        """h + W_o(ḡ ⊙ W_v x), eq. 3; fills `cache` when decoding begins."""
        x_BTC = layers.rms_norm(h_BTC, self.norm)
        q, k = self.query_key(x_BTC, 0)
        features = self.features(q, k)
        values = x_BTC.shape[:2].numel() * self.config.width
        if cache is None and select.recomputes(x_BTC, values):
            return h_BTC + self._recomputed_update(x_BTC, features)
        gate_BTF = F.silu(F.linear(x_BTC, self.wg))
        if cache is not None:
            self.fill(cache, k, layers.split_heads(gate_BTF, self.config.heads))
        return h_BTC + self._update(x_BTC, gate_BTF, features)

    def _update(self, x_BTC: Tensor, gate_BTF: Tensor, features: tuple[Tensor, ...]) -> Tensor:
        kernel: HeadKernel | AllHeads = self.kernel
        if (chosen := select.chosen(x_BTC)) != "strips":
            triton = chosen == "triton" and x_BTC.dtype == torch.float32
            kernel = AllHeads(self.triton_kernel() if triton else self.wide_kernel(x_BTC.shape[1]))
        mean_BTF = average(kernel, features, gate_BTF, self.null_bias)
        return F.linear(mean_BTF * F.linear(x_BTC, self.wv), self.wo)

    def _recomputed_update(self, x_BTC: Tensor, features: tuple[Tensor, ...]) -> Tensor:
        """`_update` that keeps only its inputs: head by head, or as a whole where heads are not."""
        if select.chosen(x_BTC) == "strips":
            weights = (self.wg, self.wv, self.wo)
            return fused_update(self.kernel, features, x_BTC, weights, self.null_bias)

        def update(x_BTC: Tensor, *features: Tensor) -> Tensor:
            return self._update(x_BTC, F.silu(F.linear(x_BTC, self.wg)), features)

        y_BTC: Tensor = checkpoint(
            update, x_BTC, *features, use_reentrant=False, preserve_rng_state=False
        )
        return y_BTC

    def query_key(self, x_BTC: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Unit-length rotated queries and keys, (B, H, T, K), in at least float32."""
        heads, base = self.config.heads, self.config.rope_base
        q, k = (layers.split_heads(F.linear(x_BTC, w), heads) for w in (self.wq, self.wk))
        return layers.unit(layers.rope(q, start, base)), layers.unit(layers.rope(k, start, base))

    def features(self, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        """What the kernel sees of queries and keys."""
        return q * layers.log_tau_H11(self.theta, q).exp(), k

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
        null_mass = layers.null_mass_H11(self.null_bias, q, position)
        return newest_average(self.features(q, k)[0], keys, gates, null_mass)


def newest_average(
    scaled_q_BH1K: Tensor, keys_BHTK: Tensor, values_BHTG: Tensor, null_mass_H11: Tensor
) -> Tensor:
    """Eq. 5 and 6 for the last position alone, (B, H, 1, G)."""
    mass_BH1T = (scaled_q_BH1K @ keys_BHTK.mT).exp()
    total = mass_BH1T.sum(-1, keepdim=True) + null_mass_H11
    return layers.wide(mass_BH1T.to(values_BHTG.dtype) @ values_BHTG) / total
