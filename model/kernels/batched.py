"""Autograd around kernels that take all heads of several sequences at once.

- A head kernel (tango_strips, wango_strips, wango_batched) does not know what its N sequences are;
  here they are the heads of all sequences of a part, where `crossgate` gives it one head at a time.
- Each head's gates are copied into rows that begin at 16-byte boundaries: 1,780 columns of bfloat16
  are 3,560 bytes, which tensor cores cannot load whole, so they become 1,792, the rest zeros.
- A part has as many sequences as keep one strip of weights below a gigabyte.

Shapes: B batch, T positions, H heads, N = B·H, K channels of a head, F gated width, P padded F/H.
Usage: `mean_BTF = average(AllHeads(TangoKernel(strip=512)), (scaled_q, k), gate_BTF, null_H)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from tangobench.model.kernels.head import HeadKernel, null_logits
from tangobench.model.layers import full_precision, wide

STRIP: Final = 512
STRIPS: Final = 12  # at most, however long the sequence: 372 launches at 8,192 positions
WEIGHTS_AT_ONCE: Final = 1 << 28  # entries of one strip of all heads: a gigabyte in float32
DOTS_AT_ONCE: Final = 1 << 26  # entries of a product that is summed at once
_ALIGNED: Final = 16  # bytes


@dataclass(frozen=True, slots=True)
class AllHeads:
    """A head kernel that is given all heads at once."""

    kernel: HeadKernel


def strip_of(length: int) -> int:
    """Rows of a strip, whole tiles of 64: few launches, and little of a strip is masked."""
    return max(STRIP, -(-length // (64 * STRIPS)) * 64)


def average(
    heads: AllHeads, features: Sequence[Tensor], gate_BTF: Tensor, null_H: Tensor
) -> Tensor:
    """The aggregated gates of all heads, (B, T, F); features are (B, H, T, K)."""
    result: Tensor = _Average.apply(heads.kernel, gate_BTF, null_H, *features)  # type: ignore[no-untyped-call]
    return result


class _Average(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernel: HeadKernel, gate_BTF: Tensor, null_H: Tensor, *features: Tensor
    ) -> Tensor:
        heads = features[0].shape[1]
        means, totals = [], []
        with full_precision(gate_BTF):
            for part in _parts(features[0]):
                gate_NTP = _split(gate_BTF[part], heads)
                mean_NTP = torch.empty_like(gate_NTP)
                totals.append(
                    kernel.forward(
                        [f[part].flatten(0, 1) for f in features],
                        gate_NTP,
                        _per_head(null_H, gate_NTP.shape[0]),
                        mean_NTP,
                    )
                )
                means.append(_merge(mean_NTP, heads, gate_BTF.shape[2]))
        mean_BTF, log_total_NT = _joined(means), _joined(totals)
        ctx.kernel = kernel
        ctx.save_for_backward(gate_BTF, mean_BTF, null_H, log_total_NT, *features)
        return mean_BTF

    @staticmethod
    def backward(ctx: Any, dmean_BTF: Tensor) -> tuple[Tensor | None, ...]:
        gate_BTF, mean_BTF, null_H, log_total_NT, *features = ctx.saved_tensors
        heads, length = features[0].shape[1:3]
        dgates, dnull_H = [], torch.zeros_like(null_H)
        dfeatures: list[list[Tensor]] = [[] for _ in features]
        with full_precision(gate_BTF):
            for part in _parts(features[0]):
                gate_NTP, dmean_NTP = (_split(x[part], heads) for x in (gate_BTF, dmean_BTF))
                log_total = log_total_NT[part.start * heads : part.stop * heads]
                mean_dot = _row_dots(mean_BTF[part], dmean_BTF[part], heads)
                null = _per_head(null_H, gate_NTP.shape[0])
                mass = torch.exp(null_logits(null, 0, length) - log_total).mul_(mean_dot)
                dnull_H -= mass.sum(1).view(-1, heads).sum(0)
                dgate_NTP = torch.empty_like(gate_NTP)
                inputs = [f[part].flatten(0, 1) for f in features]
                grads = ctx.kernel.backward(
                    inputs, gate_NTP, log_total, mean_dot, dmean_NTP, dgate_NTP
                )
                for found, grad in zip(dfeatures, grads, strict=True):
                    found.append(grad.unflatten(0, (-1, heads)))
                dgates.append(_merge(dgate_NTP, heads, gate_BTF.shape[2]))
        return (None, _joined(dgates), dnull_H, *(_joined(parts) for parts in dfeatures))


def _parts(features_BHTK: Tensor) -> Iterator[slice]:
    batch, heads, length, _ = features_BHTK.shape
    strip = heads * length * min(length, strip_of(length))
    step = max(1, WEIGHTS_AT_ONCE // strip)
    for start in range(0, batch, step):
        yield slice(start, min(start + step, batch))


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _per_head(null_H: Tensor, sequences: int) -> Tensor:
    """(N, 1), heads varying fastest."""
    return null_H.repeat(sequences // null_H.shape[0])[:, None]


def _split(x_BTF: Tensor, heads: int) -> Tensor:
    """(B, T, F) → (N, T, P)."""
    x_BHTG = x_BTF.view(*x_BTF.shape[:2], heads, -1).transpose(1, 2)
    columns = x_BHTG.shape[3]
    if columns * x_BTF.element_size() % _ALIGNED:
        step = 64 if columns > 256 else 8
        x_BHTG = F.pad(x_BHTG, (0, -columns % step))
    return x_BHTG.flatten(0, 1) if x_BTF.shape[0] > 1 else x_BHTG[0]


def _merge(x_NTP: Tensor, heads: int, width: int) -> Tensor:
    """(N, T, P) → (B, T, F)."""
    x_BHTP = x_NTP.view(-1, heads, *x_NTP.shape[1:])
    return x_BHTP[..., : width // heads].transpose(1, 2).flatten(2)


def _row_dots(mean_BTF: Tensor, dmean_BTF: Tensor, heads: int) -> Tensor:
    """mean · dmean of each row of each head, (N, T), which is also Σ weight · dweight."""
    batch, _, width = mean_BTF.shape
    step = max(1, DOTS_AT_ONCE // (batch * width))
    pairs = zip(mean_BTF.split(step, 1), dmean_BTF.split(step, 1), strict=True)
    products = ((wide(mean) * dmean).unflatten(2, (heads, -1)) for mean, dmean in pairs)
    return torch.cat([product.sum(-1) for product in products], 1).mT.flatten(0, 1)
