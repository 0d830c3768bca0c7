"""Greedy continuations of prompts of different lengths, in one batch.

- Rows are padded behind, where causal models never look; the true lengths go with them.

Usage: `rows = continuations(model, [[1, 5, 2], [1, 2]], 31, stop=EOS)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


def padded(rows: Sequence[Any]) -> torch.Tensor:
    """Token ids as one tensor, zeros behind the short ones."""
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.from_numpy(np.asarray(row, np.int64))
    return ids


def continuations(
    model: Any, prompts: Sequence[Any], longest: int, *, stop: int
) -> list[list[int]]:
    """At most `longest` new tokens of each prompt; what ended early is filled up with `stop`."""
    device = model.embed.device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    out = model.generate(padded(prompts).to(device), longest, stop=stop, lengths=lengths)
    generated: list[list[int]] = out.tolist()
    return generated
