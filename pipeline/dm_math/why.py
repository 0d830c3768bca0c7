"""One mathematics row as question and answer, and where a question is or why it cannot be there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tangobench.errors import InputError
from tangobench.pipeline.core.lock import Lock
from tangobench.pipeline.core.progress import units
from tangobench.pipeline.dm_math import vocabulary
from tangobench.pipeline.dm_math.spec import CONFIGS, MAX_QUESTION, AnySplit, split_of
from tangobench.pipeline.reading import Dataset, Rows, open_dataset


def record(row: dict[str, Any], config: str, dataset: Dataset) -> dict[str, Any]:
    """A row as question, answer and combination."""
    question, answer = vocabulary.decode(row["tokens"])
    module, level = dataset.lock.notes["combinations"][row["combination"]].split("/")
    return {"question": question, "answer": answer, "module": module, "difficulty": level}


def why(folder: Path, lock: Lock, ident: str) -> list[str]:
    """Where a question is, or why it cannot be there."""
    prefix, dataset = vocabulary.question_prefix(ident), open_dataset(folder)
    split: AnySplit = split_of(ident)
    if "default" not in lock.configs and split == "validation":
        split = "test"
    places = [
        (config, row)
        for config in lock.configs
        if (shards := lock.shards_of(config, split))
        for row in _rows_with_prefix(dataset.rows(config, split), shards, prefix)
    ]
    if not places:
        reason = f"its hash allows it in {split} only, and it was not drawn there"
        if "default" not in lock.configs and split == "train":
            reason = "its hash allows it in training only, so no test set can have it"
        if len(ident) > MAX_QUESTION:
            reason = f"it has {len(ident)} characters, more than {MAX_QUESTION}"
        message = f"question {ident!r} is not in {folder}: {reason}"
        fix = "give a whole question, as `inspect --jsonl -` prints it"
        raise InputError(message, kind="not-found", fix=fix)
    lines = [f"its hash puts it in {split}; it occurs in {units(len(places), 'row')} there"]
    for config, row in places[:20]:
        index, combination = divmod(row, len(CONFIGS[config]))
        name = CONFIGS[config][combination]
        where = f"row {row}" + ("" if config == "default" else f" of {config}")
        lines.append(f"{where}: example {index} of {name}, {_origin(lock, split, name, index)}")
    return lines


def _origin(lock: Lock, split: AnySplit, name: str, index: int) -> str:
    """An example's answer and what was rejected before it, or that it was read from a file."""
    if "files" in lock.data["source"]:
        return f"read from {lock.data['source']['files']}"
    from tangobench.pipeline.dm_math.stages import draw  # sympy takes half a second

    example = draw(lock.spec["seed"], split, name, index)
    long_question, long_answer, other, unfinished = example.rejected.values()
    return (
        f"answer {example.answer!r}, attempt {example.attempts} (before it: "
        f"{long_question} long questions, {long_answer} long answers, "
        f"{other} of the other split, {unfinished} unfinished)"
    )


def _rows_with_prefix(rows: Rows, shards: list[dict[str, Any]], prefix: bytes) -> list[int]:
    """Rows whose tokens start so; a prefix starts with BOS, which starts rows and nothing else."""
    places: list[int] = []
    base = 0
    for number, entry in enumerate(shards):
        flat, starts, _ = rows.shard(number).token_places
        data, at = flat.tobytes(), -1  # the whole file; a token is a byte
        while (at := data.find(prefix, at + 1)) >= 0:
            place = int(np.searchsorted(starts, at))
            if place < len(starts) and starts[place] == at:  # else bytes of another column
                places.append(base + place)
        base += entry["rows"]
    return places
