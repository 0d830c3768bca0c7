"""Small pieces that the six architectures share: norms, RoPE, unit length, features, the cache.

- Everything computes in at least float32 and never below its input's dtype: a float64 model stays
  float64, a bfloat16 activation is normalised in float32. Parameters live in the blocks.
Shapes: B batch, T positions, C model channels, H heads, K channels of a head, X any channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

RMS_EPS: Final = 1e-6
LAYER_EPS: Final = 1e-5
UNIT_EPS: Final = 1e-6
PHI_EPS: Final = 1e-4
LOG_TAU_MAX: Final = math.log(20.0)
INITIAL_THETA: Final = math.log(10.0)
_SPARE: Final = 64  # positions; a short prefix grows as often as a long one


def wide(x: Tensor) -> Tensor:
    """`x` in at least float32."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm over the last axis."""
    x = wide(x)
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), RMS_EPS)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """LayerNorm over the last axis."""
    x = wide(x)
    return F.layer_norm(x, (x.shape[-1],), weight.to(x.dtype), bias.to(x.dtype), LAYER_EPS)


@lru_cache(maxsize=8)
def _rope_table(
    length: int, channels: int, base: float, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    # Angles in float64: in float32 an angle of 8,192 radians is already 5e-4 off.
    # Never inference tensors: the cached table also serves later training steps.
    with torch.inference_mode(False):
        even = torch.arange(0, channels, 2, dtype=torch.float64, device=device)
        frequency = base ** (-even / channels)
        angle = torch.arange(length, dtype=torch.float64, device=device)[:, None] * frequency
        return angle.cos().to(dtype), angle.sin().to(dtype)


def rope(x: Tensor, start: int, base: float) -> Tensor:
    """Rotate the pairs (c, c + half) of `x[..., T, channels]`, positions `start`, `start` + 1, …"""
    x = wide(x)
    length = start + x.shape[-2]
    # Rounded up, so that decoding position after position reuses one table.
    cos, sin = _rope_table(-(-length // 1024) * 1024, x.shape[-1], base, x.dtype, x.device)
    turned: Tensor = _Turn.apply(x, cos[start:length], sin[start:length])  # type: ignore[no-untyped-call]
    return turned


class _Turn(torch.autograd.Function):
    """A rotation keeps nothing for its backward pass, which is the rotation back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        first, second = x.chunk(2, dim=-1)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        left, right = out.chunk(2, dim=-1)
        torch.mul(first, cos, out=left).addcmul_(second, sin, value=-1)
        torch.mul(second, cos, out=right).addcmul_(first, sin)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        dx: Tensor = _Turn.apply(dout, cos, -sin)  # type: ignore[no-untyped-call]
        return dx, None, None


def unit(x: Tensor) -> Tensor:
    """`x` at unit length; a zero vector stays zero and has finite gradients."""
    return F.normalize(wide(x), dim=-1, eps=UNIT_EPS)


def split_heads(x_BTC: Tensor, heads: int) -> Tensor:
    """(B, T, C) → (B, H, T, C/H), a view."""
    return x_BTC.view(*x_BTC.shape[:2], heads, -1).transpose(1, 2)


def merge_heads(x_BHTK: Tensor) -> Tensor:
    """(B, H, T, K) → (B, T, H·K)."""
    return x_BHTK.transpose(1, 2).flatten(2)


def log_tau_H11(theta: Tensor | None, like_BHTK: Tensor) -> Tensor:
    """log τ = min(θ, log 20), eq. 4, without a gradient past it; log 10 where θ is not learned."""
    if theta is None:
        return like_BHTK.new_full((like_BHTK.shape[1], 1, 1), INITIAL_THETA)
    return wide(theta).clamp(max=LOG_TAU_MAX)[:, None, None]


def null_mass_H11(null_bias: Tensor | None, like_BHTK: Tensor, position: int) -> Tensor:
    """n · exp(b) of one position; zero in the ablation without a null gate."""
    if null_bias is None:
        return like_BHTK.new_zeros(like_BHTK.shape[1], 1, 1)
    return ((position + 1) * null_bias.to(like_BHTK.dtype).exp())[:, None, None]


def phi(u: Tensor) -> Tensor:
    """The positive feature map, eq. 8; ELU(u) + 1 ≥ 0, so the paper's outer maximum never binds."""
    return (F.elu(u) + (1 + PHI_EPS)) / math.sqrt(u.shape[-1])


def autocast_dtype(x: Tensor) -> torch.dtype:
    """What a linear layer would compute in here: autocast's dtype where it is on, else `x`'s."""
    device = _autocast_device(x)
    if torch.is_autocast_enabled(device) and x.dtype == torch.float32:
        return torch.get_autocast_dtype(device)
    return x.dtype


def full_precision(x: Tensor) -> torch.autocast:
    """A context in which autocast is off: for logits, exponentials, sums and the loss."""
    return torch.autocast(device_type=_autocast_device(x), enabled=False)


def _autocast_device(x: Tensor) -> str:
    return "cpu" if x.device.type == "meta" else x.device.type


def by_parts(
    inner: Callable[..., Tensor],
    x_BTC: Tensor,
    whole: Sequence[Tensor],
    dims: Sequence[int],
    parts: int,
) -> Tensor:
    """Σ inner(x, *part) @ W_partᵀ over equal parts of each of `whole`, of which W is the first.

    Each is cut along its dimension. Nothing but the inputs is kept: the backward pass makes each
    part's activations again.
    """
    y_BTC: Tensor = _ByParts.apply(inner, dims, parts, x_BTC, *whole)  # type: ignore[no-untyped-call]
    return y_BTC


class _ByParts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inner: Any, dims: Sequence[int], parts: int, x_BTC: Tensor, *whole: Tensor
    ) -> Tensor:
        ctx.inner, ctx.dims, ctx.parts, ctx.dtype = inner, dims, parts, autocast_dtype(x_BTC)
        ctx.save_for_backward(x_BTC, *whole)
        y_BTC = torch.zeros_like(x_BTC)
        for w, *part in _cut(whole, dims, parts):
            y_BTC += F.linear(inner(x_BTC, *part), w)
        return y_BTC

    @staticmethod
    def backward(ctx: Any, dy_BTC: Tensor) -> tuple[Tensor | None, ...]:
        x_BTC, *whole = ctx.saved_tensors
        dx_BTC, grads = torch.zeros_like(x_BTC), [torch.empty_like(one) for one in whole]
        device, narrow = _autocast_device(x_BTC), ctx.dtype != x_BTC.dtype
        dy_BTC = dy_BTC.to(ctx.dtype)
        cuts = (_cut(tensors, ctx.dims, ctx.parts) for tensors in (whole, grads))
        for (w, *part), (dw, *targets) in zip(*cuts, strict=True):
            inputs = [one.detach().requires_grad_() for one in (x_BTC, *part)]
            with torch.enable_grad(), torch.autocast(device, ctx.dtype, enabled=narrow):
                made = ctx.inner(*inputs)
            dw.copy_(dy_BTC.flatten(0, 1).T @ made.detach().flatten(0, 1))
            dx, *found = torch.autograd.grad(made, inputs, dy_BTC @ w.to(ctx.dtype))
            dx_BTC += dx
            for target, grad in zip(targets, found, strict=True):
                target.copy_(grad)
        return (None, None, None, dx_BTC, *grads)


def _cut(whole: Sequence[Tensor], dims: Sequence[int], parts: int) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(one.chunk(parts, dim) for one, dim in zip(whole, dims, strict=True)), strict=True)


class PrefixCache:
    """Keys and values of all positions so far, with a quarter of spare room: appends are O(1)."""

    def __init__(self) -> None:
        self.length = 0
        self._buffers: list[Tensor] = []

    def extend(self, *new_BHTX: Tensor) -> list[Tensor]:
        """Append along the position axis; give views of everything up to now."""
        stop = self.length + new_BHTX[0].shape[2]
        if not self._buffers or stop > self._buffers[0].shape[2]:
            old = self._buffers
            room = stop + stop // 4 + _SPARE
            self._buffers = [x.new_empty(*x.shape[:2], room, x.shape[3]) for x in new_BHTX]
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
