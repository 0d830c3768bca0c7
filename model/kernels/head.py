"""What a kernel of one head's gate average is, and the null gate that all of them share.

- A kernel sees N sequences that have nothing to do with each other: the sequences of one head
  (crossgate), or all heads of all sequences (batched).
- The null gate is a factor: mean = softmax-average × sigmoid(lse − (b + log n)). What is kept per
  row is log(Σ mass + n·e^b), from which the backward pass gets normalised weights in one exp.

Shapes: N sequences, T positions, G gate channels of a head.
Usage: `log_total = torch.logaddexp(log_mass_NT, null_logits(null_bias, 0, length))`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class HeadKernel(Protocol):
    """The aggregation of N sequences; `null_bias` is one number, or one per sequence (N, 1)."""

    def forward(
        self, features: Sequence[Tensor], gate_NTG: Tensor, null_bias: Tensor, mean_NTG: Tensor
    ) -> Tensor:
        """Write the average, return log_total."""

    def backward(
        self,
        features: Sequence[Tensor],
        gate_NTG: Tensor,
        log_total_NT: Tensor,
        mean_dot_NT: Tensor,
        dmean_NTG: Tensor,
        dgate_NTG: Tensor,
    ) -> list[Tensor]:
        """Write the gate's gradient, return those of the features; `mean_dot` is mean · dmean."""


def null_logits(null_bias: Tensor, start: int, stop: int) -> Tensor:
    """b + log n_i of rows start … stop − 1, where n_i = i + 1."""
    visible = torch.arange(start + 1, stop + 1, dtype=null_bias.dtype, device=null_bias.device)
    return null_bias + visible.log()


def null_gradient(null_bias: Tensor, log_total_NT: Tensor, mean_dot_NT: Tensor) -> Tensor:
    """The null gate's value is zero, so ∂loss/∂b = −Σ (its weight) · (mean · dmean)."""
    weight = torch.exp(null_logits(null_bias, 0, log_total_NT.shape[1]) - log_total_NT)
    return -(weight * mean_dot_NT).sum()
