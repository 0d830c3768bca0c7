"""What the lock and the card of the math dataset say about its draws.

- One table, combination by column, holds every rejection and repetition; totals come from it.

Usage: `table = combination_table(rows, drawn, distinct); drops(table)`
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tangobench.catalogue import ONE_DISTRIBUTION
from tangobench.pipeline.dm_math.combinations import (
    MAX_ANSWER,
    MAX_QUESTION,
    MODULES,
    NAMES,
    SPLITS,
    TEST_NAMES,
    Split,
)

Table = dict[str, dict[str, int]]

# A combination is named as small when at least this share of its rows repeats another.
SMALL_SPACE: Final = 0.01
REJECTIONS: Final = ("long_question", "long_answer", "other_split", "unfinished")
COLUMNS: Final = tuple(
    f"{split}_{column}" for split in SPLITS for column in (*REJECTIONS, "repeated")
)


def combination_table(
    rows: Mapping[Split, int],
    rejected: Mapping[Split, Sequence[Mapping[str, Sequence[int]]]],
    distinct: Mapping[tuple[str, str], int],
) -> Table:
    """Rejections and repeated questions by combination."""
    table = {name: dict.fromkeys(COLUMNS, 0) for name in NAMES}
    for split, units in rejected.items():
        for unit in units:
            for name, counts in unit.items():
                for column, count in zip(REJECTIONS, counts, strict=True):
                    table[name][f"{split}_{column}"] += count
    for name in NAMES:
        for split in SPLITS:
            table[name][f"{split}_repeated"] = rows[split] - distinct[name, split]
    return table


def counts(rows: Mapping[Split, int], table: Table) -> dict[str, Any]:
    """Rows, draws and repeated questions by split."""
    totals: dict[str, Any] = {"combinations": len(NAMES)}
    for split in SPLITS:
        rejected = sum(row[f"{split}_{column}"] for row in table.values() for column in REJECTIONS)
        all_rows = len(NAMES) * rows[split]
        totals[split] = {
            "rows": all_rows,
            "draws": all_rows + rejected,
            "repeated_questions": sum(row[f"{split}_repeated"] for row in table.values()),
        }
    return totals


def drops(table: Table) -> dict[str, int]:
    """Rejected draws by reason."""
    return reasons(
        {
            column: sum(row[f"{split}_{column}"] for row in table.values() for split in SPLITS)
            for column in REJECTIONS
        }
    )


def reasons(totals: Mapping[str, int]) -> dict[str, int]:
    """Totals of REJECTIONS under names for people."""
    return {
        f"draws with a question over {MAX_QUESTION} characters": totals["long_question"],
        f"draws with an answer over {MAX_ANSWER} characters": totals["long_answer"],
        "draws whose question belongs to the other split": totals["other_split"],
        "draws that the generator could not finish": totals["unfinished"],
    }


def small_spaces(rows: Mapping[Split, int], table: Table) -> Table:
    """Combinations with so few questions that they repeat: rows and distinct questions."""
    small: Table = {}
    for name, row in table.items():
        for split in SPLITS:
            repeated = row[f"{split}_repeated"]
            if repeated >= SMALL_SPACE * rows[split]:
                found = small.setdefault(name, {})
                found[f"{split}_rows"] = rows[split]
                found[f"{split}_distinct"] = rows[split] - repeated
    return small


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
