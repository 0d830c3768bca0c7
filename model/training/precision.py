"""In what precision a recipe computes; weights stay as they are.

Usage: `with autocast("cpu", recipe.precision): model.loss(tokens, marks)`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from tangobench.model.training.recipes import Precision


@contextlib.contextmanager
def autocast(device: str, precision: Precision) -> Iterator[None]:
    """Compute in bfloat16 where the recipe says so."""
    with torch.autocast(device.partition(":")[0], torch.bfloat16, enabled=precision == "bf16"):
        yield
