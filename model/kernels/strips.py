"""Gate averages by causal strips, recomputed in the backward pass: TANGO, and WANGO where T ≤ 256.

- Never more than one strip of weights exists, and masked blocks are skipped: a strip of queries
  meets the keys up to its last row (forward), one of keys the queries from its first row on.
- Unit-length queries and keys bound a logit by τ ≤ 20: exp needs no running maximum.
Shapes: N sequences, T positions, Q rows and J columns of a strip, K and G channels of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tangobench.model.kernels.crossgate import Incoming, null_logits

LONGEST_STRIP: Final = 256  # products of fewer rows run below the GEMM rate
SHORTEST_STRIP: Final = 64
SHORT: Final = 256  # half of 256 columns is what WANGO's scan computes per row: 64 + 64 and S


@dataclass(frozen=True, slots=True)
class TangoKernel:
    """Forward and backward of eq. 5 with the weights of eq. 6; features are (τ·q, k)."""

    strip: int | None = None  # queries at a time; None: by length

    def forward(
        self, features: Sequence[Tensor], gate_NTG: Tensor, null_bias: Tensor, mean_NTG: Tensor
    ) -> Tensor:
        """Write the average into `mean_NTG`; give the logarithm of each row's total mass."""
        q_NTK, k_NTK = features[:2]
        length = q_NTK.shape[1]
        log_total_NT = q_NTK.new_empty(q_NTK.shape[:2])
        null_T = null_logits(null_bias, 0, length)
        strip = self._strip(length)
        for start in range(0, length, strip):
            stop = min(start + strip, length)
            mass_NQJ = torch.bmm(q_NTK[:, start:stop], k_NTK[:, :stop].mT).exp_()
            mass_NQJ[:, :, start:].tril_()
            self.weigh_older(features, mass_NQJ, start)
            log_total = log_total_NT[:, start:stop]
            torch.logaddexp(mass_NQJ.sum(-1).log_(), null_T[..., start:stop], out=log_total)
            weight = mass_NQJ.mul_(torch.exp(-log_total)[..., None]).to(gate_NTG.dtype)
            torch.bmm(weight, gate_NTG[:, :stop], out=mean_NTG[:, start:stop])
        return log_total_NT

    def backward(
        self, features: Sequence[Tensor], gate_NTG: Tensor, incoming: Incoming, dgate_NTG: Tensor
    ) -> list[Tensor]:
        """Write the gate's gradient into `dgate_NTG`; give those of the features.

        By strips of keys, so that the wide products are whole sums: adding parts to T × G
        gradients runs at four fifths of the rate.
        """
        q_NTK, k_NTK = features[:2]
        log_total_NT, mean_dot_NT, dmean_NTG = incoming
        length = q_NTK.shape[1]
        dq_NTK, dk_NTK = torch.empty_like(q_NTK), torch.empty_like(k_NTK)
        grads = [dq_NTK, dk_NTK, *(torch.zeros_like(f) for f in features[2:])]
        strip = self._strip(length)
        for start in range(0, length, strip):
            rows, cols = slice(start, length), slice(start, min(start + strip, length))
            weight = torch.bmm(q_NTK[:, rows], k_NTK[:, cols].mT)
            weight.sub_(log_total_NT[:, rows, None]).exp_()
            weight[:, : cols.stop - start].tril_()
            self.weigh_older_rows(features, weight, cols, log_total_NT)
            dmean = dmean_NTG[:, rows]
            torch.bmm(weight.to(gate_NTG.dtype).mT, dmean, out=dgate_NTG[:, cols])
            dweight = torch.bmm(dmean, gate_NTG[:, cols].mT).to(weight.dtype)
            dweight.sub_(mean_dot_NT[:, rows, None])
            self.take_older(features, dweight, cols, log_total_NT, grads)
            dlogit = dweight.mul_(weight)
            torch.bmm(dlogit.mT, q_NTK[:, rows], out=dk_NTK[:, cols])
            dq_NTK[:, rows].baddbmm_(dlogit, k_NTK[:, cols], beta=int(start > 0))
        return grads

    def weigh_older(self, features: Sequence[Tensor], mass_NQJ: Tensor, start: int) -> None:
        """WANGO's change of the weights of a strip of queries; TANGO has one kind of weight."""

    def weigh_older_rows(
        self, features: Sequence[Tensor], weight_NQJ: Tensor, cols: slice, log_total_NT: Tensor
    ) -> None:
        """The same for the normalised weights of a strip of keys."""

    def take_older(
        self,
        features: Sequence[Tensor],
        dweight_NQJ: Tensor,
        cols: slice,
        log_total_NT: Tensor,
        grads: Sequence[Tensor],
    ) -> None:
        """Move the gradients of older pairs of a strip of keys from `dweight_NQJ` to `grads`."""

    def _strip(self, length: int) -> int:
        """An eighth of a short sequence, so that the skipped half is not lost to the diagonal."""
        if self.strip:
            return self.strip
        parts = max(1, min(8, length // SHORTEST_STRIP))
        return min(LONGEST_STRIP, -(-length // parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortWangoKernel(TangoKernel):
    """TANGO's strips with eq. 9 in the lower left corner, where pairs are at least `window` apart.

    Features are (τ·q, k, φ(√τ q), φ(√τ k)). Quadratic in T, but without padding or states.
    """

    window: int

    def weigh_older(self, features: Sequence[Tensor], mass_NQJ: Tensor, start: int) -> None:
        """Replace the weights of older pairs in a strip of queries."""
        stop = mass_NQJ.shape[2]
        if stop <= self.window:
            return
        first, columns = max(start, self.window), slice(0, stop - self.window)
        older = torch.bmm(features[2][:, first:stop], features[3][:, columns].mT)
        _replace(mass_NQJ[:, first - start :, columns], older, first - self.window)

    def weigh_older_rows(
        self, features: Sequence[Tensor], weight_NQJ: Tensor, cols: slice, log_total_NT: Tensor
    ) -> None:
        """Replace the normalised weights of older pairs in a strip of keys."""
        rows = slice(cols.start + self.window, None)
        older = torch.bmm(features[2][:, rows], features[3][:, cols].mT)
        _replace(weight_NQJ[:, self.window :], older.mul_(_scale(log_total_NT, rows)), 0)

    def take_older(
        self,
        features: Sequence[Tensor],
        dweight_NQJ: Tensor,
        cols: slice,
        log_total_NT: Tensor,
        grads: Sequence[Tensor],
    ) -> None:
        """Gradients of φq and φk."""
        rows = slice(cols.start + self.window, None)
        dolder = dweight_NQJ[:, self.window :].tril().mul_(_scale(log_total_NT, rows))
        grads[2][:, rows].baddbmm_(dolder, features[3][:, cols])
        torch.bmm(dolder.mT, features[2][:, rows], out=grads[3][:, cols])
        dweight_NQJ[:, self.window :].triu_(1)


def _replace(corner_NQJ: Tensor, older_NQJ: Tensor, diagonal: int) -> None:
    """On the diagonal and left of it, pairs are older."""
    corner_NQJ.triu_(diagonal + 1).add_(older_NQJ.tril_(diagonal))


def _scale(log_total_NT: Tensor, rows: slice) -> Tensor:
    return torch.exp(-log_total_NT[:, rows, None])
