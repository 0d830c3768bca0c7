"""Component dedup with other tools, run by bench/dedup.py in an environment of its own.

- Input: one Parquet file with `dump`, and URL and content keys as two numbers each. Answer: how
  many validation documents belong to training, transitively.
- SciPy finds all components; duckdb and Dask spread the smallest label until nothing changes, as
  people write it in SQL and data frames; datatrove's exact dedup knows one key and no chains, so
  its answer is another (the number of distinct contents).

Usage: `python bench/peers_dedup.py scipy|duckdb|dask|datatrove KEYS.parquet`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

TRAIN_THROUGH = 202340


def read(path: Path) -> tuple[Any, Any]:
    """Dumps, and (documents, 2) small integers that are equal where keys are equal."""
    import polars as pl

    frame = pl.read_parquet(path)
    codes = [
        frame.select(pl.struct(f"{kind}_high", f"{kind}_low").rank("dense")).to_series().to_numpy()
        for kind in ("url", "content")
    ]
    return frame["dump"].to_numpy(), np.stack(codes, axis=1).astype(np.int64) - 1


def moved(dump: Any, label: Any) -> int:
    first = np.full(int(label.max()) + 1, 999_999)
    np.minimum.at(first, label, dump)
    return int(((dump > TRAIN_THROUGH) & (first[label] <= TRAIN_THROUGH)).sum())


def run_scipy(path: Path) -> int:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    dump, keys = read(path)
    count = len(dump)
    urls = int(keys[:, 0].max()) + 1
    nodes = np.concatenate([count + keys[:, 0], count + urls + keys[:, 1]])
    documents = np.tile(np.arange(count), 2)
    size = count + urls + int(keys[:, 1].max()) + 1
    graph = coo_array((np.ones(2 * count, np.int8), (documents, nodes)), shape=(size, size))
    return moved(dump, connected_components(graph, directed=False)[1][:count])


def run_duckdb(path: Path) -> int:
    import duckdb

    base = duckdb.connect(config={"threads": 1})
    base.execute(
        f"create table d as select row_number() over () id, dump, url_high || '-' || url_low u, "
        f"content_high || '-' || content_low c from read_parquet('{path}')"
    )
    base.execute("create table l as select id, id label from d")
    while True:
        base.execute(
            "create or replace table n as select d.id, least(min(l.label) over (partition by u), "
            "min(l.label) over (partition by c)) label from d join l using (id)"
        )
        changed = base.execute(
            "select count(*) from n join l using (id) where n.label <> l.label"
        ).fetchall()[0][0]
        base.execute("create or replace table l as select * from n")
        if not changed:
            break
    query = (
        "select count(*) from (select dump, min(dump) over (partition by label) first from d "
        f"join l using (id)) where dump > {TRAIN_THROUGH} and first <= {TRAIN_THROUGH}"
    )
    return int(base.execute(query).fetchall()[0][0])


def run_dask(path: Path) -> int:
    import dask
    import dask.dataframe as dd
    import pandas as pd

    dask.config.set(scheduler="synchronous")
    dump, keys = read(path)
    frame = pd.DataFrame({"dump": dump, "u": keys[:, 0], "c": keys[:, 1]})
    label = np.arange(len(dump))
    while True:
        parts = dd.from_pandas(frame.assign(label=label), npartitions=8)
        smallest = label
        for key in ("u", "c"):
            least = parts.groupby(key)["label"].min().compute()
            smallest = np.minimum(smallest, least.reindex(frame[key]).to_numpy())
        if np.array_equal(smallest, label):
            return moved(dump, label)
        label = smallest


def content(document: Any) -> str:
    text: str = document.text
    return text


def run_datatrove(path: Path) -> int:
    import polars as pl
    from datatrove.data import Document
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import ExactDedupFilter, ExactDedupSignature, ExactFindDedups
    from datatrove.pipeline.dedup.exact_dedup import ExactDedupConfig

    keys = pl.read_parquet(path).select("content_high", "content_low").rows()
    documents = [Document(text=f"{h}-{w}", id=str(n)) for n, (h, w) in enumerate(keys)]
    kept: list[int] = []

    def count(data: Any, rank: int, world_size: int) -> Any:
        for document in data:
            kept.append(1)
            yield document

    config = ExactDedupConfig(content_getter=content)
    with tempfile.TemporaryDirectory() as folder:
        steps: list[list[Any]] = [
            [documents, ExactDedupSignature(f"{folder}/signatures", config)],
            [ExactFindDedups(f"{folder}/signatures", f"{folder}/found", config)],
            [documents, ExactDedupFilter(f"{folder}/found", config), count],
        ]
        for number, pipeline in enumerate(steps):
            LocalPipelineExecutor(pipeline, tasks=1, logging_dir=f"{folder}/{number}").run()
    return len(kept)


if __name__ == "__main__":
    which, keys_file = sys.argv[1:]
    sides = {"scipy": run_scipy, "duckdb": run_duckdb, "dask": run_dask, "datatrove": run_datatrove}
    began = time.process_time()
    answer = sides[which](Path(keys_file))
    print(json.dumps({"cpu_seconds": round(time.process_time() - began, 2), "answer": answer}))
