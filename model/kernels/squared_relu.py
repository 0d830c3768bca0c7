"""Squared-ReLU aggregation of GAU: causal strips, recomputed in the backward pass.

- out_i = Σ_{j ≤ i} relu(q_i·k_j / scale + w[(j − i) + reach − 1])² v_j, one strip at a time.
- FLASH's quadratic term is the same function of chunks: its chunks are the N sequences here.
Shapes: N sequences, T positions, S query/key width, E expansion width, J columns of a strip.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

from tangobench.model.kernels.crossgate import chosen
from tangobench.model.layers import full_precision

STRIP: Final = 128


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
        out = v.new_empty(v.shape)
        with full_precision(q):
            for rows in _strips(q):
                cols = slice(0, rows.stop)
                weight = _positive_scores(q, k, toeplitz, rows, cols).square_()
                torch.bmm(weight.to(v.dtype), v[:, cols], out=out[:, rows])
        ctx.save_for_backward(q, k, v, toeplitz)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, ...]:
        """By strips of keys, so that the wide products are whole sums (as in tango_kernel)."""
        q, k, v, toeplitz = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), v.new_empty(v.shape)
        dtoeplitz = torch.zeros_like(toeplitz)
        with full_precision(q):
            for cols in _strips(q):
                rows = slice(cols.start, q.shape[1])
                score = _positive_scores(q, k, toeplitz, rows, cols)
                dscore = torch.bmm(dout[:, rows], v[:, cols].mT).to(score.dtype).mul_(score)
                torch.bmm(score.square_().to(v.dtype).mT, dout[:, rows], out=dv[:, cols])
                # dscore is half the gradient: the square's 2 is applied to the narrow results.
                dq[:, rows].baddbmm_(dscore, k[:, cols], beta=int(cols.start > 0), alpha=2)
                torch.bmm(dscore.mT, q[:, rows], out=dk[:, cols])
                first, diagonals = _diagonal_sums(dscore.sum(0), rows, cols, toeplitz)
                dtoeplitz[first : first + diagonals.shape[0]].add_(diagonals, alpha=2)
        return dq, dk.mul_(2), dv, dtoeplitz


def _strips(q: Tensor) -> Iterator[slice]:
    """Half of one of FLASH's chunks, twice that in long sequences; a fifth where launches cost."""
    length = q.shape[1]
    step = STRIP if length <= 8 * STRIP else 2 * STRIP
    if chosen(q) != "strips":
        step = max(4 * STRIP, -(-length // 5))
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


def _positive_scores(q: Tensor, k: Tensor, toeplitz: Tensor, rows: slice, cols: slice) -> Tensor:
    """relu(q·k + bias) of a strip that begins or ends at the diagonal; zero above it."""
    score = torch.baddbmm(_bias(toeplitz, rows, cols), q[:, rows], k[:, cols].mT).relu_()
    score[:, : cols.stop - rows.start, max(0, rows.start - cols.start) :].tril_()
    return score


def _bias(toeplitz: Tensor, rows: slice, cols: slice) -> Tensor:
    """w[(j − i) + reach − 1]: with the rows reversed, an overlapping view of stride (1, 1)."""
    first = _first(toeplitz, rows, cols)
    size = (rows.stop - rows.start, cols.stop - cols.start)
    return toeplitz[first:].as_strided(size, (1, 1), first).flip(0)


def _first(toeplitz: Tensor, rows: slice, cols: slice) -> int:
    """Where in `toeplitz` the pair of the last row and the first column stands."""
    return int((toeplitz.shape[0] - 1) // 2 + cols.start - (rows.stop - 1))


def _diagonal_sums(
    dscore_QJ: Tensor, rows: slice, cols: slice, toeplitz: Tensor
) -> tuple[int, Tensor]:
    """Sums along j − i and the index in `toeplitz` of the first of them."""
    height, width = dscore_QJ.shape
    # Reversed rows, padded to width + height, read at width + height − 1: each slides by one.
    skewed = dscore_QJ.new_zeros(height, width + height)
    skewed[:, :width] = dscore_QJ.flip(0)
    length = width + height - 1
    sums = skewed.flatten()[: height * length].view(height, length).sum(0)
    first = _first(toeplitz, rows, cols)
    # Entries past the diagonal are sums of zeros; they may also lie past the parameters' end.
    return first, sums[: toeplitz.shape[0] - first]
