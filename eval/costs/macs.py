"""Multiply–accumulates of one forward pass, traced: an independent check of the formulas.

- `formula` (model/macs.py) is the model equations; `traced` runs the dense, unskipped path on
  `meta` tensors and adds up the matrix products it really performs. The two agree term by term.
- Causal tiles of the fast paths do about half of the pairwise work counted here.

Usage: `sum(macs.formula(config.published("wango", "fineweb", 4), 8192).values())`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tangobench.eval.costs import dense
from tangobench.model import build, naive
from tangobench.model.config import ModelConfig
from tangobench.model.macs import SCALING, formula, printed

__all__ = ["SCALING", "formula", "printed", "traced"]


class _Products(TorchDispatchMode):
    """Adds up the multiply–accumulates of every matrix product under the current label."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.macs: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            self.macs[naive.TERM.get()] += out.numel() * args[0].shape[-1]
        elif func in (torch.ops.aten.addmm.default, torch.ops.aten.baddbmm.default):
            self.macs[naive.TERM.get()] += out.numel() * args[1].shape[-1]
        return out


def traced(config: ModelConfig, length: int) -> dict[str, int]:
    """MACs of the products that the dense path performs on `meta` tensors, by term."""
    parameters = dict(build(config, device="meta").named_parameters())
    tokens = torch.zeros(1, length, dtype=torch.long, device="meta")
    with torch.no_grad(), _Products() as products:
        naive.logits(config, parameters, tokens, mixers=dense.MIXERS)
    return dict(products.macs)
