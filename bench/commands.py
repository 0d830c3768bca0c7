"""CPU seconds of the commands that people wait for, and how fast `verify` reads a dataset.

- CPU of the whole process tree, from start to exit; median and range of five runs after one that
  leaves compiled modules behind.
- The build has 300 short documents: what is measured is starting, loading the encoder and the
  engines, and ending. Its workers' imports are its own, because it has one worker.
- What every build loads (Arrow, NumPy, polars, the GPT-2 encoder) is measured alone, too: no build
  takes less. Aims in seconds are for the machine of record.
- `verify` reads a folder of 24 shards of FineWeb-Edu's shape, 8 documents a row, from memory. Its
  bound is two sha256 of each byte: of the file, and of the rows in it.

Usage: `python bench/commands.py`; results in bench/results/commands.json
"""

from __future__ import annotations

import hashlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from side_by_side import COMPILED, ONE_THREAD, own_versions, row, save

from tangobench.pipeline.core import shards
from tangobench.pipeline.core.build import Job, Result, ShardFile
from tangobench.pipeline.core.publish import publish
from tangobench.pipeline.core.store import open_store

SHARDS, ROWS, CONTEXT = 24, 4096, 8192
CARD = {"title": "t", "licence": "t", "licence_id": "cc0-1.0", "description": "t", "sources": ["t"]}
DUMPS = ("CC-MAIN-2023-06", "CC-MAIN-2023-40", "CC-MAIN-2023-50")
RUNS = 5
LIBRARIES = """
import tangobench.pipeline.core.no_pandas, pyarrow.compute, polars
from tangobench.pipeline.tokenizer.base import gpt2
gpt2().encode_all(["a text"]), gpt2().encode_again("a text")
"""


def run(words: list[str], one_thread: bool = True) -> tuple[float, float]:
    """CPU seconds of Python's process tree, and seconds by the clock."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **COMPILED, **(ONE_THREAD if one_thread else {})},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def few_documents(folder: Path) -> Path:
    """A Parquet file of short documents, and one that fills a validation window."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "text": " ".join(f"word{n}" for n in rng.integers(0, 999, 9000 if i == 299 else 300)),
            "id": f"document {i}",
            "dump": DUMPS[i % 3],
            "url": f"https://site.example/{i}",
            "date": "2023-01-01T00:00:00Z",
        }
        for i in range(300)
    ]
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / "documents.parquet")
    return folder


def many_rows(folder: Path) -> tuple[Path, int]:
    """A dataset folder with one shard's rows under many names, and its bytes."""
    rng, spans = np.random.default_rng(0), np.arange(ROWS + 1) * 8
    index, starts = np.arange(8 * ROWS, dtype=np.uint32), np.arange(8, dtype=np.uint16) * 1000
    columns = {
        "tokens": shards.fixed(rng.integers(0, 50257, (ROWS, CONTEXT), np.uint16)),
        "doc_index": shards.lists(index, spans),
        "doc_start": shards.lists(np.tile(starts, ROWS), spans),
        "doc_offset": shards.lists(np.zeros(8 * ROWS, np.uint32), spans),
    }
    data, info = shards.encode_shard(columns, batch_rows=64)
    job = Job(open_store(str(folder / ".units")))
    record = job.store.put("rows", data, {"shard": info})
    names = [shards.shard_name("train", n, SHARDS) for n in range(SHARDS)]
    config = {"context": CONTEXT, "vocabulary": 50257, "masked_target": 50256, "pad": 50256}
    result = Result(
        source={},
        origin={},
        tokenizer=None,
        configs={"default": config},
        counts={},
        drops={},
        notes={},
        shards=[ShardFile(name, "default", "train", record) for name in names],
        card=CARD,
    )
    publish(folder / "fineweb-bench", "fineweb", "bench", {}, result, job, {})
    return folder / "fineweb-bench", SHARDS * info["bytes"]


def hashing_rate() -> float:
    """Bytes per CPU second of two sha256 of each byte: the best of three."""
    data, best = os.urandom(1 << 27), 0.0
    for _ in range(3):
        began = time.process_time()
        hashlib.sha256(data).digest()
        best = max(best, len(data) / (time.process_time() - began) / 2)
    return best


def spread(values: list[float], unit: str = "s of CPU") -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f}) {unit}"


def commands(folder: Path) -> list[dict[str, Any]]:
    """One row for each command: its CPU seconds."""
    source, out = few_documents(folder / "source"), str(folder / "out")
    build = ["build", "fineweb", "--profile", "mini", "--source", str(source), "--quiet"]
    build += ["--set", "allow_fewer=true", "--set", "near_duplicates=off", "--out"]
    jobs = {
        "start and exit of a build": (build, 0.45),
        "tables": (["tables", "results"], 0.6),
        "inspect": (["inspect", f"{out}0/fineweb-mini", "--row", "0"], 0.6),
        "plan": (["plan", "fineweb", "--profile", "paper"], 0.6),
        "doctor": (["doctor"], 0.6),
        "model info": (["model", "info", "--arch", "all"], 2),
    }
    found = {}
    for job, (words, aim) in jobs.items():
        times = []
        for n in range(RUNS + 1):
            place = [f"{out}{n}"] if words is build else []
            times.append(run(["-m", "tangobench", *words, *place])[0])
        found[job] = times[1:], f"at most {aim}"
    rows = [
        compared(job, "a second of CPU", statistics.median(times), aim, spread(times), "1 s")
        for job, (times, aim) in found.items()
    ]
    start, _ = found["start and exit of a build"]
    alone = [run(["-c", LIBRARIES])[0] for _ in range(RUNS + 1)][1:]
    ratio, texts = statistics.median(start) / statistics.median(alone), map(spread, (start, alone))
    rows.append(compared("start and exit of a build", "its libraries alone", ratio, "–", *texts))
    return rows


def verifying(folder: Path) -> list[dict[str, Any]]:
    """What `verify` reads per second, of CPU and by the clock."""
    dataset, size = many_rows(folder)
    found = [
        run(["-m", "tangobench", "verify", str(dataset)], one_thread=False) for _ in range(RUNS)
    ]
    cpu, wall = ([size / seconds / 1e9 for seconds in pair] for pair in zip(*found, strict=True))
    bound = hashing_rate() / 1e9
    rates = [statistics.median(some) for some in (cpu, wall)]
    ours, theirs = spread(cpu, "GB/s of CPU"), f"{bound:.2f} GB/s of CPU"
    clock = spread(wall, "GB/s by the clock")
    return [
        compared("verify", "a gigabyte per CPU second", rates[0], "≥ 0.75", ours, "1 GB/s"),
        compared("verify", "two sha256 of each byte", rates[0] / bound, "–", ours, theirs),
        compared("verify, two cores", "a gigabyte per second", rates[1], "≥ 1.2", clock, "1 GB/s"),
    ]


def compared(job: str, peer: str, ratio: float, aim: str, ours: str, theirs: str) -> dict[str, Any]:
    versions = own_versions("pyarrow", "polars")
    more = {"ours": ours, "theirs": theirs, "command": "make bench-commands"}
    return row(job, peer, ratio, aim, **more, versions=versions)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        rows = [*commands(Path(name)), *verifying(Path(name))]
    save("commands", rows, {"runs": RUNS, "load": round(os.getloadavg()[0], 1)})


if __name__ == "__main__":
    main()
