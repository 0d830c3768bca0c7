"""What the lock and the card of the math datasets say about their draws."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tangobench.catalogue import ONE_DISTRIBUTION
from tangobench.pipeline.dm_math.combinations import (
    MAX_ANSWER,
    MAX_QUESTION,
    MODULES,
    NAMES,
    TEST_NAMES,
    AnySplit,
    Group,
)
from tangobench.pipeline.dm_math.draw import REJECTIONS
from tangobench.pipeline.dm_math.stages import DrawResult

# A combination is named as small when at least this share of its rows repeats another.
SMALL_SPACE: Final = 0.01
_REASONS: Final = (
    f"draws with a question over {MAX_QUESTION} characters",
    f"draws with an answer over {MAX_ANSWER} characters",
    "draws whose question belongs to the other split",
    "draws that the generator could not finish",
)


@dataclass(frozen=True, slots=True)
class Tally:
    """What a group's draws counted: rejections and distinct questions by name, longest row."""

    group: Group
    rejected: dict[str, list[int]]
    distinct: dict[str, int]
    longest: int

    def counts(self) -> dict[str, int]:
        """Rows, draws and repeated questions."""
        rows = self.group.rows
        return {
            "rows": rows,
            "draws": rows + sum(map(sum, self.rejected.values())),
            "repeated_questions": rows - sum(self.distinct.values()),
        }


def tally(
    group: Group, results: Sequence[DrawResult], distinct: Mapping[tuple[str, AnySplit], int]
) -> Tally:
    """The sums over a group's units."""
    rejected = {name: [0] * len(REJECTIONS) for name in group.names}
    for result in results:
        for name, counts in result["rejected"].items():
            rejected[name] = [a + b for a, b in zip(rejected[name], counts, strict=True)]
    named = (*group.names, group.config)
    own = {name: distinct[name, group.split] for name in named if (name, group.split) in distinct}
    return Tally(group, rejected, own, max(result["longest"] for result in results))


def drops(tallies: Sequence[Tally]) -> dict[str, int]:
    """Rejected draws by reason."""
    counts = [row for tally in tallies for row in tally.rejected.values()]
    return dict(zip(_REASONS, map(sum, zip(*counts, strict=True)), strict=True))


def combinations(tallies: Sequence[Tally]) -> dict[str, Any]:
    """Counts, notes and card of `dm_math`."""
    table: dict[str, list[int]] = {name: [] for name in NAMES}
    small: dict[str, dict[str, int]] = {}
    for name in NAMES:
        for tally in tallies:
            split, each, distinct = tally.group.split, tally.group.each, tally.distinct[name]
            table[name] += [*tally.rejected[name], each - distinct]
            if each - distinct >= SMALL_SPACE * each:
                found = small.setdefault(name, {})
                found |= {f"{split}_rows": each, f"{split}_distinct": distinct}
    columns = (*REJECTIONS, "repeated")
    return {
        "counts": {"combinations": len(NAMES)} | {t.group.split: t.counts() for t in tallies},
        "notes": {
            "combinations": list(NAMES),
            "row_order": "row r is example r // 168 of combination r % 168",
            "per_combination_columns": [f"{t.group.split}_{c}" for t in tallies for c in columns],
            "per_combination": table,
            "small_spaces": small,
            "longest_row": max(tally.longest for tally in tallies),
        },
        "card": CARD,
    }


def tests(tallies: Sequence[Tally]) -> dict[str, Any]:
    """Counts, notes and card of `dm_math_tests`."""
    return {
        "counts": {
            tally.group.config: {"modules": len(tally.group.names), **tally.counts()}
            for tally in tallies
        },
        "notes": {
            "combinations": list(TEST_NAMES),
            "row_order": "row r is example r // n of module r % n, n modules in the config",
            "per_module_columns": list(REJECTIONS),
            "per_module": {n: row for tally in tallies for n, row in tally.rejected.items()},
            "questions_that_training_may_have": 0,  # else the audit has refused them
            "longest_row": max(tally.longest for tally in tallies),
        },
        "card": TESTS_CARD,
    }


CARD: Final = {
    "title": "DeepMind Mathematics, 168 combinations",
    "licence": "Apache-2.0",
    "licence_id": "apache-2.0",
    "description": (
        "School-level mathematics questions and answers in characters, drawn in equal numbers "
        "from 56 modules at three difficulties of the official generator. A row is BOS, question, "
        "SEP, answer, EOS; `target_start` is the index of the answer's first token; `combination` "
        "is 3 × module + level (0 easy, 1 medium, 2 hard). The last hex digit of a question's "
        "sha256 decides its split (0: validation), so no question is in both. The three levels of "
        f"{', '.join(ONE_DISTRIBUTION)} are one distribution. Modules from 0: "
        f"{', '.join(MODULES)}."
    ),
    "sources": [
        "Generator: mathematics_dataset 1.0.1 (Saxton et al., Analysing Mathematical Reasoning "
        "Abilities of Neural Models, ICLR 2019), Apache-2.0."
    ],
    "language": ["en"],
    "bibtex": [
        "@inproceedings{mathematics_dataset,",
        "  author = {Saxton, David and Grefenstette, Edward and Hill, Felix and Kohli, Pushmeet},",
        "  title = {Analysing Mathematical Reasoning Abilities of Neural Models},",
        "  booktitle = {ICLR},",
        "  year = {2019}",
        "}",
    ],
}
TESTS_CARD: Final = {
    **CARD,
    "title": "DeepMind Mathematics, interpolation and extrapolation",
    "description": (
        "The two test parts of the official generator in characters. Config `interpolate`: the 56 "
        "training modules with entropy of their whole range; config `extrapolate`: 15 modules "
        "beyond it. One split, `test`. A row is BOS, question, SEP, answer, EOS; `target_start` is "
        "the index of the answer's first token; `combination` counts the modules of both parts. "
        "The last hex digit of every question's sha256 is 0, so none can be in a training set of "
        f"`dm_math`. Modules from 0: {', '.join(TEST_NAMES)}."
    ),
}
