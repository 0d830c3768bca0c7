"""TANGO's gate average on a GPU: two Triton kernels, and cuBLAS products between them.

Never run on a GPU so far: checked against naive under Triton's interpreter, compiled for sm_80,
sm_90 and sm_100 (`make test-kernels`).

- FlashAttention never writes its weights, because its values are 64 to 128 columns wide. Here a
  head's gates have 1,780: a weight of 2 bytes, written once and read once, is used for 2·1,780
  operations, 890 per byte moved, three times an H100's ridge (989 TFLOP/s / 3.35 TB/s = 295). So
  the weights of a strip of queries are written, and cuBLAS multiplies them with the gates.
- `_weights`: q·kᵀ (32 deep), exp without a running maximum (unit-length queries and keys bound a
  logit by τ ≤ 20), causal mask, row totals with the null gate, weights normalised and stored. A
  program owns BQ rows and walks their columns twice, for the totals and for the weights: the
  second product costs 2·32 operations per pair, a fiftieth of what the gates cost.
- `_scores_gradient`: the weights again from the kept totals, and dS = P ∘ (dP − δ) over dP.
- Tiles: a tile of BQ × BJ scores holds BQ·BJ/(32·warps) float32 per thread. 64 × 64 with 8 warps
  is 16 registers for scores, and the three parts of 3 × TF32 fit beside them; 128 × 128 spills. A
  tile reads (64 + 64)·32·4 bytes = 16 KB for 4,096 pairs, 4 bytes per pair, from L2, twice what it
  writes to memory.

Shapes: N sequences (all heads of all sequences), T positions, K channels, G gate columns.
Usage: `log_total = TangoTriton().forward((scaled_q, k), gate, null_bias, mean_out)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from tangobench.model.kernels.batched import strip_of
from tangobench.model.kernels.head import null_logits

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
        """Write the average into `mean_NTG`; give the logarithm of each row's total mass."""
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
        self,
        features: Sequence[Tensor],
        gate_NTG: Tensor,
        log_total_NT: Tensor,
        mean_dot_NT: Tensor,
        dmean_NTG: Tensor,
        dgate_NTG: Tensor,
    ) -> list[Tensor]:
        """Write the gate's gradient into `dgate_NTG`; give those of the features."""
        q, k = (f.contiguous() for f in features)
        sequences, length, _ = q.shape
        narrow_q, narrow_k = q.to(gate_NTG.dtype), k.to(gate_NTG.dtype)
        dq, dk = torch.zeros_like(q), torch.empty_like(k)
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
