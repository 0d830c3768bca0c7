"""How many rows are computed at once, and what running out of memory looks like.

- On a CPU the number depends on the recipe alone: sums over other microbatches round differently,
  and a resumed run should reach the same bits whatever else the machine is doing.
- On a GPU it goes by free memory and the counted peak of a microbatch (`counting`); activations are
  made again in the backward pass only where a single row does not fit otherwise. If memory runs
  out all the same, the trainer halves the number.

Usage: `size = microbatch(model, 64, 256, "bf16")`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

from tangobench.model.config import ModelConfig
from tangobench.model.counting import step_work
from tangobench.model.kernels import select
from tangobench.model.language import LanguageModel
from tangobench.model.training.recipes import Precision

SHARE: Final = 0.85  # of a GPU's free memory; the rest is for libraries and fragmentation
# More at once is slower on a CPU: activations leave the caches, and rows sorted by length are
# padded less in small parts. Mini TANGO on mathematics, relative process time of a step: 4 rows
# 1.00, 8 rows 1.00, 16 rows 1.23, 64 rows 3.0.
_CPU_TOKENS: Final = 2048


class Fit(NamedTuple):
    """A microbatch and what it takes on a GPU."""

    rows: int
    recomputes: bool
    peak_bytes: int


def microbatch(model: LanguageModel, rows: int, context: int, precision: Precision) -> int:
    """A power of two of rows, at most `rows`; on a GPU also decides what is recomputed."""
    device = next(model.parameters()).device
    if device.type == "cpu":
        return on_cpu(rows, context)
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_allocated(device)
    fit = fitting(model.config, rows, context, precision, free)
    select.Policy.recompute = fit.recomputes
    return fit.rows


def on_cpu(rows: int, context: int) -> int:
    """A power of two of rows that stay in the caches."""
    return _power(min(rows, max(1, _CPU_TOKENS // context)))


def fitting(config: ModelConfig, rows: int, context: int, precision: Precision, free: int) -> Fit:
    """The most rows whose peak is below a share of `free` bytes; one row if none is."""
    for recompute in (False, True):
        one, two = (_peak(config, n, context, precision, recompute) for n in (1, 2))
        if one <= SHARE * free or recompute:
            break
    size = _power(min(rows, 1 + max(0, int((SHARE * free - one) / max(1, two - one)))))
    return Fit(size, recompute, one + (size - 1) * (two - one))


def _peak(
    config: ModelConfig, rows: int, context: int, precision: Precision, recompute: bool
) -> int:
    with select.using("batched", recompute=recompute):
        return step_work(config, rows, context, bf16=precision == "bf16").peak_bytes


def _power(number: int) -> int:
    return 1 << (number.bit_length() - 1)


def ran_out(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on a GPU or in the CPU's allocator."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def release(device: str) -> None:
    """Give cached blocks back before trying again."""
    if device != "cpu":
        torch.cuda.empty_cache()
