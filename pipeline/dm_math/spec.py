"""The specs of `dm_math` and `dm_math_tests`: how many examples of each combination to draw."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tangobench.pipeline.core.spec import bad_value
from tangobench.pipeline.dm_math.combinations import MAX_ANSWER, MAX_QUESTION, Group


@dataclass(frozen=True, kw_only=True, slots=True)
class _Drawn:
    seed: int
    context: int
    batch_rows: int

    def __post_init__(self) -> None:
        longest = MAX_QUESTION + MAX_ANSWER + 3
        if self.seed < 0:
            raise bad_value("seed", self.seed, "an integer of at least 0")
        if self.context < longest:
            raise bad_value("context", self.context, f"at least {longest}, the longest row")
        for key in (field.name for field in fields(self) if field.name != "seed"):
            if getattr(self, key) < 1:
                raise bad_value(key, getattr(self, key), "a count of at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec(_Drawn):
    """What to draw of the 168 combinations."""

    train_per_combination: int
    validation_per_combination: int
    shard_indices: int

    def groups(self) -> list[Group]:
        """Both splits."""
        return [
            Group("default", "train", self.train_per_combination, self.shard_indices),
            Group("default", "validation", self.validation_per_combination, self.shard_indices),
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class TestsSpec(_Drawn):
    """What to draw of the two test parts."""

    interpolate_per_module: int
    extrapolate_per_module: int

    def groups(self) -> list[Group]:
        """Both parts, one shard each."""
        each = (self.interpolate_per_module, self.extrapolate_per_module)
        return [
            Group("interpolate", "test", each[0], each[0]),
            Group("extrapolate", "test", each[1], each[1]),
        ]
