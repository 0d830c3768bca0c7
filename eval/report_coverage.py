"""Where FineWeb-Edu's documents come from and where they went, from the published decisions.

- Decisions are read only after their bytes were found equal to the lock's.
- Dumps are in the order of their year and week, which their names sort by.

Usage: `coverage(open_dataset(Path("out/fineweb-sample")))`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tangobench.pipeline.reading import Dataset, Rows, map_checked

NDArray = np.ndarray[Any, Any]

_PARTS: Final = ("train", "validation", "dropped")


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
