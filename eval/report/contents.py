"""What a dataset's page tells about its contents: audit, coverage, modules and directories.

- The audit's sentence is made from the lock's notes; a lock without them has no audit, and the page
  is silent about it. Whether a finding is good is decided by zero alone: a shared key or question
  never is.
- Decisions are read only after their bytes were found equal to the lock's. Dumps are in the order
  of their year and week, which their names sort by.
- Examples are the first rows of their kind in the validation split, decoded as stored.

Usage: `audit(lock)`, `coverage(dataset)`, `modules(dataset)`, `directories(dataset)`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np

from tangobench.pipeline.core.cards import flatten
from tangobench.pipeline.core.lock import Lock
from tangobench.pipeline.core.shard_reader import map_checked
from tangobench.pipeline.reading import Dataset, Rows

NDArray = np.ndarray[Any, Any]

_AUDIT_FACTS: Final = 40
_PARTS: Final = ("train", "validation", "dropped")
_DIRECTORIES: Final = 30
_EXAMPLES: Final = 2


def audit(lock: Lock) -> dict[str, Any] | None:
    """Headline, whether it is clean, and the numbers behind it."""
    leakage = lock.notes.get("leakage")
    judged = (judge(lock) for judge in (_shared_keys, _shared_proofs, _shared_questions))
    finding = next((found for found in judged if found is not None), None)
    if finding is None and not leakage:
        return None
    clean, text = finding or (True, "")
    facts = [(label, value) for label, value in flatten(leakage or {}) if value not in ("", None)]
    return {"clean": clean, "text": text, "facts": facts[:_AUDIT_FACTS]}


def _shared_keys(lock: Lock) -> tuple[bool, str] | None:
    found = lock.notes.get("leakage", {})
    if "shared_keys" not in found:
        return None
    shared = found["shared_keys"]
    return shared == 0, (
        f"{shared:,} of {found['validation_keys']:,} address and content keys of validation occur "
        f"among the {found['train_keys']:,} of training."
    )


def _shared_proofs(lock: Lock) -> tuple[bool, str] | None:
    found = lock.notes.get("leakage", {})
    if "proofs_also_in_training" not in found:
        return None
    repeated, total = found["proofs_also_in_training"], found["validation_proofs"]
    long, long_total = (
        found["proofs_over_30_tokens_also_in_training"],
        found["validation_proofs_over_30_tokens"],
    )
    return long == 0, (
        f"No file is in both splits. {repeated:,} of {total:,} validation proofs also occur word "
        f"for word in training; of the {long_total:,} longer than 30 tokens, {long:,} do."
    )


def _shared_questions(lock: Lock) -> tuple[bool, str] | None:
    if "combinations" not in lock.notes:
        return None
    return True, (
        "No validation question occurs in training: the last hex digit of a question's sha256 "
        "decides its split, and the build compares both splits and publishes nothing shared."
    )


def coverage(dataset: Dataset) -> list[dict[str, Any]]:
    """Per dump: kept for training, kept for validation, dropped, and their shares."""
    entries = [e for e in dataset.lock.data["side_files"] if e["kind"] == "decisions"]
    if not entries:
        return []
    import polars as pl

    decisions = pl.concat(
        pl.read_parquet(
            map_checked(dataset.folder, entry, "decisions").to_pybytes(),
            columns=["dump", "partition", "kept"],
        )
        for entry in entries
    )
    kept = pl.col("kept")
    counted = decisions.group_by("dump").agg(
        pl.len().alias("documents"),
        (kept & (pl.col("partition") == "train")).sum().alias("train"),
        (kept & (pl.col("partition") == "validation")).sum().alias("validation"),
        (~kept).sum().alias("dropped"),
    )
    rows = counted.sort("dump").to_dicts()
    largest = max((row["documents"] for row in rows), default=1)
    for row in rows:
        row["shares"] = [(part, round(100 * row[part] / largest, 2)) for part in _PARTS]
    return rows


def document_lengths(rows: Rows, shards: int) -> NDArray | None:
    """Lengths of the document parts inside packed rows, from their spans."""
    if len(rows) == 0 or "doc_start" not in rows[0]:
        return None
    parts = [np.zeros(0, np.int64)]
    for index in range(shards):
        shard = rows.shard(index)
        for number, (values, _) in enumerate(shard.token_views):
            column = shard.batch(number).column("doc_start")
            starts = column.values.to_numpy().astype(np.int64)
            ends = np.append(starts[1:], 0)
            # The last part of a row ends with the row.
            ends[column.offsets.to_numpy()[1:] - 1] = len(values) // len(column)
            parts.append(ends - starts)
    return np.concatenate(parts)


def bar_rows(pairs: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Counts with their share of the largest, for bars; zeros are left out."""
    kept = [(label, value) for label, value in pairs if isinstance(value, int) and value]
    largest = max((value for _, value in kept), default=1)
    return [
        {"label": label, "value": value, "percent": round(100 * value / largest, 2)}
        for label, value in kept
    ]


def modules(dataset: Dataset) -> list[dict[str, Any]]:
    """Examples of every DeepMind Mathematics module at every level."""
    lock = dataset.lock
    names = lock.notes.get("combinations")
    if lock.name != "dm_math" or not names:
        return []
    split = "validation" if lock.rows("default", "validation") else "train"
    rows = dataset.rows("default", split)
    column = rows.column("combination")
    found: dict[str, list[dict[str, Any]]] = {}
    for index, name in enumerate(names):
        module, _, level = str(name).rpartition("/")
        places = np.flatnonzero(column == index)[:_EXAMPLES]
        examples = [_example(rows, int(row)) for row in places]
        found.setdefault(module, []).append({"level": level, "examples": examples})
    return [
        {"module": module, "label": module_label(module), "levels": levels}
        for module, levels in found.items()
    ]


def module_label(module: str) -> str:
    """`algebra__linear_1d` as people read it."""
    return module.replace("__", " · ").replace("_", " ")


def _example(rows: Rows, row: int) -> tuple[str, str]:
    from tangobench.pipeline.dm_math.vocabulary import decode

    return decode(rows.tokens(row))


def directories(dataset: Dataset) -> list[dict[str, Any]]:
    """Lean declarations by directory, both splits together."""
    if dataset.lock.name != "lean" or "proof" not in dataset.lock.configs:
        return []
    counts: Counter[str] = Counter()
    for split in dataset.lock.splits("proof"):
        for path in dataset.rows("proof", split).column("path"):
            counts["/".join(PurePosixPath(str(path)).parts[:-1][:2]) or "."] += 1
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    shown, rest = ordered[:_DIRECTORIES], ordered[_DIRECTORIES:]
    if rest:
        shown.append((f"{len(rest)} more directories", sum(count for _, count in rest)))
    return bar_rows(list(shown))
