"""How many rows are computed at once, and what running out of memory looks like.

- On a CPU the number depends on the recipe alone: sums over other microbatches round differently,
  and a resumed run should reach the same bits whatever else the machine is doing.
- On a GPU it goes by free memory, and the trainer halves it whenever that runs out.

Usage: `size = microbatch(model, rows=64, context=256)`.
"""

from __future__ import annotations

from typing import Final

import torch

from tangobench.model.language import LanguageModel

_SHARE: Final = 0.4  # of a GPU's free memory; the estimate is good to about a factor of two
# More at once is slower on a CPU: activations leave the caches, and rows sorted by length are
# padded less in small parts. Mini TANGO on mathematics, relative process time of a step: 4 rows
# 1.00, 8 rows 1.00, 16 rows 1.23, 64 rows 3.0.
_CPU_TOKENS: Final = 2048


def microbatch(model: LanguageModel, rows: int, context: int) -> int:
    """A power of two of rows, at most `rows`."""
    device = next(model.parameters()).device
    fitting = _CPU_TOKENS // context if device.type == "cpu" else _fitting(model, context)
    return 1 << (min(rows, max(1, fitting)).bit_length() - 1)


def _fitting(model: LanguageModel, context: int) -> int:
    """Rows whose activations take a safe share of a GPU's free memory."""
    config, parameter = model.config, next(model.parameters())
    kept = config.depth * (10 * config.d_model + 6 * config.width) + 2 * config.d_model
    row_bytes = context * kept * parameter.element_size()
    return int(_SHARE * torch.cuda.mem_get_info(parameter.device)[0] / row_bytes)


def ran_out(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on a GPU or in the CPU's allocator."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def release(device: str) -> None:
    """Give cached blocks back before trying again."""
    if device == "cuda":
        torch.cuda.empty_cache()
