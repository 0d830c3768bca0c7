"""TANGO's gate average for one head: causal strips, recomputed in the backward pass.

- Never more than one strip of weights (256 × T) exists: memory is O(T·G), with no T² term.
- Masked blocks are skipped: a strip of queries meets the keys up to its own last row (forward), a
  strip of keys the queries from its own first row on (backward).
- Unit-length queries and keys bound a logit by τ ≤ 20, so exp needs no running maximum:
  e²⁰ · 8,192 = 4e12 is far from the float32 limit.

Shapes: N sequences, T positions, K channels of a head, G gate channels of a head.
Usage: `log_total = TangoKernel().forward((scaled_q, k), gate, null_bias, mean_out)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tangobench.model.kernels.head import null_logits

LONGEST_STRIP: Final = 256  # products of fewer rows run below the GEMM rate
SHORTEST_STRIP: Final = 64


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
        self,
        features: Sequence[Tensor],
        gate_NTG: Tensor,
        log_total_NT: Tensor,
        mean_dot_NT: Tensor,
        dmean_NTG: Tensor,
        dgate_NTG: Tensor,
    ) -> list[Tensor]:
        """Write the gate's gradient into `dgate_NTG`; give those of the features.

        By strips of keys: each meets the queries from its own first row on, so that the wide
        products are whole sums. Adding parts to T × G gradients runs at four fifths of the rate.
        """
        q_NTK, k_NTK = features[:2]
        length = q_NTK.shape[1]
        dq_NTK, dk_NTK = torch.empty_like(q_NTK), torch.empty_like(k_NTK)
        grads = [dq_NTK, dk_NTK, *(torch.zeros_like(f) for f in features[2:])]
        strip = self._strip(length)
        for start in range(0, length, strip):
            rows, cols = slice(start, length), slice(start, min(start + strip, length))
            weight = torch.bmm(q_NTK[:, rows], k_NTK[:, cols].mT)
            weight.sub_(log_total_NT[:, rows, None]).exp_()
            weight[:, : cols.stop - start].tril_()
            self.weigh_older_rows(features, weight, start, log_total_NT)
            dmean = dmean_NTG[:, rows]
            torch.bmm(weight.to(gate_NTG.dtype).mT, dmean, out=dgate_NTG[:, cols])
            dweight = torch.bmm(dmean, gate_NTG[:, cols].mT).to(weight.dtype)
            dweight.sub_(mean_dot_NT[:, rows, None])
            dlogit = self.logit_gradients(features, weight, dweight, start, log_total_NT, grads)
            torch.bmm(dlogit.mT, q_NTK[:, rows], out=dk_NTK[:, cols])
            dq_NTK[:, rows].baddbmm_(dlogit, k_NTK[:, cols], beta=int(start > 0))
        return grads

    def weigh_older(self, features: Sequence[Tensor], mass_NQJ: Tensor, start: int) -> None:
        """WANGO's change of the weights of a strip of queries; TANGO has one kind of weight."""

    def weigh_older_rows(
        self, features: Sequence[Tensor], weight_NQJ: Tensor, start: int, log_total_NT: Tensor
    ) -> None:
        """The same for the normalised weights of a strip of keys."""

    def logit_gradients(
        self,
        features: Sequence[Tensor],
        weight_NQJ: Tensor,
        dweight_NQJ: Tensor,
        start: int,
        log_total_NT: Tensor,
        grads: Sequence[Tensor],
    ) -> Tensor:
        """The gradient of the logits of a strip of keys, in place of `dweight_NQJ`."""
        return dweight_NQJ.mul_(weight_NQJ)

    def _strip(self, length: int) -> int:
        """An eighth of a short sequence, so that the skipped half is not lost to the diagonal."""
        if self.strip:
            return self.strip
        parts = max(1, min(8, length // SHORTEST_STRIP))
        return min(LONGEST_STRIP, -(-length // parts))
