"""One mathematics row as question and answer, and where a question is or why it cannot be there.

Usage: `why(folder, lock, "What is 3 + 4?")`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tangobench.errors import InputError
from tangobench.pipeline.core.lock import Lock
from tangobench.pipeline.dm_math import vocabulary
from tangobench.pipeline.dm_math.combinations import MAX_QUESTION, NAMES, AnySplit, split_of
from tangobench.pipeline.reading import Dataset, Rows, open_dataset


def record(row: dict[str, Any], config: str, dataset: Dataset) -> dict[str, Any]:
    """A row as question, answer and combination."""
    question, answer = vocabulary.decode(row["tokens"])
    module, level = dataset.lock.notes["combinations"][row["combination"]].split("/")
    return {"question": question, "answer": answer, "module": module, "difficulty": level}


def why(folder: Path, lock: Lock, ident: str) -> list[str]:
    """Where a question is, or why it cannot be there."""
    prefix = vocabulary.question_prefix(ident)
    split = split_of(ident)
    rows = open_dataset(folder).rows("default", split)
    places = rows_with_prefix(rows, lock.shards_of("default", split), prefix)
    if not places:
        reason = (
            f"it has {len(ident)} characters, more than {MAX_QUESTION}"
            if len(ident) > MAX_QUESTION
            else f"its hash allows it in {split} only, and it was not drawn there"
        )
        raise InputError(
            f"question {ident!r} is not in {folder}: {reason}",
            kind="not-found",
            fix="give a whole question, as `inspect --jsonl -` prints it",
        )
    lines = [f"its hash puts it in {split}; it occurs in {len(places)} row(s) there"]
    for row in places[:20]:
        index, combination = divmod(row, len(NAMES))
        name = NAMES[combination]
        lines.append(f"row {row}: example {index} of {name}, {origin(lock, split, name, index)}")
    return lines


def origin(lock: Lock, split: AnySplit, name: str, index: int) -> str:
    """An example's answer and what was rejected before it, or that it was read from a file."""
    if "files" in lock.data["source"]:
        return f"read from {lock.data['source']['files']}"
    from tangobench.pipeline.dm_math.draw import draw_named  # sympy takes half a second

    example = draw_named(lock.spec["seed"], split, name, index)
    return (
        f"answer {example.answer!r}, attempt {example.attempts} (before it: "
        f"{example.long_question} long questions, {example.long_answer} long answers, "
        f"{example.other_split} of the other split, {example.unfinished} unfinished)"
    )


def rows_with_prefix(rows: Rows, shards: list[dict[str, Any]], prefix: bytes) -> list[int]:
    """Rows whose tokens start so; a prefix starts with BOS, which starts rows and nothing else."""
    places: list[int] = []
    base = 0
    for number, entry in enumerate(shards):
        for batch, (values, bounds) in enumerate(rows.shard(number).token_views):
            data = values.tobytes()
            at = data.find(prefix)
            while at >= 0:
                place = int(np.searchsorted(bounds, at))
                places.append(base + batch * entry["batch_rows"] + place)
                at = data.find(prefix, at + 1)
        base += entry["rows"]
    return places
