"""Parameter counts of the real module, and the memory of training and decoding.

- Counted on `meta` tensors: shapes are real, nothing is allocated.
- Shared weights count once; the tied embedding is the only part left out of `nonembedding`.
- Kept activations are what autograd saves between forward and backward, each storage once.

Usage: `params.count(config.published("tango", "fineweb", 4))`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tangobench.model import build
from tangobench.model.config import ModelConfig
from tangobench.model.macs import decode_state_values

__all__ = ["Counts", "count", "decode_state_values", "kept_activation_bytes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Parameters of one model."""

    nonembedding: int
    embedding: int

    @property
    def total(self) -> int:
        """Everything, the tied matrix once."""
        return self.nonembedding + self.embedding


def count(config: ModelConfig) -> Counts:
    """Parameters by walking the module."""
    sizes = {name: p.numel() for name, p in build(config, device="meta").named_parameters()}
    embedding = sizes.pop("embed")
    return Counts(nonembedding=sum(sizes.values()), embedding=embedding)


def kept_activation_bytes(config: ModelConfig, length: int) -> int:
    """Bytes that a float32 training step keeps between forward and backward, for one sequence.

    The output loss is not in it: it keeps one row of gradients per target (model/kernels/nll.py).
    """
    if config.arch == "gau" and length > config.context:
        config = replace(config, context=length)
    model = build(config, device="meta")
    parameters = {p.untyped_storage()._cdata for p in model.parameters()}
    kept: dict[int, int] = {}
    alive: list[Any] = []  # a freed storage's identity could be used again

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        # `meta` has only the attention that writes out T × T weights; real devices keep none.
        if storage._cdata not in parameters and tensor.shape[-2:] != (length, length):
            kept[storage._cdata] = storage.nbytes()
            alive.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.hidden(torch.zeros(1, length, dtype=torch.long, device="meta"))
    return sum(kept.values())
