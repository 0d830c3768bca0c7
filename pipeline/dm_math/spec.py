"""The DeepMind Mathematics spec: how many examples of each combination to draw.

Usage: `load_spec(Spec, "dm_math", "mini")`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tangobench.pipeline.core.spec import bad_value
from tangobench.pipeline.dm_math.combinations import MAX_ANSWER, MAX_QUESTION, Split

LONGEST: Final = MAX_QUESTION + MAX_ANSWER + 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """What to draw."""

    seed: int
    context: int
    train_per_combination: int
    validation_per_combination: int
    shard_indices: int
    batch_rows: int

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise bad_value("seed", self.seed, "an integer of at least 0")
        if self.context < LONGEST:
            raise bad_value("context", self.context, f"at least {LONGEST}, the longest row")
        for key in (
            "train_per_combination",
            "validation_per_combination",
            "shard_indices",
            "batch_rows",
        ):
            if getattr(self, key) < 1:
                raise bad_value(key, getattr(self, key), "a count of at least 1")

    def per_combination(self, split: Split) -> int:
        """Examples of each combination in a split."""
        return self.train_per_combination if split == "train" else self.validation_per_combination
