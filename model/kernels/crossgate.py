"""Autograd around a head kernel: the gate average alone, or fused with its projections.

- `average` keeps gates and averages (T × F each); the kernel recomputes the weights.
- `fused_update` keeps only its inputs: each head's gates, features and average (T × F/H) are made
  again in the backward pass, so that a block's peak does not grow with the number of heads, at
  the price of a second forward pass (`python bench/model.py --part memory` measures both ways).
- Under autocast, gates, averages, values and the normalised weights that multiply gates are rounded
  to autocast's dtype, and so are the gradients of gates and weights that enter wide products and
  what those return. Logits, exponentials, totals and the sums that become gradients of the
  parameters stay in at least float32.

Shapes: B batch, T positions, C model channels, H heads, K channels of a head, F gated width.
Usage: `mean_BTF = average(TangoKernel(), (scaled_q, k), gate_BTF, null_bias)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from tangobench.model.kernels import batched
from tangobench.model.kernels.batched import AllHeads
from tangobench.model.kernels.head import HeadKernel, null_gradient
from tangobench.model.layers import autocast_dtype, full_precision, wide

# Sequences are batched inside a kernel up to this many rows: short ones share products, long ones
# keep the memory of one.
ROWS_AT_ONCE: Final = 2048
DOTS_AT_ONCE: Final = 256  # rows of a product that is summed at once: a few megabytes


def average(
    kernel: HeadKernel | AllHeads,
    features: Sequence[Tensor],
    gate_BTF: Tensor,
    null_bias: Tensor | None,
) -> Tensor:
    """The aggregated gates of all heads, (B, T, F); features are (B, H, T, K)."""
    null_H = _null_logits(features[0], null_bias)
    if isinstance(kernel, AllHeads):
        return batched.average(kernel, features, gate_BTF, null_H)
    result: Tensor = _Average.apply(kernel, gate_BTF, null_H, *features)  # type: ignore[no-untyped-call]
    return result


def fused_update(
    kernel: HeadKernel,
    features: Sequence[Tensor],
    x_BTC: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    null_bias: Tensor | None,
) -> Tensor:
    """W_o(ḡ ⊙ W_v x) of eq. 3 with ḡ from SiLU(W_g x); `weights` are (wg, wv, wo)."""
    null_H = _null_logits(features[0], null_bias)
    result: Tensor = _Fused.apply(kernel, x_BTC, *weights, null_H, *features)  # type: ignore[no-untyped-call]
    return result


def _null_logits(like: Tensor, null_bias: Tensor | None) -> Tensor:
    if null_bias is None:  # without a null gate its logit is −∞
        return like.new_full((like.shape[1],), -torch.inf)
    return null_bias.to(like.dtype)


def _parts(batch: int, length: int) -> Iterator[slice]:
    step = max(1, ROWS_AT_ONCE // length)
    for start in range(0, batch, step):
        yield slice(start, start + step)


class _Average(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernel: HeadKernel, gate_BTF: Tensor, null_H: Tensor, *features: Tensor
    ) -> Tensor:
        batch, heads, length, _ = features[0].shape
        mean_BTF = torch.empty_like(gate_BTF)
        log_total_HBT = features[0].new_empty(heads, batch, length)
        with full_precision(gate_BTF):
            for head, (gate, mean) in enumerate(
                zip(_heads(gate_BTF, heads), _heads(mean_BTF, heads), strict=True)
            ):
                for part in _parts(batch, length):
                    log_total_HBT[head, part] = kernel.forward(
                        [f[part, head] for f in features], gate[part], null_H[head], mean[part]
                    )
        ctx.kernel = kernel
        ctx.save_for_backward(gate_BTF, mean_BTF, null_H, log_total_HBT, *features)
        return mean_BTF

    @staticmethod
    def backward(ctx: Any, dmean_BTF: Tensor) -> tuple[Tensor | None, ...]:
        gate_BTF, mean_BTF, null_H, log_total_HBT, *features = ctx.saved_tensors
        batch, heads, length, _ = features[0].shape
        dfeatures = [torch.empty_like(f) for f in features]
        dgate_BTF, dnull_H = torch.empty_like(gate_BTF), torch.zeros_like(null_H)
        with full_precision(gate_BTF):
            for head in range(heads):
                gate, mean, dmean, dgate = (
                    _heads(x, heads)[head] for x in (gate_BTF, mean_BTF, dmean_BTF, dgate_BTF)
                )
                for part in _parts(batch, length):
                    log_total = log_total_HBT[head, part]
                    mean_dot = _row_dots(mean[part], dmean[part])
                    dnull_H[head] += null_gradient(null_H[head], log_total, mean_dot)
                    grads = ctx.kernel.backward(
                        [f[part, head] for f in features],
                        gate[part],
                        log_total,
                        mean_dot,
                        dmean[part],
                        dgate[part],
                    )
                    for target, grad in zip(dfeatures, grads, strict=True):
                        target[part, head] = grad
        return (None, dgate_BTF, dnull_H, *dfeatures)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernel: HeadKernel,
        x_BTC: Tensor,
        wg: Tensor,
        wv: Tensor,
        wo: Tensor,
        null_H: Tensor,
        *features: Tensor,
    ) -> Tensor:
        ctx.kernel, ctx.dtype = kernel, autocast_dtype(x_BTC)
        ctx.save_for_backward(x_BTC, wg, wv, wo, null_H, *features)
        batch, heads, length, _ = features[0].shape
        y_BTC = torch.zeros_like(x_BTC)
        with full_precision(x_BTC):
            x_BTC = x_BTC.to(ctx.dtype)
            for head, (g, v, o) in enumerate(_head_weights(wg, wv, wo, heads, ctx.dtype)):
                for part in _parts(batch, length):
                    x = x_BTC[part]
                    gate = F.silu(x @ g.T)
                    mean = torch.empty_like(gate)
                    kernel.forward([f[part, head] for f in features], gate, null_H[head], mean)
                    y_BTC[part] += mean.mul_(x @ v.T) @ o.T
        return y_BTC

    @staticmethod
    def backward(ctx: Any, dy_BTC: Tensor) -> tuple[Tensor | None, ...]:
        x_BTC, wg, wv, wo, null_H, *features = ctx.saved_tensors
        batch, heads, length, _ = features[0].shape
        dx_BTC = torch.zeros_like(x_BTC)
        dwg, dwv, dwo = (torch.zeros_like(w) for w in (wg, wv, wo))
        dfeatures = [torch.empty_like(f) for f in features]
        dnull_H = torch.zeros_like(null_H)
        with full_precision(x_BTC):
            x_BTC, dy_BTC = x_BTC.to(ctx.dtype), dy_BTC.to(ctx.dtype)
            for head, weights in enumerate(_head_weights(wg, wv, wo, heads, ctx.dtype)):
                rows = slice(head * weights[0].shape[0], (head + 1) * weights[0].shape[0])
                for part in _parts(batch, length):
                    grads = _head_backward(
                        ctx.kernel,
                        [f[part, head] for f in features],
                        x_BTC[part],
                        dy_BTC[part],
                        weights,
                        null_H[head],
                    )
                    for target, grad in zip(dfeatures, grads[0], strict=True):
                        target[part, head] = grad
                    dx_BTC[part] += grads[1]
                    dwg[rows] += grads[2]
                    dwv[rows] += grads[3]
                    dwo[:, rows] += grads[4]
                    dnull_H[head] += grads[5]
        return (None, dx_BTC, dwg, dwv, dwo, dnull_H, *dfeatures)


def _head_backward(
    kernel: HeadKernel,
    features: list[Tensor],
    x_NTC: Tensor,
    dy_NTC: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    null_bias: Tensor,
) -> tuple[list[Tensor], Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of features, x, wg, wv, wo and null bias of one head."""
    g, v, o = weights
    pre = x_NTC @ g.T
    gate = F.silu(pre)
    value = x_NTC @ v.T
    mean = torch.empty_like(gate)
    log_total = kernel.forward(features, gate, null_bias, mean)
    dproduct = dy_NTC @ o
    do = dy_NTC.flatten(0, 1).T @ (mean * value).flatten(0, 1)
    dvalue = dproduct * mean
    dmean = dproduct.mul_(value)
    mean_dot = _row_dots(mean, dmean)
    dnull = null_gradient(null_bias, log_total, mean_dot)
    dgate = mean  # its storage: the average is not needed any more
    dfeatures = kernel.backward(features, gate, log_total, mean_dot, dmean, dgate)
    dpre = torch.ops.aten.silu_backward(dgate, pre)
    dx = dpre @ g + dvalue @ v
    flat_x = x_NTC.flatten(0, 1)
    dg, dv = dpre.flatten(0, 1).T @ flat_x, dvalue.flatten(0, 1).T @ flat_x
    return dfeatures, dx, dg, dv, do, dnull


def _row_dots(mean_NTG: Tensor, dmean_NTG: Tensor) -> Tensor:
    """mean · dmean of each row, which is also Σ weight · dweight over its sources."""
    parts = zip(mean_NTG.split(DOTS_AT_ONCE, 1), dmean_NTG.split(DOTS_AT_ONCE, 1), strict=True)
    return torch.cat([(wide(mean) * dmean).sum(-1) for mean, dmean in parts], 1)


def _heads(x_BTF: Tensor, heads: int) -> tuple[Tensor, ...]:
    return x_BTF.view(*x_BTF.shape[:2], heads, -1).unbind(-2)


def _head_weights(
    wg: Tensor, wv: Tensor, wo: Tensor, heads: int, dtype: torch.dtype
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    for g, v, o in zip(wg.chunk(heads), wv.chunk(heads), wo.chunk(heads, dim=1), strict=True):
        yield g.to(dtype), v.to(dtype), o.to(dtype)
