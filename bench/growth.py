"""CPU seconds and peak memory of every builder and reader over two orders of magnitude of input.

- The jobs are those of `memory.py`, each in a process of its own, one worker.
- Start-up is the same at every size, so exponents of time are taken from the upper decade, where it
  matters least; those of memory from both.

Usage: `make bench-growth`, or `python bench/growth.py --job lean`; results in
bench/results/growth.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent))
from memory import JOBS
from side_by_side import ONE_THREAD, exponent, own_versions, row, save

SCALES: Final = (1, 3, 10, 30, 100)
ENVIRONMENT: Final = {**os.environ, **ONE_THREAD}
COMMAND: Final = "make bench-growth"
# What a job reads at scale 1.
INPUT: Final = {
    "fineweb": (4_000, "documents of 3 kB"),
    "lean": (120, "files of 16 kB"),
    "dm_math": (336, "examples"),
    "training": (4_000, "rows, 12 steps"),
    "verify": (4_000, "rows"),
}


def measure(name: str) -> dict[str, Any]:
    """One job at every scale, with the fitted exponents."""
    points = []
    for scale in SCALES:
        words = [sys.executable, str(Path(__file__).with_name("memory.py"))]
        words += ["--job", name, "--scale", str(scale)]
        done = subprocess.run(words, check=True, capture_output=True, text=True, env=ENVIRONMENT)
        found = json.loads(done.stdout)
        size = INPUT[name][0] * scale
        points.append([size, found["cpu_seconds"], found["peak_mb"]])
        print(name, points[-1], flush=True)
    sizes, seconds, memory = zip(*points, strict=True)
    upper = [size >= sizes[-1] / 10 for size in sizes]
    late = [(size, time) for size, time, late in zip(sizes, seconds, upper, strict=True) if late]
    return {
        "unit": INPUT[name][1],
        "points": points,
        "time_exponent": exponent(*zip(*late, strict=True)),
        "memory_exponent": exponent(sizes, memory),
    }


def lines(name: str, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the table of all benchmarks: at most linear in time, less than that in memory."""
    (first, *_), (last, seconds, memory) = found["points"][0], found["points"][-1]
    span = f"{first:,} to {last:,} {found['unit']}"
    versions = own_versions("pyarrow", "polars", "torch")
    return [
        row(
            f"growth exponent of time, {name}", f"linear, {span}", found["time_exponent"],
            "at most 1.1", ours=f"{seconds:,} s of CPU at the end", theirs="1", command=COMMAND,
            versions=versions,
        ),
        row(
            f"growth exponent of memory, {name}", f"linear, {span}", found["memory_exponent"],
            "at most 0.5", ours=f"{memory:,} MB at the end", theirs="1", command=COMMAND,
            versions=versions,
        ),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", choices=JOBS, action="append")
    args = parser.parse_args()
    for name in args.job or JOBS:
        found = measure(name)
        save("growth", lines(name, found), {name: found})


if __name__ == "__main__":
    main()
