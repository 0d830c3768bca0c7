"""The 168 combinations of DeepMind Mathematics, and the split of a question.

- Combinations are numbered 0–167: sorted module names × easy, medium, hard.
- The two test parts have 56 modules (`interpolate`, the same names) and 15 (`extrapolate`).
- The question decides its split: last hex digit of its sha256 is 0 → validation, else train.

Usage: `NAMES.index("numbers__gcd/hard")`, `split_of("What is 3 + 4?")`.
"""

from __future__ import annotations

import hashlib
from typing import Final, Literal

Split = Literal["train", "validation"]
AnySplit = Literal["train", "validation", "test"]
Part = Literal["interpolate", "extrapolate"]
SPLITS: Final[tuple[Split, ...]] = ("train", "validation")

MAX_QUESTION: Final = 160
MAX_ANSWER: Final = 30

LEVELS: Final = ("easy", "medium", "hard")
MODULES: Final = (
    "algebra__linear_1d",
    "algebra__linear_1d_composed",
    "algebra__linear_2d",
    "algebra__linear_2d_composed",
    "algebra__polynomial_roots",
    "algebra__polynomial_roots_composed",
    "algebra__sequence_next_term",
    "algebra__sequence_nth_term",
    "arithmetic__add_or_sub",
    "arithmetic__add_or_sub_in_base",
    "arithmetic__add_sub_multiple",
    "arithmetic__div",
    "arithmetic__mixed",
    "arithmetic__mul",
    "arithmetic__mul_div_multiple",
    "arithmetic__nearest_integer_root",
    "arithmetic__simplify_surd",
    "calculus__differentiate",
    "calculus__differentiate_composed",
    "comparison__closest",
    "comparison__closest_composed",
    "comparison__kth_biggest",
    "comparison__kth_biggest_composed",
    "comparison__pair",
    "comparison__pair_composed",
    "comparison__sort",
    "comparison__sort_composed",
    "measurement__conversion",
    "measurement__time",
    "numbers__base_conversion",
    "numbers__div_remainder",
    "numbers__div_remainder_composed",
    "numbers__gcd",
    "numbers__gcd_composed",
    "numbers__is_factor",
    "numbers__is_factor_composed",
    "numbers__is_prime",
    "numbers__is_prime_composed",
    "numbers__lcm",
    "numbers__lcm_composed",
    "numbers__list_prime_factors",
    "numbers__list_prime_factors_composed",
    "numbers__place_value",
    "numbers__place_value_composed",
    "numbers__round_number",
    "numbers__round_number_composed",
    "polynomials__add",
    "polynomials__coefficient_named",
    "polynomials__collect",
    "polynomials__compose",
    "polynomials__evaluate",
    "polynomials__evaluate_composed",
    "polynomials__expand",
    "polynomials__simplify_power",
    "probability__swr_p_level_set",
    "probability__swr_p_sequence",
)
EXTRAPOLATED: Final = (
    "algebra__polynomial_roots_big",
    "arithmetic__add_or_sub_big",
    "arithmetic__add_sub_multiple_longer",
    "arithmetic__div_big",
    "arithmetic__mixed_longer",
    "arithmetic__mul_big",
    "arithmetic__mul_div_multiple_longer",
    "comparison__closest_more",
    "comparison__kth_biggest_more",
    "comparison__sort_more",
    "measurement__conversion",
    "numbers__place_value_big",
    "numbers__round_number_big",
    "probability__swr_p_level_set_more_samples",
    "probability__swr_p_sequence_more_samples",
)
PARTS: Final[dict[Part, tuple[str, ...]]] = {"interpolate": MODULES, "extrapolate": EXTRAPOLATED}
TEST_NAMES: Final = tuple(f"{module}/{part}" for part in PARTS for module in PARTS[part])
DIFFICULTIES: Final = (*LEVELS, *PARTS)
NAMES: Final = tuple(f"{module}/{level}" for module in MODULES for level in LEVELS)


def split_of(question: str) -> Split:
    """The only split in which this question may occur."""
    last_digit = hashlib.sha256(question.encode()).digest()[-1] & 15
    return "validation" if last_digit == 0 else "train"
