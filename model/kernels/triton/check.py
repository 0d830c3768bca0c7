"""The self-check of the Triton kernels: a second against the strips before a process trusts them.

- Averages and every gradient, two heads, an odd length, bfloat16 gates, against float64.
- The tolerance is relative to the largest value: twice what bfloat16 rounding gives under the
  interpreter (up to 0.9%). Of eighteen signs changed in the kernels the least is off by 4%.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from tangobench.model import layers
from tangobench.model.kernels.crossgate import HeadKernel, Incoming, TangoKernel
from tangobench.model.kernels.triton.tango import TangoTriton
from tangobench.model.kernels.triton.wango import WangoTriton
from tangobench.model.kernels.wango import WangoKernel

TOLERANCE: Final = 0.02
_LENGTH, _CHANNELS, _COLUMNS, _TAU = 193, 32, 80, 10.0


def disagreement(device: str) -> str | None:
    """Why the kernels are not to be trusted on a device; None if they agree."""
    pairs: tuple[tuple[str, HeadKernel, HeadKernel], ...] = (
        ("TANGO", TangoTriton(), TangoKernel()),
        ("WANGO", WangoTriton(64), WangoKernel(64)),
    )
    for name, kernel, reference in pairs:
        inputs = _inputs(wango=name == "WANGO")
        expected = _results(reference, inputs)
        try:
            narrow = [x.float().to(device) for x in inputs]
            narrow[-2:] = [x.to(torch.bfloat16) for x in narrow[-2:]]
            found = _results(kernel, narrow)
        except Exception as error:
            return f"{name}'s Triton kernel failed: {type(error).__name__}: {str(error)[:200]}"
        for what, ours, theirs in zip(_NAMES, found, expected, strict=False):
            apart = float((ours.double().cpu() - theirs).abs().max() / theirs.abs().max())
            if not apart <= TOLERANCE:
                return f"{name}'s Triton kernel differs from the reference by {apart:.1%} in {what}"
    return None


_NAMES: Final = ("the average", "dgate", "dq", "dk", "dphi_q", "dphi_k")


def _inputs(*, wango: bool) -> list[Tensor]:
    """Features, null logits, gates and an incoming gradient, in float64."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k = (layers.unit(draw(2, _LENGTH, _CHANNELS)) for _ in range(2))
    features = [_TAU * q, k]
    if wango:
        features += [layers.phi(_TAU**0.5 * u) for u in (q, k)]
    return [*features, draw(2, 1), draw(2, _LENGTH, _COLUMNS), draw(2, _LENGTH, _COLUMNS)]


def _results(kernel: HeadKernel, inputs: list[Tensor]) -> list[Tensor]:
    """The average, and the gradients of gates and features."""
    *features, null, gate, dmean = inputs
    mean, dgate = torch.empty_like(gate), torch.empty_like(gate)
    log_total = kernel.forward(features, gate, null, mean)
    mean_dot = (layers.wide(mean) * dmean).sum(-1)
    incoming = Incoming(log_total, mean_dot, dmean)
    return [mean, dgate, *kernel.backward(features, gate, incoming, dgate)]
