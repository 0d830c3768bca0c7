"""One test row as question and answer, and where a question is or why it cannot be there.

Usage: `why(folder, lock, "What is 3 + 4?")`.
"""

from __future__ import annotations

from pathlib import Path

from tangobench.errors import InputError
from tangobench.pipeline.core.lock import Lock
from tangobench.pipeline.dm_math import vocabulary
from tangobench.pipeline.dm_math.combinations import MAX_QUESTION, PARTS, split_of
from tangobench.pipeline.dm_math.why import origin, record, rows_with_prefix
from tangobench.pipeline.reading import open_dataset

__all__ = ["record", "why"]


def why(folder: Path, lock: Lock, ident: str) -> list[str]:
    """Where a question is, or why it cannot be there."""
    prefix = vocabulary.question_prefix(ident)
    dataset = open_dataset(folder)
    lines = []
    for part, modules in PARTS.items():
        rows = dataset.rows(part, "test")
        for row in rows_with_prefix(rows, lock.shards_of(part, "test"), prefix):
            index, number = divmod(row, len(modules))
            name = f"{modules[number]}/{part}"
            told = origin(lock, "test", name, index)
            lines.append(f"row {row} of {part}: example {index} of {name}, {told}")
    if lines:
        return lines
    reason = "it was not drawn"
    if len(ident) > MAX_QUESTION:
        reason = f"it has {len(ident)} characters, more than {MAX_QUESTION}"
    elif split_of(ident) == "train":
        reason = "its hash belongs to training"
    raise InputError(
        f"question {ident!r} is not in {folder}: {reason}",
        kind="not-found",
        fix="give a whole question, as `inspect --jsonl -` prints it",
    )
