"""How many rows fit into memory at once, and what running out of it looks like.

- The estimate is only a start: on a GPU the trainer halves it whenever memory runs out. On a CPU
  Linux would kill the process instead, so there the estimate stays well below what is free.

Usage: `size = microbatch(model, rows=64, context=256)`.
"""

from __future__ import annotations

import os
from typing import Final

import torch

from tangobench.model.language import LanguageModel

_SHARE: Final = 0.4  # of free memory; the estimate below is good to about a factor of two
# More at once is slower on a CPU: activations leave the caches, and rows sorted by length are
# padded less in small parts. Mini TANGO on mathematics, relative process time of a step: 4 rows
# 1.00, 8 rows 1.00, 16 rows 1.23, 64 rows 3.0.
_CPU_TOKENS: Final = 2048


def microbatch(model: LanguageModel, rows: int, context: int) -> int:
    """The largest power of two of rows that should fit, at most `rows`."""
    config = model.config
    parameter = next(model.parameters())
    kept = config.depth * (10 * config.d_model + 6 * config.width) + 2 * config.d_model
    row_bytes = context * kept * parameter.element_size()
    fitting = min(rows, max(1, int(_SHARE * free_bytes(parameter.device) / row_bytes)))
    if parameter.device.type == "cpu":
        fitting = min(fitting, max(1, _CPU_TOKENS // context))
    return 1 << (fitting.bit_length() - 1)


def free_bytes(device: torch.device) -> int:
    """Memory that an allocation could still get."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def ran_out(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on a GPU or in the CPU's allocator."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def release(device: str) -> None:
    """Give cached blocks back before trying again."""
    if device == "cuda":
        torch.cuda.empty_cache()
