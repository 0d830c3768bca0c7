"""Multiply–accumulates of one forward pass, traced: an independent check of the formulas.

- `formula` (model/config.py) is the model equations; `traced` runs the dense, unskipped path on
  `meta` tensors and adds up the matrix products it really performs. The two agree term by term.
- Causal tiles of the fast paths do about half of the pairwise work counted here.

Usage: `sum(macs.formula(config.published("wango", "fineweb", 4), 8192).values())`.
"""

from __future__ import annotations

from collections import Counter

import torch

from tangobench.eval.costs import dense
from tangobench.model import build, counting, naive
from tangobench.model.config import SCALING, ModelConfig, formula, printed

__all__ = ["SCALING", "formula", "printed", "traced"]


def traced(config: ModelConfig, length: int) -> dict[str, int]:
    """MACs of the products that the dense path performs on `meta` tensors, by term."""
    parameters = dict(build(config, device="meta").named_parameters())
    tokens = torch.zeros(1, length, dtype=torch.long, device="meta")
    macs: Counter[str] = Counter()
    with torch.no_grad(), counting.Counter(naive.TERM.get) as counter:
        naive.logits(config, parameters, tokens, mixers=dense.MIXERS)
    for op, number in counter.ops.items():
        if op.flop:
            macs[op.term] += number * op.flop // 2
    return dict(macs)
