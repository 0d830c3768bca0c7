"""A dataset's page: splits, drops, lengths, coverage, audits and real rows.

- Every number comes from the lock or from verified shards; nothing is sampled at random.
- Sections that a dataset has no data for are absent, not empty.

Usage: `context = dataset_context(open_dataset(folder))`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tangobench.catalogue import title_of
from tangobench.eval.report.charts import Axis, Figure, histogram
from tangobench.eval.report.contents import (
    audit,
    bar_rows,
    coverage,
    directories,
    document_lengths,
    modules,
)
from tangobench.eval.report.gather import committed_state
from tangobench.eval.report.rows import row_views
from tangobench.pipeline.core.cards import flatten
from tangobench.pipeline.core.progress import size
from tangobench.pipeline.reading import Dataset, Rows

NDArray = np.ndarray[Any, Any]

_SHOWN_ROWS: Final = {"train": 8, "validation": 4}
_BINS: Final = 40


def dataset_context(dataset: Dataset) -> dict[str, Any]:
    """Everything that the page of a dataset shows."""
    lock = dataset.lock
    configs = [_config(dataset, name) for name in lock.configs]
    return {
        "name": lock.name,
        "heading": title_of(lock.name),
        "profile": lock.profile,
        "root": lock.root,
        "content_root": lock.content_root,
        "state": committed_state(lock),
        "rows": sum(shard["rows"] for shard in lock.shards),
        "tokens": sum(shard["tokens"] for shard in lock.shards),
        "bytes": size(sum(shard["bytes"] for shard in lock.shards)),
        "configs": configs,
        "drops": bar_rows([(k.replace("-", " "), n) for k, n in flatten(lock.drops)]),
        "counts": [(label, value) for label, value in flatten(lock.counts) if value is not None],
        "audit": audit(lock),
        "coverage": coverage(dataset),
        "modules": modules(dataset),
        "directories": directories(dataset),
        "source": flatten(lock.data["source"]),
    }


def _config(dataset: Dataset, name: str) -> dict[str, Any]:
    conventions = dataset.lock.configs[name]
    splits = [_split(dataset, name, split) for split in dataset.lock.splits(name)]
    return {
        "name": name,
        "context": conventions["context"],
        "vocabulary": conventions["vocabulary"],
        "masked": conventions["masked_target"],
        "splits": splits,
        "figures": [figure for split in splits for figure in split["figures"]],
    }


def _split(dataset: Dataset, config: str, split: str) -> dict[str, Any]:
    shards = dataset.lock.shards_of(config, split)
    rows = dataset.rows(config, split)
    context = dataset.lock.configs[config]["context"]
    tokens = sum(shard["tokens"] for shard in shards)
    return {
        "name": split,
        "rows": len(rows),
        "tokens": tokens,
        "shards": len(shards),
        "bytes": size(sum(shard["bytes"] for shard in shards)),
        "padding": 1 - tokens / (len(rows) * context) if len(rows) else 0.0,
        "figures": _length_figures(rows, len(shards), config, split),
        "views": row_views(dataset, config, split, _SHOWN_ROWS.get(split, 4)),
    }


def row_lengths(rows: Rows, shards: int) -> NDArray:
    """Tokens of every row, from the bounds that the shards store."""
    parts = [np.zeros(0, np.int64)]
    for index in range(shards):
        for values, bounds in rows.shard(index).token_views:
            fixed = isinstance(bounds, int)
            parts.append(np.full(len(values) // bounds, bounds) if fixed else np.diff(bounds))
    return np.concatenate(parts)


def _length_figures(rows: Rows, shards: int, config: str, split: str) -> list[Figure]:
    lengths = row_lengths(rows, shards)
    where = split if config == "default" else f"{config}, {split}"
    if len(lengths) == 0:
        return []
    if lengths.min() == lengths.max():
        documents = document_lengths(rows, shards)
        if documents is None:
            return []
        return [length_figure(f"Document lengths inside rows: {where}", documents, "documents")]
    figures = [length_figure(f"Row lengths: {where}", lengths, "rows")]
    if "target_start" in rows[0]:
        targets = lengths - rows.column("target_start").astype(np.int64)
        figures.append(length_figure(f"Scored tokens per row: {where}", targets, "rows"))
    return figures


def length_figure(title: str, lengths: NDArray, what: str) -> Figure:
    """How long things are, in bins of equal width."""
    top = int(lengths.max()) + 1
    width = max(1, -(-top // _BINS))
    edges = np.arange(0, top + width, width)
    counts, _ = np.histogram(lengths, edges)
    low, middle, high = (int(np.quantile(lengths, q, method="lower")) for q in (0.1, 0.5, 0.9))
    note = f"median {middle:,}, longest {int(lengths.max()):,}"
    return histogram(
        title,
        edges.tolist(),
        counts.tolist(),
        x=Axis(label="tokens", counts=True),
        y=Axis(label=what, low=0, rounded=True, counts=True),
        description=f"Histogram of {len(lengths):,} lengths: {note}, 80% from {low:,} to {high:,}.",
        note=note,
    )
