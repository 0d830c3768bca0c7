"""Peak memory of every builder, of training and of `verify`, as the input grows tenfold.

Each job runs in a process of its own that samples its private memory (RssAnon: memory-mapped shards
belong to the system, not to us). Usage: `python bench/memory.py`, which writes
bench/results/memory.json; `python bench/memory.py --job lean --scale 10 --limit 600` is one job
under a hard limit of megabytes (RLIMIT_DATA), for tests.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tangobench.pipeline.core.hashing import case_json

ROOT = Path(__file__).parents[1]
SCALES = (1, 10)
WORDS = ["proof", "of", "the", "sum", "is", "a", "limit", "and", "so", "on", "field", "set"]


def private_kilobytes() -> int:
    """Memory of this process that nobody shares."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"RssAnon:\s+(\d+)", status)
    return int(found[1]) if found else 0


def prose(rng: random.Random, size: int) -> str:
    return " ".join(rng.choices(WORDS, k=size // 4))


def fineweb(place: Path, scale: int) -> Callable[[], Any]:
    """4,000 documents of 3 kB, or ten times as many, in row groups of 500."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tangobench.pipeline import api

    rng = random.Random(1)
    base = [prose(rng, 3000) for _ in range(500)]
    path = place / "in.parquet"
    schema = pa.schema([(name, pa.string()) for name in ("text", "id", "dump", "url")])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for block in range(8 * scale):
            names = [f"{block}-{n}" for n in range(500)]
            dumps = ["CC-MAIN-2023-50" if block % 8 == 7 else "CC-MAIN-2023-14"] * 500
            texts = [f"{name} {text}" for name, text in zip(names, base, strict=True)]
            urls = [f"https://a.example/{name}" for name in names]
            columns = {"text": texts, "id": names, "dump": dumps, "url": urls}
            writer.write_table(pa.table(columns, schema))
    options = {"context": 1024, "unit_bytes": 2_000_000, "shard_rows": 512, "train_rows": 10**6}
    return lambda: api.build("fineweb", out=str(place), source=str(path), overrides=options)


def lean(place: Path, scale: int) -> Callable[[], Any]:
    """120 files of 16 kB (a Mathlib file's size), or ten times as many."""
    from tangobench.pipeline import api
    from tangobench.pipeline.lean.fetch import write_repository

    rng = random.Random(1)
    files = {}
    for number in range(120 * scale):
        proofs = [
            f"theorem t{number}_{n} : {prose(rng, 200)} := by\n  {prose(rng, 200)}\n\n"
            for n in range(38)
        ]
        files[f"Mathlib/A{number % 7}/F{number:05d}.lean"] = "".join(proofs).encode()
    commit = write_repository(place / "repository", files)
    options = {"commit": commit, "root": "Mathlib/", "batch_bytes": 500_000}
    source = str(place / "repository")
    return lambda: api.build("lean", out=str(place), source=source, overrides=options)


def dm_math(place: Path, scale: int) -> Callable[[], Any]:
    """Two training examples per combination, or ten times as many."""
    from tangobench.pipeline import api

    options = {"train_per_combination": 2 * scale, "validation_per_combination": 1}
    return lambda: api.build("dm_math", out=str(place), overrides=options)


def _toy_rows(place: Path, rows: int) -> Path:
    sys.path.insert(0, str(ROOT / "tests"))
    import conftest

    make = conftest.make_toy_math.__wrapped__()
    return Path(make(place, rows=rows))


def training(place: Path, scale: int) -> Callable[[], Any]:
    """Twelve steps on 4,000 rows, or on ten times as many."""
    from tangobench.model.training.recipes import RECIPES, Run
    from tangobench.model.training.train import Options, train

    _toy_rows(place, 4000 * scale)
    fields: dict[str, Any] = {"steps": 12, "batch": 16, "warmup": 2, "name": "memory"}
    run = Run(dataclasses.replace(RECIPES["sample-dm_math-tango"], **fields), 17, 101)
    return lambda: train(run, Options(out=place, microbatch=8))


def verifying(place: Path, scale: int) -> Callable[[], Any]:
    """4,000 rows, or ten times as many."""
    from tangobench.pipeline.core.shard_reader import verify

    folder = _toy_rows(place, 4000 * scale)
    return lambda: verify(folder)


JOBS: dict[str, Callable[[Path, int], Callable[[], Any]]] = {
    "fineweb": fineweb,
    "lean": lean,
    "dm_math": dm_math,
    "training": training,
    "verify": verifying,
}


def run_job(name: str, scale: int, limit: int | None) -> dict[str, Any]:
    """Private memory before and at the peak of one job, in megabytes."""
    peak, stop = [0], threading.Event()

    def sample() -> None:
        while not stop.wait(0.01):
            peak[0] = max(peak[0], private_kilobytes())

    with tempfile.TemporaryDirectory() as place:
        action = JOBS[name](Path(place), scale)
        threading.Thread(target=sample, daemon=True).start()  # without memory it never would
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit << 20, limit << 20))
        before = private_kilobytes()
        began = time.process_time()
        action()
        seconds = time.process_time() - began
        stop.set()
    megabytes = {"before_mb": before // 1024, "peak_mb": peak[0] // 1024}
    return {"job": name, "scale": scale, **megabytes, "cpu_seconds": round(seconds, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", choices=JOBS)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--limit", type=int, metavar="MB")
    args = parser.parse_args()
    if args.job:
        print(json.dumps(run_job(args.job, args.scale, args.limit)))
        return
    rows = []
    for name in JOBS:
        for scale in SCALES:
            words = [sys.executable, __file__, "--job", name, "--scale", str(scale)]
            done = subprocess.run(words, check=True, capture_output=True, text=True)
            rows.append(json.loads(done.stdout))
            print(rows[-1], flush=True)
    growth = {
        name: round(
            next(r["peak_mb"] for r in rows if (r["job"], r["scale"]) == (name, SCALES[1]))
            / next(r["peak_mb"] for r in rows if (r["job"], r["scale"]) == (name, SCALES[0])),
            2,
        )
        for name in JOBS
    }
    result = {"command": "python bench/memory.py", "rows": rows, "growth_at_ten_times": growth}
    (ROOT / "bench" / "results" / "memory.json").write_text(case_json(result))
    print(json.dumps(growth))


if __name__ == "__main__":
    main()
