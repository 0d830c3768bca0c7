"""Multiply–accumulates of one forward pass, by the paper's formulas (§3, operation counts).

- Terms: `vocab` (output projection), `projections` (learned matrices), `pairs` (token pairs) and
  `state` (prefix sums of WANGO and FLASH). Norms, masks, feature maps and elementwise work are not
  counted, as in the paper.
- Sharing changes no term: a block costs the same whether its weights are its own or not.
- Never imports torch. `eval/costs/macs.py` traces the same numbers from real products.

Usage: `sum(formula(config.published("wango", "fineweb", 4), 8192).values())`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

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
    block = FORMULAS[config.arch](config, length)
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


FORMULAS: Final[dict[str, Callable[[ModelConfig, int], dict[str, int]]]] = {
    "tango": _tango,
    "wango": _wango,
    "recurrent_transformer": _transformer,
    "untied_transformer": _transformer,
    "gau": _gau,
    "flash": _flash,
}


def printed(macs: int) -> str:
    """The paper's notation: 9.44T, 848.60B."""
    return f"{macs / 1e12:.2f}T" if macs >= 1e12 else f"{macs / 1e9:.2f}B"


def decode_state_values(config: ModelConfig, length: int) -> int:
    """Numbers kept per sequence after `length` tokens, without a growing cache's spare room."""
    d, f, s = config.d_model, config.width, config.qk_width
    per_application = {
        "tango": length * (d + f),
        "wango": config.window * (2 * d + f) + config.d_head * f + d,
        "recurrent_transformer": 2 * length * d,
        "untied_transformer": 2 * length * d,
        "gau": length * (s + f),
        "flash": config.chunk * (2 * s + f) + s * f,
    }
    return config.depth * per_application[config.arch]
