"""Six language models of the TANGO paper: exact, compact, fast on a CPU.

- CUDA paths are there and tested on a CPU; none of them has run on a GPU yet (docs/gpu.md).
- The state dict's names are stable and documented in docs/models.md.
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
    """The initialised module; weights depend on (seed, tensor name) alone; `meta` has none."""
    import torch

    from tangobench.model.language import LanguageModel, initialise

    with torch.device(device):
        model = LanguageModel(config).to(dtype=dtype)
    if torch.device(device).type != "meta":
        initialise(model, seed)
    return model
