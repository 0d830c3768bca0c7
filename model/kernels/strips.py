"""Gate averages by causal strips, recomputed in the backward pass: TANGO, and WANGO where T ≤ 256.

- Never more than one strip of weights exists, and masked blocks are skipped: a strip of queries
  meets the keys up to its last row (forward), one of keys the queries from its first row on.
- Unit-length queries and keys bound a logit by τ ≤ 20: exp needs no running maximum.
Shapes: N sequences, T positions, Q rows and J columns of a strip, K and G channels of a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tangobench.model.kernels.crossgate import Incoming, null_logits

LONGEST_STRIP: Final = 256  # products of fewer rows run below the GEMM rate
SHORTEST_STRIP: Final = 64
SHORT: Final = 256  # half of 256 columns is what WANGO's blocks compute per row: 64 + 64 and S


@dataclass(frozen=True, slots=True)
class TangoKernel:
    """Forward and backward of eq. 5 with the weights of eq. 6; features are (τ·q, k).

    With a window it is WANGO's: pairs at least `window` apart have eq. 9's weights, of the features
    φ(√τ q) and φ(√τ k) that follow. Quadratic in T, but without padding or states.
    """

    strip: int | None = None  # queries at a time; None: by length
    window: int | None = None

    def forward(
        self, features: Sequence[Tensor], gate_NTG: Tensor, null_bias: Tensor, mean_NTG: Tensor
    ) -> Tensor:
        length = gate_NTG.shape[1]
        log_total_NT = features[0].new_empty(gate_NTG.shape[:2])
        null_T = null_logits(null_bias, 0, length)
        for rows in self._strips(length):
            cols, log_total = slice(0, rows.stop), log_total_NT[:, rows]
            mass_NQJ = self.masses(features, rows, cols)
            torch.logaddexp(mass_NQJ.sum(-1).log_(), null_T[..., rows], out=log_total)
            weight = mass_NQJ.mul_(torch.exp(-log_total)[..., None]).to(gate_NTG.dtype)
            torch.bmm(weight, gate_NTG[:, cols], out=mean_NTG[:, rows])
        return log_total_NT

    def backward(
        self, features: Sequence[Tensor], gate_NTG: Tensor, incoming: Incoming, dgate_NTG: Tensor
    ) -> list[Tensor]:
        """By strips of keys, so that the wide products are whole sums: adding parts to T × G
        gradients runs at four fifths of the rate."""
        q_NTK, k_NTK = features[:2]
        log_total_NT, mean_dot_NT, dmean_NTG = incoming
        scale_NT1, length = torch.exp(-log_total_NT)[..., None], gate_NTG.shape[1]
        grads = [torch.zeros_like(f) for f in features]
        for cols in self._strips(length):
            rows = slice(cols.start, length)
            dmean, scale = dmean_NTG[:, rows], scale_NT1[:, rows]
            weight = self.masses(features, rows, cols).mul_(scale)
            torch.bmm(weight.to(gate_NTG.dtype).mT, dmean, out=dgate_NTG[:, cols])
            dweight = torch.bmm(dmean, gate_NTG[:, cols].mT).to(weight.dtype)
            dweight.sub_(mean_dot_NT[:, rows, None])
            if self.window is not None:  # older pairs: their gradients go to φ, not to the logits
                later, corner = slice(cols.start + self.window, None), dweight[:, self.window :]
                dolder = corner.tril().mul_(scale[:, self.window :])
                grads[2][:, later].baddbmm_(dolder, features[3][:, cols])
                torch.bmm(dolder.mT, features[2][:, later], out=grads[3][:, cols])
                corner.triu_(1)
            dlogit = dweight.mul_(weight)
            torch.bmm(dlogit.mT, q_NTK[:, rows], out=grads[1][:, cols])
            grads[0][:, rows].baddbmm_(dlogit, k_NTK[:, cols])
        return grads

    def masses(self, features: Sequence[Tensor], rows: slice, cols: slice) -> Tensor:
        """Weights before division of a strip that begins or ends at the diagonal; zero above it."""
        mass_NQJ = torch.bmm(features[0][:, rows], features[1][:, cols].mT).exp_()
        mass_NQJ[:, : cols.stop - rows.start, rows.start - cols.start :].tril_()
        if self.window is None:
            return mass_NQJ
        first = max(rows.start, cols.start + self.window)
        last = min(cols.stop, rows.stop - self.window)
        if first < rows.stop and cols.start < last:
            phi_q, phi_k = features[2][:, first : rows.stop], features[3][:, cols.start : last]
            older = torch.bmm(phi_q, phi_k.mT)
            corner = mass_NQJ[:, first - rows.start :, : older.shape[2]]
            apart = first - cols.start - self.window  # on this diagonal and left of it
            corner.triu_(apart + 1).add_(older.tril_(apart))
        return mass_NQJ

    def _strips(self, length: int) -> Iterator[slice]:
        """An eighth of a short sequence, so that the skipped half is not lost to the diagonal."""
        parts = max(1, min(8, length // SHORTEST_STRIP))
        strip = self.strip or min(LONGEST_STRIP, -(-length // parts))
        for start in range(0, length, strip):
            yield slice(start, min(start + strip, length))
