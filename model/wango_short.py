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

from tangobench.model.tango_kernel import TangoKernel

SHORT: Final = 256  # half of 256 columns is what the scan computes per row: 64 + 64 and the state


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortWangoKernel(TangoKernel):
    """Forward and backward of eq. 5 with eq. 6 and 9; features are (τ·q, k, φ(√τ q), φ(√τ k))."""

    window: int

    def weigh_older(
        self,
        features: Sequence[Tensor],
        weight_NQJ: Tensor,
        start: int,
        log_total_NT: Tensor | None,
    ) -> None:
        """Replace the weights of pairs at least `window` apart, normalised by `log_total`."""
        corner = _Corner.of(self.window, weight_NQJ, start)
        if corner is None:
            return
        older = torch.bmm(features[2][:, corner.rows], features[3][:, : corner.columns].mT)
        if log_total_NT is not None:
            older.mul_(torch.exp(-log_total_NT[:, corner.rows, None]))
        older.tril_(corner.diagonal)
        corner.of_strip(weight_NQJ).triu_(corner.diagonal + 1).add_(older)

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
        corner = _Corner.of(self.window, weight_NQJ, start)
        if corner is None:
            return dweight_NQJ.mul_(weight_NQJ)
        columns = slice(0, corner.columns)
        dolder = corner.of_strip(dweight_NQJ).tril(corner.diagonal)
        dolder.mul_(torch.exp(-log_total_NT[:, corner.rows, None]))
        torch.bmm(dolder, features[3][:, columns], out=grads[2][:, corner.rows])
        grads[3][:, columns].baddbmm_(dolder.mT, features[2][:, corner.rows])
        dlogit = dweight_NQJ.mul_(weight_NQJ)
        corner.of_strip(dlogit).triu_(corner.diagonal + 1)
        return dlogit


@dataclass(frozen=True, slots=True)
class _Corner:
    """Where a strip has older pairs: its rows from `skip` on, its columns before `columns`."""

    skip: int
    rows: slice  # the same rows, counted from the beginning of the sequence
    columns: int
    diagonal: int  # of the corner: entries on it and left of it are older

    @classmethod
    def of(cls, window: int, strip_NQJ: Tensor, start: int) -> _Corner | None:
        stop = strip_NQJ.shape[2]
        if stop <= window:
            return None
        first = max(start, window)
        return cls(first - start, slice(first, stop), stop - window, first - window)

    def of_strip(self, strip_NQJ: Tensor) -> Tensor:
        """The corner as a view."""
        return strip_NQJ[:, self.skip :, : self.columns]
