"""WANGO's block: TANGO's parameters and update, with a linear-time average (paper, §2.2).

- The last 64 sources have TANGO's exponential weights; older ones share the factorised weight
  φ(√τ q)·φ(√τ k), so a sum S of outer products and a sum z replace them.
- Decoding keeps a ring of 64 keys and gates, S and z: constant memory and cost per token.
- n_i = i + 1 in the null gate, as in TANGO.

Shapes: B batch, H heads, W window, K channels of a head, G gate channels of a head.
Usage: `h_BTC = WangoBlock(config)(h_BTC)`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tangobench.model import layers
from tangobench.model.decode import PrefixCache
from tangobench.model.kernels.batched import strip_of
from tangobench.model.kernels.head import HeadKernel
from tangobench.model.kernels.wango_batched import BLOCK, WangoBatched
from tangobench.model.kernels.wango_scan import WangoKernel
from tangobench.model.kernels.wango_strips import SHORT, ShortWangoKernel
from tangobench.model.tango import TangoBlock


class WindowCache(PrefixCache):
    """Ring buffers of the window, and the sums over everything older."""

    ring_k: Tensor  # (B, H, W, K)
    ring_phi: Tensor  # (B, H, W, K): φ(√τ k), ready to move into S and z
    ring_gate: Tensor  # (B, H, W, G)
    s: Tensor  # (B, H, K, G)
    z: Tensor  # (B, H, K)


class WangoBlock(TangoBlock):
    """Windowed aggregation."""

    @property
    def kernel(self) -> HeadKernel:
        """The blockwise scan; strips where the sequence is short."""
        return WangoKernel(self.config.window)

    def wide_kernel(self, length: int) -> HeadKernel:
        """The same for many heads at once."""
        if length <= SHORT:
            return ShortWangoKernel(strip=strip_of(length), window=self.config.window)
        return WangoBatched(self.config.window)

    def triton_kernel(self) -> HeadKernel:
        """The same in Triton, for the paper's window."""
        from tangobench.model.kernels.triton.wango import WangoTriton

        window = self.config.window
        return WangoTriton(window) if window == BLOCK else WangoBatched(window)

    def features(self, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        """(τ·q, k) for recent pairs and (φ(√τ q), φ(√τ k)) for older ones."""
        log_tau = layers.log_tau_H11(self.theta, q)
        root = (log_tau / 2).exp()
        return q * log_tau.exp(), k, layers.phi(root * q), layers.phi(root * k)

    def empty_cache(self) -> WindowCache:
        """A window and two sums."""
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
        cache.ring_k, cache.ring_phi, cache.ring_gate = (
            _ring(x[:, :, older:], slots, window) for x in (k_BHTK, phi, gate_BHTG)
        )
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


def _ring(x_BHTX: Tensor, slots: Tensor, window: int) -> Tensor:
    ring = x_BHTX.new_zeros(*x_BHTX.shape[:2], window, x_BHTX.shape[3])
    ring[:, :, slots] = x_BHTX
    return ring
