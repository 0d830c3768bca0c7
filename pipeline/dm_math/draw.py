"""One example of the DeepMind Mathematics dataset by its address.

- `draw` depends on (seed, split, combination, index) alone: each attempt seeds all generators from
  a hash of (seed, split, combination name, index, attempt).
- An attempt is rejected when the question has more than 160 characters, the answer more than 30
  (upstream's limits), or the question belongs to the other split; then the next attempt follows.
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
    side_of,
    split_of,
)
from tangobench.pipeline.dm_math.generator import Generator

# The rarest accepted example is 1 draw in 3,200 (`comparison__sort_more`: nearly all its answers
# are too long), so this many misses in a row mean an empty space.
MAX_ATTEMPTS: Final = 200_000
REJECTIONS: Final = ("long_question", "long_answer", "other_split", "unfinished")


@dataclass(frozen=True, slots=True)
class Draw:
    """An accepted example, and how many draws before it were rejected, by REJECTIONS."""

    question: str
    answer: str
    rejected: dict[str, int]

    @property
    def attempts(self) -> int:
        """Calls of the generator, the accepted one included."""
        return 1 + sum(self.rejected.values())


def draw(
    seed: int,
    split: AnySplit,
    combination: int | str,
    index: int,
    generator: Generator | None = None,
) -> Draw:
    """The example of a combination (`MODULE/DIFFICULTY` or its number) by the fast generator."""
    generator = generator or _shared_generator()
    name = NAMES[combination] if isinstance(combination, int) else combination
    module, _, difficulty = name.partition("/")
    rejected = dict.fromkeys(REJECTIONS, 0)
    for attempt in range(MAX_ATTEMPTS):
        bits = hashlib.sha256(f"{seed}/{split}/{name}/{index}/{attempt}".encode()).digest()
        generator.seed(*(int.from_bytes(part) for part in (bits[:8], bits[8:12], bits[12:20])))
        try:
            problem = generator.problem(module, DIFFICULTIES.index(difficulty))
        except AssertionError:
            # Upstream's own checks fail once in some million draws: the Dirichlet weight of a
            # coefficient that may have none (alpha 1e-9) is not exactly 0.
            rejected["unfinished"] += 1
            continue
        question = str(problem.question)
        answer = str(problem.answer) if len(question) <= MAX_QUESTION else ""
        reason = _refusal(question, answer, side_of(split))
        if reason is None:
            return Draw(question, answer, rejected)
        rejected[reason] += 1
    raise InputError(
        f"{name} gave no {split} question in {MAX_ATTEMPTS} attempts (index {index}, seed {seed})",
        kind="space-empty",
        fix="ask for another seed: this combination has too few distinct questions",
    )


def _refusal(question: str, answer: str, side: Split) -> str | None:
    if len(question) > MAX_QUESTION:
        return "long_question"
    if len(answer) > MAX_ANSWER:
        return "long_answer"
    return None if split_of(question) == side else "other_split"


@cache
def _shared_generator() -> Generator:
    return fast.load()
