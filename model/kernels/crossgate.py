"""Autograd around a head kernel: the gate average alone, or fused with its projections.

- A kernel sees N unrelated sequences: those of one head (strips), or all heads (`together`).
- `average` keeps gates and averages; `fused_update` keeps its inputs and recomputes head by head.
- Under autocast whatever enters wide products is rounded; logits, exponentials, totals and sums
  that become gradients of parameters stay in at least float32.
Shapes: B batch, T positions, C channels, H heads, F gated width, G = F/H, N sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tangobench.model.layers import autocast_dtype, full_precision, split_heads, wide

# Sequences are batched inside a kernel up to this many rows of one head: short ones share products,
# long ones keep the memory of one.
ROWS_AT_ONCE: Final = 2048
WEIGHTS_AT_ONCE: Final = 1 << 28  # entries of one strip of all heads: a gigabyte in float32
DOTS_AT_ONCE: Final = {False: 1 << 19, True: 1 << 26}  # entries of a product summed at once
STRIP: Final = 512
STRIPS: Final = 12  # at most, however long the sequence
_ALIGNED: Final = 16  # bytes at which rows begin: tensor cores cannot load 3,560 bytes whole


class Incoming(NamedTuple):
    """What the backward pass of a kernel knows of the averages."""

    log_total_NT: Tensor
    mean_dot_NT: Tensor  # mean · dmean
    dmean_NTG: Tensor


class HeadKernel(Protocol):
    """The aggregation of N sequences; `null_bias` is one number, or one per sequence (N, 1)."""

    def forward(
        self, features: Sequence[Tensor], gate_NTG: Tensor, null_bias: Tensor, mean_NTG: Tensor
    ) -> Tensor:
        """Write the average, return log_total: the logarithm of each row's mass, null included."""

    def backward(
        self, features: Sequence[Tensor], gate_NTG: Tensor, incoming: Incoming, dgate_NTG: Tensor
    ) -> list[Tensor]:
        """Write the gate's gradient, return those of the features."""


class _Cut(NamedTuple):
    """The sequences and heads that a kernel is given at once."""

    rows: slice
    heads: slice

    def of(self, x_BHTX: Tensor) -> Tensor:
        """(B, H, T, …) → (N, T, …), heads varying fastest."""
        return x_BHTX[self].flatten(0, 1)

    def per_sequence(self, x_H: Tensor) -> Tensor:
        """One number per head → (N, 1), or that of the only head, which broadcasts."""
        if self.heads.stop - self.heads.start == 1:
            return x_H[self.heads]
        return x_H.repeat(self.rows.stop - self.rows.start)[:, None]


