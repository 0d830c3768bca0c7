"""What a dataset is about: DeepMind Mathematics by module and level, Lean by directory.

- Examples are the first rows of their kind in the validation split, decoded as stored.

Usage: `modules(open_dataset(Path("out/dm_math-sample")))`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np

from tangobench.pipeline.reading import Dataset, Rows

_DIRECTORIES: Final = 30
_EXAMPLES: Final = 2


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
    from tangobench.pipeline.dm_vocab import decode

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
