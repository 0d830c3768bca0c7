"""Multiply–accumulates of one forward pass: the paper's formulas, and an independent trace.

- `formula` is the model equations; `traced` runs the dense, unskipped path on `meta` tensors and
  adds up the matrix products it really performs. The two agree term by term (tests).
- Terms: `vocab` (output projection), `projections` (learned matrices), `pairs` (token pairs) and
  `state` (prefix sums of WANGO and FLASH). Norms, masks, feature maps and elementwise work are not
  counted, as in the paper (§3, "Parameter and operation counts").
- Causal tiles of the fast paths do about half of the pairwise work counted here.

Usage: `sum(macs.formula(config.published("wango", "fineweb", 4), 8192).values())`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tangobench.model import build, dense, naive
from tangobench.model.config import ModelConfig

SCALING: Final[dict[str, str]] = {
    "tango": "quadratic",
    "wango": "linear",
    "recurrent_transformer": "quadratic",
    "untied_transformer": "quadratic",
    "gau": "quadratic",
    "flash": "linear",
}


def formula(config: ModelConfig, length: int) -> dict[str, int]:
    """MACs of one sequence of `length` tokens, by term."""
    block = _FORMULAS[config.arch](config, length)
    terms = {name: config.depth * value for name, value in block.items()}
    return {"vocab": length * config.d_model * config.vocabulary, **terms}


def _tango(c: ModelConfig, t: int) -> dict[str, int]:
    d, f = c.d_model, c.width
    return {"projections": t * (2 * d * d + 3 * d * f), "pairs": t * t * (d + f)}


def _wango(c: ModelConfig, t: int) -> dict[str, int]:
    d, f = c.d_model, c.width
    return {
        "projections": t * (2 * d * d + 3 * d * f),
        "pairs": 3 * c.window * t * (d + f),
        "state": 2 * t * (c.d_head * f + d),
    }


def _transformer(c: ModelConfig, t: int) -> dict[str, int]:
    d, f = c.d_model, c.width
    return {"projections": t * (4 * d * d + 3 * d * f), "pairs": 2 * t * t * d}


def _gau(c: ModelConfig, t: int) -> dict[str, int]:
    d, e, s = c.d_model, c.width, c.qk_width
    return {"projections": t * (d * (2 * e + s) + e * d), "pairs": t * t * (s + e)}


def _flash(c: ModelConfig, t: int) -> dict[str, int]:
    d, e, s = c.d_model, c.width, c.qk_width
    return {
        "projections": t * (d * (2 * e + s) + e * d),
        "pairs": c.chunk * t * (s + e),
        "state": 2 * t * s * e,
    }


_FORMULAS: Final[dict[str, Callable[[ModelConfig, int], dict[str, int]]]] = {
    "tango": _tango,
    "wango": _wango,
    "recurrent_transformer": _transformer,
    "untied_transformer": _transformer,
    "gau": _gau,
    "flash": _flash,
}


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


def printed(macs: int) -> str:
    """The paper's notation: 9.44T, 848.60B."""
    return f"{macs / 1e12:.2f}T" if macs >= 1e12 else f"{macs / 1e9:.2f}B"
