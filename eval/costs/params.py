"""Parameter counts of the real module, and the memory of training and decoding.

- Counted on `meta` tensors: shapes are real, nothing is allocated.
- Shared weights count once; the tied embedding is the only part left out of `nonembedding`.
- Kept activations are what autograd saves between forward and backward, each storage once.

Usage: `params.count(config.published("tango", "fineweb", 4))`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tangobench.model import build
from tangobench.model.config import ModelConfig, decode_state_values
from tangobench.model.counting import kept_bytes

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
    """Bytes that the blocks keep between forward and backward, in float32, for one sequence.

    Not in it: the embedded tokens, the final norm, and the output loss, which keeps one row of
    gradients per target (model/kernels/nll.py).
    """
    if config.arch == "gau" and length > config.context:
        config = replace(config, context=length)
    return config.depth * kept_bytes(config, length)
