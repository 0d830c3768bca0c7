"""Six language models of the TANGO paper: exact, compact, fast on a CPU.

- `build(config)` is the one way to make a model; torch is imported when it is called.
- CUDA paths are there and tested on a CPU; none of them has run on a GPU yet (docs/gpu.md).
- The state dict's names are stable and documented in docs/models.md.

Usage: `model = build(config.published("tango", "dm_math", depth=4)); model(tokens)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from tangobench.model.config import ModelConfig
    from tangobench.model.language import LanguageModel

__all__ = ["build"]


def build(
    config: ModelConfig,
    *,
    seed: int = 17,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> LanguageModel:
    """The initialised module; weights depend on (seed, tensor name) alone."""
    from tangobench.model.language import build_model

    return build_model(config, seed=seed, device=device, dtype=dtype)
