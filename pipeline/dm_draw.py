"""One example of the DeepMind Mathematics dataset by its address.

- `draw(seed, split, combination, index)` depends on its four arguments alone: each attempt seeds
  all generators from a hash of (seed, split, combination name, index, attempt).
- An attempt is rejected when the question has more than 160 characters, the answer more than 30
  (upstream's limits), or the question belongs to the other split; then the next attempt follows.
- The question decides its split: last hex digit of its sha256 is 0 → validation, else train. So no
  question can occur in both, whatever the sizes.
- Combinations are numbered 0–167: sorted module names × easy, medium, hard.

Usage: `dm_draw.draw(0, "train", dm_draw.NAMES.index("numbers__gcd/hard"), 17).question`
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from tangobench.errors import InputError
from tangobench.pipeline import dm_compat, dm_fast

Split = Literal["train", "validation"]
SPLITS: Final[tuple[Split, ...]] = ("train", "validation")

MAX_QUESTION: Final = 160
MAX_ANSWER: Final = 30
# The rarest accepted split is 1 draw in 16, so this many misses in a row mean an empty space.
MAX_ATTEMPTS: Final = 20_000

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
NAMES: Final = tuple(f"{module}/{level}" for module in MODULES for level in dm_compat.LEVELS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """An accepted example and what was rejected before it."""

    question: str
    answer: str
    long_question: int
    long_answer: int
    other_split: int
    unfinished: int

    @property
    def attempts(self) -> int:
        """Calls of the generator, the accepted one included."""
        return 1 + self.long_question + self.long_answer + self.other_split + self.unfinished


def draw(
    seed: int,
    split: Split,
    combination: int,
    index: int,
    generator: dm_compat.Generator | None = None,
) -> Draw:
    """The example at this address, by the fast generator unless another is given."""
    generator = generator or _shared_generator()
    module, level = divmod(combination, len(dm_compat.LEVELS))
    name = MODULES[module]
    address = f"{seed}/{split}/{name}/{dm_compat.LEVELS[level]}/{index}/"
    long_question = long_answer = other_split = unfinished = 0
    for attempt in range(MAX_ATTEMPTS):
        _seed(generator, f"{address}{attempt}")
        try:
            problem = generator.problem(name, level)
        except AssertionError:
            # Upstream's own checks fail once in some million draws: the Dirichlet weight of a
            # coefficient that may have none (alpha 1e-9) is not exactly 0.
            unfinished += 1
            continue
        question = str(problem.question)
        if len(question) > MAX_QUESTION:
            long_question += 1
        elif len(answer := str(problem.answer)) > MAX_ANSWER:
            long_answer += 1
        elif split_of(question) != split:
            other_split += 1
        else:
            return Draw(
                question=question,
                answer=answer,
                long_question=long_question,
                long_answer=long_answer,
                other_split=other_split,
                unfinished=unfinished,
            )
    raise InputError(
        f"{NAMES[combination]} gave no {split} question in {MAX_ATTEMPTS} attempts "
        f"(index {index}, seed {seed})",
        kind="space-empty",
        fix="ask for another seed: this combination has too few distinct questions",
    )


def split_of(question: str) -> Split:
    """The only split in which this question may occur."""
    last_digit = hashlib.sha256(question.encode()).digest()[-1] & 15
    return "validation" if last_digit == 0 else "train"


def _seed(generator: dm_compat.Generator, address: str) -> None:
    bits = hashlib.sha256(address.encode()).digest()
    generator.seed(
        int.from_bytes(bits[:8], "big"),
        int.from_bytes(bits[8:12], "big"),
        int.from_bytes(bits[12:20], "big"),
    )


@cache
def _shared_generator() -> dm_compat.Generator:
    return dm_fast.load()
