"""One example of the DeepMind Mathematics dataset by its address.

- `draw_named(seed, split, name, index)` depends on its four arguments alone: each attempt seeds
  all generators from a hash of (seed, split, combination name, index, attempt).
- An attempt is rejected when the question has more than 160 characters, the answer more than 30
  (upstream's limits), or the question belongs to the other split; then the next attempt follows.

Usage: `draw_named(0, "train", "numbers__gcd/hard", 17).question`
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Final

from tangobench.errors import InputError
from tangobench.pipeline.dm_math import fast
from tangobench.pipeline.dm_math.combinations import (
    DIFFICULTIES,
    MAX_ANSWER,
    MAX_QUESTION,
    NAMES,
    AnySplit,
    Split,
    split_of,
)
from tangobench.pipeline.dm_math.generator import Generator

# The rarest accepted example is 1 draw in 3,200 (`comparison__sort_more`: nearly all its answers
# are too long), so this many misses in a row mean an empty space.
MAX_ATTEMPTS: Final = 200_000
_REASONS: Final = ("long_question", "long_answer", "other_split", "unfinished")


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
    generator: Generator | None = None,
) -> Draw:
    """The example at this address, by the fast generator unless another is given."""
    return draw_named(seed, split, NAMES[combination], index, generator)


def draw_named(
    seed: int,
    split: AnySplit,
    name: str,
    index: int,
    generator: Generator | None = None,
) -> Draw:
    """The example of `MODULE/DIFFICULTY`; a test question is one that training may not have."""
    generator = generator or _shared_generator()
    module, _, difficulty = name.partition("/")
    side: Split = "train" if split == "train" else "validation"
    rejected = dict.fromkeys(_REASONS, 0)
    for attempt in range(MAX_ATTEMPTS):
        _seed(generator, f"{seed}/{split}/{name}/{index}/{attempt}")
        try:
            problem = generator.problem(module, DIFFICULTIES.index(difficulty))
        except AssertionError:
            # Upstream's own checks fail once in some million draws: the Dirichlet weight of a
            # coefficient that may have none (alpha 1e-9) is not exactly 0.
            rejected["unfinished"] += 1
            continue
        question = str(problem.question)
        answer = str(problem.answer) if len(question) <= MAX_QUESTION else ""
        reason = refusal(question, answer, side)
        if reason is None:
            return Draw(question=question, answer=answer, **rejected)
        rejected[reason] += 1
    raise InputError(
        f"{name} gave no {split} question in {MAX_ATTEMPTS} attempts (index {index}, seed {seed})",
        kind="space-empty",
        fix="ask for another seed: this combination has too few distinct questions",
    )


def refusal(question: str, answer: str, side: Split) -> str | None:
    """Why an example is not taken, if it is not."""
    if len(question) > MAX_QUESTION:
        return "long_question"
    if len(answer) > MAX_ANSWER:
        return "long_answer"
    return None if split_of(question) == side else "other_split"


def _seed(generator: Generator, address: str) -> None:
    bits = hashlib.sha256(address.encode()).digest()
    generator.seed(
        int.from_bytes(bits[:8], "big"),
        int.from_bytes(bits[8:12], "big"),
        int.from_bytes(bits[12:20], "big"),
    )


@cache
def _shared_generator() -> Generator:
    return fast.load()
