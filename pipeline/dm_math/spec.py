"""The specs of `dm_math` and `dm_math_tests`, and the combinations and splits that they draw.

- The 168 combinations are numbered 0–167: sorted module names × easy, medium, hard.
- The two test parts have 56 modules (`interpolate`, the same names) and 15 (`extrapolate`).
- The question decides its split: last hex digit of its sha256 is 0 → validation, else train.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Final, Literal

from tangobench.pipeline.core.spec import bad_value

Split = Literal["train", "validation"]
AnySplit = Literal["train", "validation", "test"]
SPLITS: Final[tuple[Split, ...]] = ("train", "validation")

MAX_QUESTION: Final = 160
MAX_ANSWER: Final = 30


def _modules(**topics: str) -> tuple[str, ...]:
    return tuple(f"{topic}__{name}" for topic, names in topics.items() for name in names.split())


MODULES: Final = _modules(
    algebra="linear_1d linear_1d_composed linear_2d linear_2d_composed polynomial_roots "
    "polynomial_roots_composed sequence_next_term sequence_nth_term",
    arithmetic="add_or_sub add_or_sub_in_base add_sub_multiple div mixed mul mul_div_multiple "
    "nearest_integer_root simplify_surd",
    calculus="differentiate differentiate_composed",
    comparison="closest closest_composed kth_biggest kth_biggest_composed pair pair_composed sort "
    "sort_composed",
    measurement="conversion time",
    numbers="base_conversion div_remainder div_remainder_composed gcd gcd_composed is_factor "
    "is_factor_composed is_prime is_prime_composed lcm lcm_composed list_prime_factors "
    "list_prime_factors_composed place_value place_value_composed round_number "
    "round_number_composed",
    polynomials="add coefficient_named collect compose evaluate evaluate_composed expand "
    "simplify_power",
    probability="swr_p_level_set swr_p_sequence",
)
EXTRAPOLATED: Final = _modules(
    algebra="polynomial_roots_big",
    arithmetic="add_or_sub_big add_sub_multiple_longer div_big mixed_longer mul_big "
    "mul_div_multiple_longer",
    comparison="closest_more kth_biggest_more sort_more",
    measurement="conversion",
    numbers="place_value_big round_number_big",
    probability="swr_p_level_set_more_samples swr_p_sequence_more_samples",
)
LEVELS: Final = ("easy", "medium", "hard")
PARTS: Final = {"interpolate": MODULES, "extrapolate": EXTRAPOLATED}
DIFFICULTIES: Final = (*LEVELS, *PARTS)
NAMES: Final = tuple(f"{module}/{level}" for module in MODULES for level in LEVELS)
CONFIGS: Final = {
    "default": NAMES,
    **{part: tuple(f"{module}/{part}" for module in PARTS[part]) for part in PARTS},
}
"""The combinations of every config: that of `dm_math` and the two of `dm_math_tests`."""
TEST_NAMES: Final = (*CONFIGS["interpolate"], *CONFIGS["extrapolate"])


@dataclass(frozen=True, slots=True)
class Group:
    """Equally many examples of a config's combinations in one split, in shards of `step` each."""

    config: str
    split: AnySplit
    each: int
    step: int

    def shards(self) -> list[tuple[int, int]]:
        """The index ranges of its shards."""
        return [(a, min(a + self.step, self.each)) for a in range(0, self.each, self.step)]

    @property
    def names(self) -> tuple[str, ...]:
        return CONFIGS[self.config]

    @property
    def first(self) -> int:
        """The number of its first combination in the dataset."""
        return len(MODULES) if self.config == "extrapolate" else 0


def split_of(question: str) -> Split:
    """The only split in which this question may occur."""
    return "train" if hashlib.sha256(question.encode()).digest()[-1] & 15 else "validation"


def side_of(split: AnySplit) -> Split:
    """The side whose questions a split takes: a test question is one that training cannot have."""
    return "train" if split == "train" else "validation"


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
        each = (self.train_per_combination, self.validation_per_combination)
        shard = self.shard_indices
        return [Group("default", *of, shard) for of in zip(SPLITS, each, strict=True)]


@dataclass(frozen=True, kw_only=True, slots=True)
class TestsSpec(_Drawn):
    """What to draw of the two test parts."""

    interpolate_per_module: int
    extrapolate_per_module: int

    def groups(self) -> list[Group]:
        each = (self.interpolate_per_module, self.extrapolate_per_module)
        return [Group(part, "test", n, n) for part, n in zip(PARTS, each, strict=True)]
