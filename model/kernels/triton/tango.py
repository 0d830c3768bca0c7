"""TANGO's gate average on a GPU: two Triton kernels, and cuBLAS products between them.

- Never run on a GPU so far: checked under Triton's interpreter, compiled for sm_80, 90 and 100.
- Gates are 1,780 columns wide: a weight of 2 bytes, written once and read once, is used for 2·1,780
  operations, three times an H100's ridge. So a strip's weights are written for cuBLAS.
- Tiles of 64 × 64 with 8 warps take 16 registers for scores; 128 × 128 spills (docs/gpu.md).
Shapes: N sequences (all heads of all sequences), T positions, K channels, G gate columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from tangobench.model.kernels.crossgate import Incoming, null_logits, strip_of

CONFIG: Final = {"BQ": 64, "BJ": 64, "num_warps": 8, "num_stages": 2}


@triton.jit
def _scores(q, k_ptr, column, length, channel, K: tl.constexpr):
    """Logits of a tile; 3 × TF32 is as exact as float32."""
    inside = (column < length)[:, None] & (channel < K)[None, :]
    k = tl.load(k_ptr + column[:, None] * K + channel[None, :], mask=inside, other=0.0)
    return tl.dot(q, tl.trans(k), input_precision="tf32x3")


@triton.jit
def _weights(
    q_ptr, k_ptr, null_ptr, total_ptr, weight_ptr,
    length, first, rows, columns,
    K: tl.constexpr, BK: tl.constexpr, BQ: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """Weights (N, rows, columns) of the queries from `first` on; log totals of those rows."""
    n = tl.program_id(1).to(tl.int64)
    local = tl.program_id(0) * BQ + tl.arange(0, BQ)
    row, channel = first + local, tl.arange(0, BK)
    q_ptr += n * length * K
    k_ptr += n * length * K
    weight_ptr += n * rows * columns
    here = local < rows
    inside = here[:, None] & (channel < K)[None, :]
    q = tl.load(q_ptr + row[:, None] * K + channel[None, :], mask=inside, other=0.0)
    last = tl.minimum(first + (tl.program_id(0) + 1) * BQ, columns)
    mass = tl.zeros((BQ,), tl.float32)
    for start in range(0, last, BJ):
        column = start + tl.arange(0, BJ)
        score = _scores(q, k_ptr, column, length, channel, K)
        mass += tl.sum(tl.where(column[None, :] <= row[:, None], tl.exp(score), 0.0), 1)
    null = tl.load(null_ptr + n * length + row, mask=here, other=0.0)
    total = tl.log(mass + tl.exp(null))
    tl.store(total_ptr + n * length + row, total, mask=here)
    for start in range(0, columns, BJ):
        column = start + tl.arange(0, BJ)
        score = _scores(q, k_ptr, column, length, channel, K) - total[:, None]
        weight = tl.where(column[None, :] <= row[:, None], tl.exp(score), 0.0)
        place = weight_ptr + local[:, None] * columns + column[None, :]
        tl.store(place, weight, mask=here[:, None] & (column < columns)[None, :])


@triton.jit
def _scores_gradient(
    q_ptr, k_ptr, total_ptr, delta_ptr, weight_ptr, dscore_ptr,
    length, first, columns,
    K: tl.constexpr, BK: tl.constexpr, BQ: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """For the keys from `first` on and the queries from there: weights, and dS in place of dP."""
    n = tl.program_id(2).to(tl.int64)
    rows = length - first
    local = tl.program_id(0) * BQ + tl.arange(0, BQ)
    place = tl.program_id(1) * BJ + tl.arange(0, BJ)
    row, column, channel = first + local, first + place, tl.arange(0, BK)
    here = local < rows
    inside = here[:, None] & (channel < K)[None, :]
    q_ptr += n * length * K
    k_ptr += n * length * K
    q = tl.load(q_ptr + row[:, None] * K + channel[None, :], mask=inside, other=0.0)
    total = tl.load(total_ptr + n * length + row, mask=here, other=0.0)
    delta = tl.load(delta_ptr + n * length + row, mask=here, other=0.0)
    score = _scores(q, k_ptr, column, length, channel, K) - total[:, None]
    weight = tl.where(column[None, :] <= row[:, None], tl.exp(score), 0.0)
    target = n * rows * columns + local[:, None].to(tl.int64) * columns + place[None, :]
    within = here[:, None] & (place < columns)[None, :]
    dweight = tl.load(dscore_ptr + target, mask=within, other=0.0).to(tl.float32)
    tl.store(weight_ptr + target, weight, mask=within)
    tl.store(dscore_ptr + target, weight * (dweight - delta[:, None]), mask=within)


@dataclass(frozen=True, slots=True)
class TangoTriton:
    """Forward and backward of eq. 5 with the weights of eq. 6; features are (τ·q, k)."""

    def forward(
        self, features: Sequence[Tensor], gate_NTG: Tensor, null_bias: Tensor, mean_NTG: Tensor
    ) -> Tensor:
        q, k = (f.contiguous() for f in features)
        sequences, length, _ = q.shape
        null_NT = null_logits(null_bias, 0, length).expand(sequences, -1).contiguous()
        log_total_NT = torch.empty_like(null_NT)
        strip = strip_of(length)
        for start in range(0, length, strip):
            stop = min(start + strip, length)
            weight = gate_NTG.new_empty(sequences, stop - start, stop)
            grid = (triton.cdiv(stop - start, CONFIG["BQ"]), sequences)
            _weights[grid](
                q, k, null_NT, log_total_NT, weight,
                length, start, stop - start, stop, **_constants(q),
            )  # fmt: skip
            torch.bmm(weight, gate_NTG[:, :stop], out=mean_NTG[:, start:stop])
        return log_total_NT

    def backward(
        self, features: Sequence[Tensor], gate_NTG: Tensor, incoming: Incoming, dgate_NTG: Tensor
    ) -> list[Tensor]:
        q, k = (f.contiguous() for f in features)
        sequences, length, _ = q.shape
        narrow_q, narrow_k = q.to(gate_NTG.dtype), k.to(gate_NTG.dtype)
        dq, dk = torch.zeros_like(q), torch.empty_like(k)
        log_total_NT, mean_dot_NT, dmean_NTG = incoming
        delta_NT = mean_dot_NT.contiguous()
        strip = strip_of(length)
        for start in range(0, length, strip):
            rows, cols = slice(start, length), slice(start, min(start + strip, length))
            dscore = torch.bmm(dmean_NTG[:, rows], gate_NTG[:, cols].mT)
            weight = torch.empty_like(dscore)
            grid = (*map(triton.cdiv, dscore.shape[1:], (CONFIG["BQ"], CONFIG["BJ"])), sequences)
            _scores_gradient[grid](
                q, k, log_total_NT, delta_NT, weight, dscore,
                length, start, dscore.shape[2], **_constants(q),
            )  # fmt: skip
            torch.bmm(weight.mT, dmean_NTG[:, rows], out=dgate_NTG[:, cols])
            dk[:, cols] = torch.bmm(dscore.mT, narrow_q[:, rows])
            dq[:, rows] += torch.bmm(dscore, narrow_k[:, cols])
        return [dq, dk]


def _constants(q_NTK: Tensor) -> dict[str, Any]:
    channels = q_NTK.shape[2]
    return {"K": channels, "BK": max(16, triton.next_power_of_2(channels)), **CONFIG}