def strip_of(length: int) -> int:
    """Rows of a strip of all heads, whole tiles of 64: few launches, and little of it is masked."""
    return max(STRIP, -(-length // (64 * STRIPS)) * 64)


def null_logits(null_bias: Tensor, start: int, stop: int) -> Tensor:
    """b + log n_i of rows start … stop − 1, where n_i = i + 1."""
    visible = torch.arange(start + 1, stop + 1, dtype=null_bias.dtype, device=null_bias.device)
    return null_bias + visible.log()


def average(
    kernel: HeadKernel,
    features: Sequence[Tensor],
    gate_BTF: Tensor,
    null_bias: Tensor | None,
    *,
    together: bool = False,
) -> Tensor:
    """The aggregated gates of all heads, (B, T, F); features are (B, H, T, K)."""
    null_H = _null_of_heads(features[0], null_bias)
    result: Tensor = _Average.apply(kernel, together, gate_BTF, null_H, *features)  # type: ignore[no-untyped-call]
    return result


def fused_update(
    kernel: HeadKernel,
    features: Sequence[Tensor],
    x_BTC: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    null_bias: Tensor | None,
) -> Tensor:
    """W_o(ḡ ⊙ W_v x) of eq. 3 with ḡ from SiLU(W_g x); `weights` are (wg, wv, wo)."""
    null_H = _null_of_heads(features[0], null_bias)
    result: Tensor = _Fused.apply(kernel, x_BTC, *weights, null_H, *features)  # type: ignore[no-untyped-call]
    return result


def _null_of_heads(like: Tensor, null_bias: Tensor | None) -> Tensor:
    if null_bias is None:  # without a null gate its logit is −∞
        return like.new_full((like.shape[1],), -torch.inf)
    return null_bias.to(like.dtype)


def _cuts(features_BHTK: Tensor, together: bool) -> Iterator[_Cut]:
    batch, heads, length, _ = features_BHTK.shape
    step = max(1, ROWS_AT_ONCE // length)
    if together:
        step = max(1, WEIGHTS_AT_ONCE // (heads * length * min(length, strip_of(length))))
    width = heads if together else 1
    for head in range(0, heads, width):
        for start in range(0, batch, step):
            yield _Cut(slice(start, min(start + step, batch)), slice(head, head + width))


class _Average(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernel: HeadKernel,
        together: bool,
        gate_BTF: Tensor,
        null_H: Tensor,
        *features: Tensor,
    ) -> Tensor:
        mean_BTF = torch.empty_like(gate_BTF)
        gate_BHTG, mean_BHTG = (split_heads(x, len(null_H)) for x in (gate_BTF, mean_BTF))
        log_total_BHT = features[0].new_empty(features[0].shape[:3])
        with full_precision(gate_BTF):
            for cut in _cuts(features[0], together):
                gate = _aligned(gate_BHTG[cut]) if together else cut.of(gate_BHTG)
                mean = torch.empty_like(gate) if together else cut.of(mean_BHTG)
                null = cut.per_sequence(null_H)
                log_total = kernel.forward([cut.of(f) for f in features], gate, null, mean)
                _put(log_total_BHT[cut], log_total)
                if together:
                    _put(mean_BHTG[cut], mean)
        ctx.kernel, ctx.together = kernel, together
        ctx.save_for_backward(gate_BTF, mean_BTF, null_H, log_total_BHT, *features)
        return mean_BTF

    @staticmethod
    def backward(ctx: Any, dmean_BTF: Tensor) -> tuple[Tensor | None, ...]:
        gate_BTF, mean_BTF, null_H, log_total_BHT, *features = ctx.saved_tensors
        dgate_BTF, dnull_H = torch.empty_like(gate_BTF), torch.zeros_like(null_H)
        gates, means, dmeans, dgates = (
            split_heads(x, len(null_H)) for x in (gate_BTF, mean_BTF, dmean_BTF, dgate_BTF)
        )
        dfeatures = [torch.empty_like(f) for f in features]
        with full_precision(gate_BTF):
            for cut in _cuts(features[0], ctx.together):
                log_total, null = cut.of(log_total_BHT).contiguous(), cut.per_sequence(null_H)
                most = DOTS_AT_ONCE[ctx.together]
                mean_dot = _row_dots(means[cut], dmeans[cut], most).flatten(0, 1)
                dnull_NT = _null_gradients(null, log_total, mean_dot)
                if ctx.together:
                    gate, dmean = _aligned(gates[cut]), _aligned(dmeans[cut])
                    dgate = torch.empty_like(gate)
                    dnull_H += dnull_NT.sum(1).view(-1, len(null_H)).sum(0)
                else:
                    gate, dmean, dgate = (cut.of(x) for x in (gates, dmeans, dgates))
                    dnull_H[cut.heads] += dnull_NT.sum()
                incoming = Incoming(log_total, mean_dot, dmean)
                inputs = [cut.of(f) for f in features]
                grads = ctx.kernel.backward(inputs, gate, incoming, dgate)
                if ctx.together:
                    _put(dgates[cut], dgate)
                for target, grad in zip(dfeatures, grads, strict=True):
                    _put(target[cut], grad)
        return (None, None, dgate_BTF, dnull_H, *dfeatures)


def _aligned(x_BHTG: Tensor) -> Tensor:
    """(N, T, columns), zeros behind so that rows begin aligned: 1,780 of bfloat16 become 1,792."""
    columns = x_BHTG.shape[3]
    if columns * x_BHTG.element_size() % _ALIGNED:
        x_BHTG = F.pad(x_BHTG, (0, -columns % (64 if columns > 256 else 8)))
    return x_BHTG.flatten(0, 1)


def _put(target: Tensor, found: Tensor) -> None:
    """Write (N, T, …) to (B, H, T, …), without padding."""
    found = found.unflatten(0, target.shape[:2])
    target.copy_(found[..., : target.shape[-1]])


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
        y_BTC = torch.zeros_like(x_BTC)
        with full_precision(x_BTC):
            x_BTC = x_BTC.to(ctx.dtype)
            for cut in _cuts(features[0], together=False):
                g, v, o = (w.to(ctx.dtype) for w in _of_head(wg, wv, wo, cut, len(null_H)))
                x = x_BTC[cut.rows]
                gate = F.silu(x @ g.T)
                mean = torch.empty_like(gate)
                kernel.forward([cut.of(f) for f in features], gate, null_H[cut.heads], mean)
                y_BTC[cut.rows] += mean.mul_(x @ v.T) @ o.T
        return y_BTC

    @staticmethod
    def backward(ctx: Any, dy_BTC: Tensor) -> tuple[Tensor | None, ...]:
        x_BTC, wg, wv, wo, null_H, *features = ctx.saved_tensors
        dx_BTC, dnull_H = torch.zeros_like(x_BTC), torch.zeros_like(null_H)
        dwg, dwv, dwo = (torch.zeros_like(w) for w in (wg, wv, wo))
        dfeatures = [torch.empty_like(f) for f in features]
        with full_precision(x_BTC):
            x_BTC, dy_BTC = x_BTC.to(ctx.dtype), dy_BTC.to(ctx.dtype)
            for cut in _cuts(features[0], together=False):
                weights = [w.to(ctx.dtype) for w in _of_head(wg, wv, wo, cut, len(null_H))]
                inputs, null = [cut.of(f) for f in features], null_H[cut.heads]
                x, dy = x_BTC[cut.rows], dy_BTC[cut.rows]
                found, grads = _head_backward(ctx.kernel, inputs, x, dy, weights, null)
                for target, grad in zip(dfeatures, found, strict=True):
                    _put(target[cut], grad)
                targets = _of_head(dwg, dwv, dwo, cut, len(null_H))
                targets += (dx_BTC[cut.rows], dnull_H[cut.heads])
                for target, grad in zip(targets, grads, strict=True):
                    target.add_(grad)
        return (None, dx_BTC, dwg, dwv, dwo, dnull_H, *dfeatures)


def _of_head(wg: Tensor, wv: Tensor, wo: Tensor, cut: _Cut, heads: int) -> tuple[Tensor, ...]:
    """One head's rows of wg and wv and columns of wo, views."""
    head = cut.heads.start
    return wg.chunk(heads)[head], wv.chunk(heads)[head], wo.chunk(heads, dim=1)[head]


def _head_backward(
    kernel: HeadKernel,
    features: list[Tensor],
    x_NTC: Tensor,
    dy_NTC: Tensor,
    weights: Sequence[Tensor],
    null_bias: Tensor,
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Gradients of one head's features, and of wg, wv, wo, x and the null bias."""
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
    mean_dot = _row_dots(mean, dmean, DOTS_AT_ONCE[False])
    dnull = _null_gradients(null_bias, log_total, mean_dot).sum()
    dgate = mean  # its storage: the average is not needed any more
    dfeatures = kernel.backward(features, gate, Incoming(log_total, mean_dot, dmean), dgate)
    dpre = torch.ops.aten.silu_backward(dgate, pre)
    dx = dpre @ g + dvalue @ v
    flat_x = x_NTC.flatten(0, 1)
    dg, dv = dpre.flatten(0, 1).T @ flat_x, dvalue.flatten(0, 1).T @ flat_x
    return dfeatures, (dg, dv, do, dx, dnull)


def _null_gradients(null_bias: Tensor, log_total_NT: Tensor, mean_dot_NT: Tensor) -> Tensor:
    """The null gate's value is zero, so ∂loss/∂b = −Σ (its weight) · (mean · dmean)."""
    weight = torch.exp(null_logits(null_bias, 0, log_total_NT.shape[1]) - log_total_NT)
    return weight.mul_(mean_dot_NT).neg_()


def _row_dots(mean: Tensor, dmean: Tensor, most: int) -> Tensor:
    """mean · dmean of each row (…, T), which is also Σ weight · dweight over its sources."""
    step = max(1, most // mean[..., 0, :].numel())
    parts = zip(mean.split(step, -2), dmean.split(step, -2), strict=True)
    return torch.cat([(wide(m) * d).sum(-1) for m, d in parts], -1)
