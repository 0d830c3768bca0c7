"""The loader against what a training script would use instead: same rows, same batches.

- Two shapes: FineWeb-Edu rows (8,192 tokens, fixed) and DeepMind Mathematics rows (60 to 100
  tokens of any length), random order, batches of 32 and 64.
- `memmap`: one flat file of tokens and an offset array, np.memmap, a numpy permutation; no hashes,
  no masks, no resume. `datasets`: Dataset.from_file with indices and the numpy format.
- Ours includes the keyed order, target masks and padding; the shards' sha256 is timed apart.
- Process time, so that other load on the machine cancels out.

Usage: `python bench/loader.py`; results in bench/results/loader.json
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tangobench.model.loader import Loader
from tangobench.pipeline import shards
from tangobench.pipeline.build import Job, Result, ShardFile
from tangobench.pipeline.manifest import pretty_json
from tangobench.pipeline.publish import publish
from tangobench.pipeline.reading import open_dataset
from tangobench.pipeline.store import open_store

RESULTS = Path(__file__).parent / "results" / "loader.json"
NDArray = np.ndarray[Any, Any]
CARD = {"title": "t", "licence": "t", "licence_id": "cc0-1.0", "description": "t", "sources": ["t"]}


def main() -> None:
    report: dict[str, Any] = {"machine": platform.machine(), "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as folder:
        for name, rows, batch in (("fineweb", 4_000, 32), ("dm_math", 400_000, 64)):
            report[name] = compare(Path(folder), name, rows, batch)
            line = ", ".join(f"{key} {value}" for key, value in report[name].items())
            print(f"{name}: {line}")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(pretty_json(report) + "\n")


def compare(folder: Path, name: str, rows: int, batch: int) -> dict[str, Any]:
    values, offsets, starts = make_rows(name, rows)
    target = publish_rows(folder, name, values, offsets, starts)
    began = time.process_time()
    loader = Loader(open_dataset(target), batch=batch, seed=101)
    next(loader)
    opened = time.process_time() - began
    batches = rows // batch - 1
    rates = {
        "ours": rate(lambda: loader, batches, batch),
        "memmap": rate(lambda: memmap(folder, values, offsets, batch), batches, batch),
        "datasets": rate(lambda: peers(target, batch), min(batches, 60), batch),
    }
    ours = rates["ours"]
    return {
        "rows_per_second": {key: round(value) for key, value in rates.items()},
        "ours_over_memmap": round(ours / rates["memmap"], 2),
        "ours_over_datasets": round(ours / rates["datasets"], 1),
        "check_gb_per_second": round(values.nbytes / opened / 1e9, 2),
    }


def make_rows(name: str, rows: int) -> tuple[NDArray, NDArray, NDArray | None]:
    rng = np.random.default_rng(0)
    if name == "fineweb":
        lengths = np.full(rows, 8192)
        return rng.integers(0, 50257, lengths.sum(), np.uint16), bounds(lengths), None
    lengths = rng.integers(60, 100, rows)
    values = rng.integers(4, 73, lengths.sum(), np.uint8)
    return values, bounds(lengths), (lengths - 6).astype(np.uint16)


def bounds(lengths: NDArray) -> NDArray:
    return np.concatenate([[0], np.cumsum(lengths)])


def publish_rows(
    folder: Path, name: str, values: NDArray, offsets: NDArray, starts: NDArray | None
) -> Path:
    columns = {"tokens": shards.lists(values, offsets)}
    if starts is None:
        columns = {"tokens": shards.fixed(values.reshape(-1, 8192))}
    else:
        columns["target_start"] = shards.scalars(starts)
    data, info = shards.encode(columns, batch_rows=64 if starts is None else 1024)
    job = Job(open_store(str(folder / ".units")))
    record = job.store.put(name, data, {"shard": info})
    masked = 50256 if starts is None else None
    row = {"context": 8192, "vocabulary": 50257, "masked_target": masked, "pad": 0}
    result = Result(
        source={},
        origin={},
        tokenizer=None,
        configs={"default": row},
        counts={},
        drops={},
        notes={},
        shards=[ShardFile(shards.shard_name("train", 0, 1), "default", "train", record)],
        card=CARD,
    )
    publish(folder / f"{name}-bench", name, "sample", {}, result, job, {})
    return folder / f"{name}-bench"


def memmap(folder: Path, values: NDArray, offsets: NDArray, batch: int) -> Iterator[NDArray]:
    path = folder / "flat.bin"
    values.tofile(path)
    flat = np.memmap(path, values.dtype, "r")
    order = np.random.default_rng(1).permutation(len(offsets) - 1)
    for start in range(0, len(order), batch):
        rows = [flat[offsets[row] : offsets[row + 1]] for row in order[start : start + batch]]
        padded = np.zeros((len(rows), max(map(len, rows))), np.int32)
        for place, row in enumerate(rows):
            padded[place, : len(row)] = row
        yield padded


def peers(folder: Path, batch: int) -> Iterator[NDArray]:
    import datasets

    shard = next(folder.glob("train-*.arrow"))
    table = datasets.Dataset.from_file(str(shard)).with_format("numpy")
    order = np.random.default_rng(1).permutation(len(table))
    for start in range(0, len(order), batch):
        rows = list(table[order[start : start + batch]]["tokens"])
        padded = np.zeros((len(rows), max(map(len, rows))), np.int32)
        for place, row in enumerate(rows):
            padded[place, : len(row)] = row
        yield padded


def rate(make: Callable[[], Iterator[Any]], batches: int, batch: int) -> float:
    """Rows per second of process time, after one batch of warming up; the best of three."""
    best = 0.0
    for _ in range(3):
        stream = make()
        next(stream)
        began = time.process_time()
        for _ in range(min(batches - 1, 400)):
            next(stream)
        best = max(best, min(batches - 1, 400) * batch / (time.process_time() - began))
    return best


if __name__ == "__main__":
    main()
