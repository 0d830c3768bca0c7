"""The loader against what a training script would use instead: same rows, same batches.

- Two shapes: FineWeb-Edu rows (8,192 tokens, fixed) and DeepMind Mathematics rows (60 to 100
  tokens of any length): single rows at random, and shuffled batches of 32 and 64.
- `memmap`: one flat file of tokens and an offset array, np.memmap, a numpy permutation; no hashes,
  no masks, no resume. `datasets`: Dataset.from_file with indices and the numpy format. litData and
  mosaicml-streaming write the rows in their own formats first.
- Ours includes the keyed order, target masks and padding; the shards' sha256 is timed apart.
- Process time, so that other load on the machine cancels out.

Usage: `python bench/loader.py`; results in bench/results/loader.json
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from tangobench.model.training.loader import Loader
from tangobench.pipeline.core import shards
from tangobench.pipeline.core.build import Job, Result, ShardFile
from tangobench.pipeline.core.hashing import case_json
from tangobench.pipeline.core.publish import publish
from tangobench.pipeline.core.store import open_store
from tangobench.pipeline.reading import open_dataset

RESULTS = Path(__file__).parent / "results" / "loader.json"
NDArray = np.ndarray[Any, Any]
CARD = {"title": "t", "licence": "t", "licence_id": "cc0-1.0", "description": "t", "sources": ["t"]}
PACKAGES = Path("/var/tmp/tangobench-bench/peers-loader")
# Without dependencies: torch is the installed one, and only what an import needs is here.
INSTALL = (
    *("litdata", "lightning-utilities", "tifffile", "obstore", "boto3", "botocore", "s3transfer"),
    *("transformers", "tokenizers"),
    *("jmespath", "mosaicml-streaming", "brotli", "python-snappy", "cramjam", "zstd", "catalogue"),
    *("google-cloud-storage", "google-cloud-core", "google-auth", "google-api-core", "paramiko"),
    *("google-resumable-media", "google-crc32c", "googleapis-common-protos", "proto-plus", "oci"),
    *("azure-storage-blob", "azure-storage-file-datalake", "azure-identity", "azure-core"),
    *(
        "pillow",
        "circuitbreaker",
        "pyasn1",
        "pyasn1-modules",
        "rsa",
        "bcrypt",
        "pynacl",
        "invoke",
        "crc32c",
    ),
)
READS = 20_000
LATE_STEP = 1_000_000


def main() -> None:
    if not PACKAGES.exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
        subprocess.run([*command, str(PACKAGES), *INSTALL], check=False)
    report: dict[str, Any] = {"machine": platform.machine(), "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        for name, rows, batch in (("fineweb", 4_000, 32), ("dm_math", 100_000, 64)):
            report[name] = compare(Path(folder), name, rows, batch)
            print(f"{name}: {json.dumps(report[name], indent=1)}")
    report["rows"] = [row for name in ("fineweb", "dm_math") for row in table(name, report[name])]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(case_json(report))


def compare(folder: Path, name: str, rows: int, batch: int) -> dict[str, Any]:
    values, offsets, starts = make_rows(name, rows)
    target = publish_rows(folder, name, values, offsets, starts)
    dataset = open_dataset(target)
    began = time.process_time()
    loader = Loader(dataset, batch=batch, seed=101)
    first = next(loader)
    opened = time.process_time() - began
    for place, row in enumerate(first.rows.tolist()):
        expected = values[offsets[row] : offsets[row + 1]]
        assert np.array_equal(first.tokens_BT[place, : len(expected)], expected)
    batches = rows // batch - 1
    flat = folder / "flat.bin"
    values.tofile(flat)
    np.save(folder / "values.npy", values)
    np.save(folder / "offsets.npy", offsets)
    table = dataset.rows("default", "train")
    mapped = np.memmap(flat, values.dtype, "r")
    epochs = {
        "ours": rate(lambda: loader, batches, batch),
        "memmap": rate(lambda: memmap(mapped, offsets, batch), batches, batch),
        "datasets": rate(lambda: peers(target, batch), min(batches, 60), batch),
    }
    reads = {
        "ours": reading(table.tokens, rows),
        "memmap": reading(lambda row: mapped[offsets[row] : offsets[row + 1]], rows),
    }
    for peer in ("litdata", "streaming"):
        script = str(Path(__file__).parent / "peers_loader.py")
        command = [sys.executable, script, peer, str(folder), str(batch), str(PACKAGES)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=150)
        except subprocess.SubprocessError as error:
            print(f"{peer} is left out: {error}")
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        epochs[peer], reads[peer] = found["rows"], found["reads"]
    return {
        "epoch_rows_per_second": {key: round(value) for key, value in epochs.items()},
        "random_reads_per_second": {key: round(value) for key, value in reads.items()},
        "check_gb_per_second": round(values.nbytes / opened / 1e9, 2),
        "resume": resume(loader),
    }


def resume(loader: Loader) -> dict[str, float]:
    """Milliseconds from a restored state to its batch, at the beginning and far on."""
    found = {}
    for step in (0, LATE_STEP):
        best = 9.0
        for again in range(5):
            # Other turns in between: the order computed ahead is not at hand.
            loader.restore({**loader.state(), "step": step + 1000 * (again + 1)})
            began = time.process_time()
            next(loader)
            best = min(best, time.process_time() - began)
        found[f"ms_at_step_{step}"] = round(1e3 * best, 3)
    return found


def table(name: str, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Lines of the table of all benchmarks."""
    versions = {"numpy": np.__version__}
    for peer, package in (("datasets", "datasets"),):
        versions[peer] = metadata.version(package)
    for path in sorted(PACKAGES.glob("*.dist-info")):
        package, _, version = path.name.removesuffix(".dist-info").rpartition("-")
        if package in ("litdata", "mosaicml_streaming"):
            versions[package] = version
    for job, key in (
        ("epoch", "epoch_rows_per_second"),
        ("random rows", "random_reads_per_second"),
    ):
        ours = found[key]["ours"]
        for peer, theirs in found[key].items():
            if peer != "ours":
                yield {
                    "job": f"{job}, {name} rows",
                    "peer": peer,
                    "ratio": float(f"{ours / theirs:.3g}"),
                    "aim": "≥ 1",
                    "ours": f"{ours:,} rows/s",
                    "theirs": f"{theirs:,} rows/s",
                    "command": "python bench/loader.py",
                    "versions": versions,
                }
    early, late = found["resume"].values()
    yield {
        "job": f"resume, {name} rows",
        "peer": "ours at step 0",
        "ratio": float(f"{late / early:.3g}"),
        "aim": "at most 1.2: O(1) in the step",
        "ours": f"{late} ms at step {LATE_STEP:,}",
        "theirs": f"{early} ms at step 0",
        "command": "python bench/loader.py",
        "versions": versions,
    }


def reading(read: Callable[[int], Any], rows: int) -> float:
    """Single rows (views) per second of process time; the best of three."""
    order = np.random.default_rng(2).integers(0, rows, READS).tolist()
    best = 0.0
    for _ in range(3):
        began = time.process_time()
        for row in order:
            read(row)
        best = max(best, READS / (time.process_time() - began))
    return best


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
    data, info = shards.encode_shard(columns, batch_rows=64 if starts is None else 1024)
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
    # Under a name of its own: rows of the catalogue's datasets have more columns than these.
    publish(folder / f"{name}-bench", f"{name}-bench", "sample", {}, result, job, {})
    return folder / f"{name}-bench"


def memmap(flat: NDArray, offsets: NDArray, batch: int) -> Iterator[NDArray]:
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
