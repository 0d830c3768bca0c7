"""Squared-ReLU aggregation of GAU: causal query strips, recomputed in the backward pass.

- out_i = Σ_{j ≤ i} relu(q_i·k_j / scale + w[(j − i) + reach − 1])² v_j.
- Never more than one strip of weights exists, and no strip meets keys after its own last row.
- FLASH's quadratic term is the same function of chunks: its chunks are the N sequences here.

Shapes: N sequences, T positions, S query/key width, E expansion width, J columns of a strip.
Usage: `mixed_NTE = squared_relu_mix(q, k, v, toeplitz, scale=config.context)`.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from tangobench.model.layers import full_precision

QUERY_STRIP: Final = 128


def squared_relu_mix(
    q_NTS: Tensor, k_NTS: Tensor, v_NTE: Tensor, toeplitz: Tensor, scale: int
) -> Tensor:
    """The aggregate; `toeplitz` has 2·reach − 1 entries, T ≤ reach."""
    bias = toeplitz.to(q_NTS.dtype)
    result: Tensor = _SquaredReluMix.apply(q_NTS / scale, k_NTS, v_NTE, bias)  # type: ignore[no-untyped-call]
    return result


class _SquaredReluMix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, toeplitz: Tensor) -> Tensor:
        out = torch.empty_like(v)
        with full_precision(q):
            for start in range(0, q.shape[1], QUERY_STRIP):
                stop = min(start + QUERY_STRIP, q.shape[1])
                weight = _positive_scores(q, k, toeplitz, start, stop).square_()
                out[:, start:stop] = torch.bmm(weight.to(v.dtype), v[:, :stop])
        ctx.save_for_backward(q, k, v, toeplitz)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, ...]:
        q, k, v, toeplitz = ctx.saved_tensors
        dq, dk = torch.empty_like(q), torch.zeros_like(k)
        dv, dtoeplitz = torch.zeros_like(v), torch.zeros_like(toeplitz)
        with full_precision(q):
            for start in range(0, q.shape[1], QUERY_STRIP):
                stop = min(start + QUERY_STRIP, q.shape[1])
                rows, cols = slice(start, stop), slice(0, stop)
                score = _positive_scores(q, k, toeplitz, start, stop)
                dscore = torch.bmm(dout[:, rows], v[:, cols].mT).to(score.dtype)
                dscore.mul_(score).mul_(2)
                dv[:, cols].baddbmm_(score.square_().to(v.dtype).mT, dout[:, rows])
                torch.bmm(dscore, k[:, cols], out=dq[:, rows])
                dk[:, cols].baddbmm_(dscore.mT, q[:, rows])
                first, diagonals = _diagonal_sums(dscore.sum(0), start, toeplitz)
                dtoeplitz[first : first + diagonals.shape[0]] += diagonals
        return dq, dk, dv, dtoeplitz


def _positive_scores(q: Tensor, k: Tensor, toeplitz: Tensor, start: int, stop: int) -> Tensor:
    """relu(q·k + bias) of rows start … stop − 1, columns 0 … stop − 1; zero above the diagonal."""
    bias = _bias_strip(toeplitz, start, stop)
    score = torch.baddbmm(bias, q[:, start:stop], k[:, :stop].mT).relu_()
    score[:, :, start:].tril_()
    return score


def _bias_strip(toeplitz: Tensor, start: int, stop: int) -> Tensor:
    """w[(j − i) + reach − 1]: with the rows reversed, an overlapping view of stride (1, 1)."""
    first = (toeplitz.shape[0] - 1) // 2 - (stop - 1)
    return toeplitz[first:].as_strided((stop - start, stop), (1, 1), first).flip(0)


def _diagonal_sums(dscore_QJ: Tensor, start: int, toeplitz: Tensor) -> tuple[int, Tensor]:
    """Sums along j − i and the index in `toeplitz` of the first of them."""
    rows, columns = dscore_QJ.shape
    # Reversed rows, padded to columns + rows, read at columns + rows − 1: each slides by one.
    skewed = dscore_QJ.new_zeros(rows, columns + rows)
    skewed[:, :columns] = dscore_QJ.flip(0)
    width = columns + rows - 1
    sums = skewed.flatten()[: rows * width].view(rows, width).sum(0)
    first = (toeplitz.shape[0] - 1) // 2 - (start + rows - 1)
    # Entries past the diagonal are sums of zeros; they may also lie past the parameters' end.
    return first, sums[: toeplitz.shape[0] - first]
