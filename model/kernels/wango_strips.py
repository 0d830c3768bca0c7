"""WANGO's gate average for short sequences: TANGO's query strips, with the older pairs replaced.

- Pairs at least `window` apart fill the lower left corner of a strip. Only there the factorised
  weight of eq. 9 is computed; everything else is TANGO's exponential weight.
- Quadratic in T, but without padding, states or overlapping strips: up to 256 positions that is
  less work than the scan, and at T ≤ window it is TANGO itself.

Shapes: N sequences, T positions, Q rows and J columns of a strip, K channels of a head, G gate
channels of a head.
Usage: `log_total = ShortWangoKernel(64).forward((scaled_q, k, phi_q, phi_k), gate, null, mean)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tangobench.model.kernels.tango_strips import TangoKernel

SHORT: Final = 256  # half of 256 columns is what the scan computes per row: 64 + 64 and the state


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortWangoKernel(TangoKernel):
    """Forward and backward of eq. 5 with eq. 6 and 9; features are (τ·q, k, φ(√τ q), φ(√τ k))."""

    window: int

    def weigh_older(self, features: Sequence[Tensor], mass_NQJ: Tensor, start: int) -> None:
        """Replace the weights of pairs at least `window` apart in a strip of queries."""
        stop = mass_NQJ.shape[2]
        if stop <= self.window:
            return
        first, columns = max(start, self.window), slice(0, stop - self.window)
        older = torch.bmm(features[2][:, first:stop], features[3][:, columns].mT)
        _replace(mass_NQJ[:, first - start :, columns], older, first - self.window)

    def weigh_older_rows(
        self, features: Sequence[Tensor], weight_NQJ: Tensor, start: int, log_total_NT: Tensor
    ) -> None:
        """Replace the normalised weights of older pairs in a strip of keys."""
        rows = slice(start + self.window, None)
        keys = features[3][:, start : start + weight_NQJ.shape[2]]
        older = torch.bmm(features[2][:, rows], keys.mT)
        _replace(weight_NQJ[:, self.window :], older.mul_(_scale(log_total_NT, rows)), 0)

    def logit_gradients(
        self,
        features: Sequence[Tensor],
        weight_NQJ: Tensor,
        dweight_NQJ: Tensor,
        start: int,
        log_total_NT: Tensor,
        grads: Sequence[Tensor],
    ) -> Tensor:
        """The gradient of the logits of recent pairs; adds that of older ones to `grads`."""
        rows, cols = slice(start + self.window, None), slice(start, start + weight_NQJ.shape[2])
        dolder = dweight_NQJ[:, self.window :].tril().mul_(_scale(log_total_NT, rows))
        grads[2][:, rows].baddbmm_(dolder, features[3][:, cols])
        torch.bmm(dolder.mT, features[2][:, rows], out=grads[3][:, cols])
        dlogit = dweight_NQJ.mul_(weight_NQJ)
        dlogit[:, self.window :].triu_(1)
        return dlogit


def _replace(corner_NQJ: Tensor, older_NQJ: Tensor, diagonal: int) -> None:
    """On the diagonal and left of it, pairs are older."""
    corner_NQJ.triu_(diagonal + 1).add_(older_NQJ.tril_(diagonal))


def _scale(log_total_NT: Tensor, rows: slice) -> Tensor:
    return torch.exp(-log_total_NT[:, rows, None])
