"""Initial weights.

- One generator per tensor, seeded by (seed, name): TANGO and WANGO start equal, all six share the
  embedding, and adding a tensor moves no other one.
- Values are drawn on the CPU in float32 and then cast: the same on any device and in any dtype.
- N(0, 0.02²) at d=512, 0.02·√(512/d) elsewhere; residual outputs are divided by √(2R),
  R = `init_scale` or else the depth.

Usage: `initialise(model, seed=17)`.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Final

import torch

from tangobench.model.layers import INITIAL_THETA

if TYPE_CHECKING:
    from tangobench.model.config import ModelConfig
    from tangobench.model.language import LanguageModel

STD: Final = 0.02
RESIDUAL_OUTPUTS: Final = frozenset({"wo", "w_down", "w_out"})
ONES: Final = frozenset({"norm", "norm_attn", "norm_ffn", "norm_weight", "final_norm"})
ZEROS: Final = frozenset({"norm_bias", "b_in", "b_out", "beta", "null_bias"})
POSITION_FREE: Final = frozenset({"gamma", "toeplitz"})  # 0.02 at every d_model


def initialise(model: LanguageModel, seed: int) -> None:
    """Fill every parameter in place."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_value(name, parameter.shape, model.config, seed))


def initial_value(name: str, shape: torch.Size, config: ModelConfig, seed: int) -> torch.Tensor:
    """The initial float32 value of one tensor."""
    leaf = name.rpartition(".")[2]
    if leaf in ONES:
        return torch.ones(shape)
    if leaf in ZEROS:
        return torch.zeros(shape)
    if leaf == "theta":
        return torch.full(shape, INITIAL_THETA)
    std = STD if leaf in POSITION_FREE else STD * math.sqrt(512 / config.d_model)
    if leaf in RESIDUAL_OUTPUTS:
        std /= math.sqrt(2 * (config.init_scale or config.depth))
    key = hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8]
    generator = torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)
    return torch.empty(shape).normal_(0.0, std, generator=generator)
