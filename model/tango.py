"""TANGO's and WANGO's blocks: one cross-token gated update instead of attention and feed-forward.

- Both have norm, wq, wk, wg, wv, wo, theta and null_bias; matrices are (out, in), no biases.
- TANGO (paper, §2.1): RoPE, then unit length (they commute), no 1/√d_h; τ = exp(min(θ, log 20)).
- WANGO (§2.2): TANGO's weights for the last 64 sources; older ones share φ(√τ q)·φ(√τ k), so that a
  sum S of outer products and a sum z replace them. n_i = i + 1 in the null gate of both.
Shapes: B batch, T positions, C channels, H heads, K = C/H, F gated width, G = F/H, W window.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tangobench.model import layers
from tangobench.model.config import ModelConfig
from tangobench.model.kernels import crossgate
from tangobench.model.kernels.crossgate import (
    SHORT,
    HeadKernel,
    TangoKernel,
    average,
    null_of_heads,
)
from tangobench.model.kernels.wango import BLOCK, WangoKernel
from tangobench.model.layers import PrefixCache


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

    def kernel(self, chosen: crossgate.Kernel, length: int) -> HeadKernel:
        if chosen == "triton":
            from tangobench.model.kernels.triton.tango import TangoTriton

            return TangoTriton()
        return TangoKernel()

    def forward(self, h_BTC: Tensor, cache: PrefixCache | None = None) -> Tensor:
        """h + W_o(ḡ ⊙ W_v x), eq. 3; fills `cache` when decoding begins."""
        x_BTC = layers.rms_norm(h_BTC, self.norm)
        q, k = self.query_key(x_BTC, 0)
        features = self.features(q, k)
        values = x_BTC.shape[:2].numel() * self.config.width
        inputs = (self.wv, null_of_heads(q, self.null_bias), *features)
        if cache is None and crossgate.recomputes(x_BTC, values):
            return h_BTC + self._recomputed_update(x_BTC, inputs)
        gate_BTF = F.silu(F.linear(x_BTC, self.wg))
        if cache is not None:
            self.fill(cache, k, layers.split_heads(gate_BTF, self.config.heads))
        return h_BTC + F.linear(self._gated(x_BTC, gate_BTF, *inputs), self.wo)

    def _gated(
        self, x: Tensor, gate: Tensor, wv: Tensor, null_H: Tensor, *features: Tensor
    ) -> Tensor:
        """ḡ ⊙ W_v x of all heads, or of some."""
        kernel = self.kernel(crossgate.chosen(x), x.shape[1])
        return average(kernel, features, gate, null_H) * F.linear(x, wv)

    def _recomputed_update(self, x_BTC: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        """W_o(ḡ ⊙ W_v x), recomputed in the backward pass; head by head if the kernel is strips."""

        def gated(x: Tensor, wg: Tensor, *inputs: Tensor) -> Tensor:
            return self._gated(x, F.silu(F.linear(x, wg)), *inputs)

        parts = self.config.heads if crossgate.chosen(x_BTC) == "strips" else 1
        dims = (1, 0, 0, 0, *(1 for _ in inputs[2:]))
        return layers.by_parts(gated, x_BTC, (self.wo, self.wg, *inputs), dims, parts)

    def query_key(self, x_BTC: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Unit-length rotated queries and keys, (B, H, T, K), in at least float32."""
        heads, base = self.config.heads, self.config.rope_base
        q, k = (layers.split_heads(F.linear(x_BTC, w), heads) for w in (self.wq, self.wk))
        return layers.unit(layers.rope(q, start, base)), layers.unit(layers.rope(k, start, base))

    def features(self, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        """What the kernel sees of queries and keys."""
        return q * layers.log_tau_H11(self.theta, q).exp(), k

    def fill(self, cache: PrefixCache, k_BHTK: Tensor, gate_BHTG: Tensor) -> None:
        """Remember a prompt."""
        cache.extend(k_BHTK, gate_BHTG)

    def step(self, h_B1C: Tensor, cache: PrefixCache, position: int) -> Tensor:
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
        return newest_average(self.features(q, k)[0], keys, gates, self.null_bias)


def newest_average(
    scaled_q_BH1K: Tensor, keys_BHTK: Tensor, values_BHTG: Tensor, null_bias: Tensor | None
) -> Tensor:
    """Eq. 5 and 6 for the last position alone, (B, H, 1, G)."""
    mass_BH1T = (scaled_q_BH1K @ keys_BHTK.mT).exp()
    null_mass_H11 = layers.null_mass_H11(null_bias, mass_BH1T, keys_BHTK.shape[2] - 1)
    total = mass_BH1T.sum(-1, keepdim=True) + null_mass_H11
    return layers.wide(mass_BH1T.to(values_BHTG.dtype) @ values_BHTG) / total


class WindowCache(PrefixCache):
    """Ring buffers of the window, and the sums over everything older."""

    ring_k: Tensor  # (B, H, W, K)
    ring_phi: Tensor  # (B, H, W, K): φ(√τ k), ready to move into S and z
    ring_gate: Tensor  # (B, H, W, G)
    s: Tensor  # (B, H, K, G)
    z: Tensor  # (B, H, K)


class WangoBlock(TangoBlock):
    """Windowed aggregation; decoding keeps a ring of W keys and gates, S and z."""

    def kernel(self, chosen: crossgate.Kernel, length: int) -> HeadKernel:
        window = self.config.window
        if chosen == "triton" and window == BLOCK:
            from tangobench.model.kernels.triton.wango import WangoTriton

            return WangoTriton(window)
        return TangoKernel(window=window) if length <= SHORT else WangoKernel(window)

    def features(self, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        """(τ·q, k) for recent pairs and (φ(√τ q), φ(√τ k)) for older ones."""
        log_tau = layers.log_tau_H11(self.theta, q)
        root = (log_tau / 2).exp()
        return q * log_tau.exp(), k, layers.phi(root * q), layers.phi(root * k)

    def empty_cache(self) -> WindowCache:
        return WindowCache()

    def fill(self, cache: PrefixCache, k_BHTK: Tensor, gate_BHTG: Tensor) -> None:
        """Remember a prompt: its last W positions in the ring, the others in S and z."""
        assert isinstance(cache, WindowCache)
        window, length = self.config.window, k_BHTK.shape[2]
        phi = self.features(k_BHTK, k_BHTK)[3]
        older = max(0, length - window)
        cache.s = phi[:, :, :older].mT @ layers.wide(gate_BHTG[:, :, :older])
        cache.z = phi[:, :, :older].sum(2)
        slots = torch.arange(older, length, device=phi.device) % window
        recent = [x[:, :, older:] for x in (k_BHTK, phi, gate_BHTG)]
        rings = [x.new_zeros(*x.shape[:2], window, x.shape[3]) for x in recent]
        for ring, x in zip(rings, recent, strict=True):
            ring[:, :, slots] = x
        cache.ring_k, cache.ring_phi, cache.ring_gate = rings
        cache.length = length

    def step_average(
        self, q: Tensor, k: Tensor, gate: Tensor, cache: PrefixCache, position: int
    ) -> Tensor:
        """ḡ of the newest token; the token that leaves the window moves into S and z."""
        assert isinstance(cache, WindowCache)
        if position == 0:
            self.fill(cache, k[:, :, :0], gate[:, :, :0])
        scaled_q, _, phi_q, phi_k = self.features(q, k)
        slot = position % self.config.window
        if position >= self.config.window:
            leaving = cache.ring_phi[:, :, slot]
            cache.s += leaving[..., None] * cache.ring_gate[:, :, slot, None]
            cache.z += leaving
        for ring, new in zip(
            (cache.ring_k, cache.ring_phi, cache.ring_gate), (k, phi_k, gate), strict=True
        ):
            ring[:, :, slot] = new[:, :, 0]
        seen = min(position + 1, self.config.window)
        mass_BH1W = (scaled_q @ cache.ring_k[:, :, :seen].mT).exp()
        total = mass_BH1W.sum(-1, keepdim=True) + phi_q @ cache.z[..., None]
        recent = layers.wide(mass_BH1W.to(gate.dtype) @ cache.ring_gate[:, :, :seen])
        return (recent + phi_q @ cache.s) / (
            total + layers.null_mass_H11(self.null_bias, q, position)
        )
