"""litData and mosaicml-streaming on the rows that the loader's benchmark made.

- Each peer first writes the rows in its own format (not timed), then gives random rows and one
  shuffled pass, padded to batches by the same lines as everybody's.
- Runs beside the installed torch: the peers' packages are appended to the path.

Usage: `python peers_loader.py litdata FOLDER BATCH PACKAGES`, called by bench/loader.py
"""

import importlib.machinery
import itertools
import json
import shutil
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

NDArray = np.ndarray[Any, Any]
LIMIT = 400  # batches of a timed pass
READS = 5000


def main() -> None:
    name, folder, batch, packages = sys.argv[1:]
    sys.path.append(packages)
    values = np.load(f"{folder}/values.npy", mmap_mode="r")
    offsets = np.load(f"{folder}/offsets.npy")
    target = Path(folder) / name
    shutil.rmtree(target, ignore_errors=True)
    rows = (values[a:b] for a, b in itertools.pairwise(offsets))
    dataset, row_of = {"litdata": litdata, "streaming": streaming}[name](target, rows, int(batch))
    order = np.random.default_rng(2).integers(0, len(offsets) - 1, READS).tolist()
    for row in order[:3]:
        assert np.array_equal(row_of(dataset[row]), values[offsets[row] : offsets[row + 1]])
    began = time.process_time()
    for row in order:
        row_of(dataset[row])
    reads = READS / (time.process_time() - began)
    shuffled = (row_of(item) for item in dataset)
    print(json.dumps({"reads": reads, "rows": epoch(shuffled, int(batch))}))


def epoch(rows: Iterator[NDArray], batch: int) -> float:
    """Rows per second of process time, after one batch of warming up."""
    pad([next(rows) for _ in range(batch)])
    began, done = time.process_time(), 0
    while done < LIMIT:
        found = [row for row, _ in zip(rows, range(batch), strict=False)]
        if len(found) < batch:
            break
        pad(found)
        done += 1
    return done * batch / (time.process_time() - began)


def pad(rows: list[NDArray]) -> NDArray:
    padded = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return padded


def litdata(
    target: Path, rows: Iterable[NDArray], batch: int
) -> tuple[Any, Callable[[Any], NDArray]]:
    from litdata import StreamingDataset
    from litdata.streaming.writer import BinaryWriter

    target.mkdir(parents=True)
    writer = BinaryWriter(str(target), chunk_bytes="64MB")
    for index, row in enumerate(rows):
        writer[index] = {"tokens": np.array(row)}
    writer.done()
    writer.merge()
    dataset = StreamingDataset(str(target), shuffle=True)
    return dataset, lambda item: item["tokens"]


def streaming(
    target: Path, rows: Iterable[NDArray], batch: int
) -> tuple[Any, Callable[[Any], NDArray]]:
    stub_torchvision()
    from streaming import MDSWriter, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    kind: Any = None
    writer: Any = None
    for row in rows:
        if writer is None:
            kind = row.dtype
            columns = {"tokens": f"ndarray:{kind}"}
            writer = MDSWriter(out=str(target), columns=columns, size_limit=1 << 26)
        writer.write({"tokens": np.array(row)})
    writer.finish()
    dataset = StreamingDataset(local=str(target), shuffle=True, batch_size=batch)
    return dataset, lambda item: item["tokens"]


def stub_torchvision() -> None:
    """streaming imports torchvision for pictures; the released one does not fit every torch."""
    for name in ("", ".datasets", ".transforms", ".transforms.functional"):
        module = types.ModuleType(f"torchvision{name}")
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        module.VisionDataset = object  # type: ignore[attr-defined]
        module.to_tensor = None  # type: ignore[attr-defined]
        sys.modules[module.__name__] = module


if __name__ == "__main__":
    main()
