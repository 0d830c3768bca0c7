"""The math generator side by side with upstream: speed and identity in one run.

- Upstream is the package as installed plus only what makes it run and repeatable
  (`official.load()`); ours adds the exact speed-ups (`fast.load()`).
- Both draw the same addresses, combination by combination, in one process; question, answer,
  rejections and the state of the generators afterwards must be equal, else the run fails.
- Process time is compared, so that other load on the machine cancels out. Scaling compares the wall
  time of one and of two workers on the same units, and needs an otherwise idle machine.

Usage: `python bench/dm_math.py --per-combination 20`; results in bench/results/dm_math.json
"""

import argparse
import hashlib
import os
import platform
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from tangobench.pipeline.core.build import Job, Unit
from tangobench.pipeline.core.hashing import case_json
from tangobench.pipeline.core.pool import ProcessRunner
from tangobench.pipeline.core.store import open_store
from tangobench.pipeline.dm_math import fast
from tangobench.pipeline.dm_math import generator as official
from tangobench.pipeline.dm_math.spec import NAMES, Split
from tangobench.pipeline.dm_math.stages import DRAW, Draw, DrawArgs, draw

RESULTS = Path(__file__).parent / "results" / "dm_math.json"


def main() -> int:
    options = arguments()
    report = compare(options.seed, options.split, options.start, options.per_combination)
    print_table(report)
    if options.scaling:
        report["load_before_scaling"] = os.getloadavg()[0]
        report["two_workers_over_one"] = round(scaling(options.scaling), 3)
        print(
            f"two workers are {report['two_workers_over_one']:.2f} times one "
            f"(load of the machine before: {report['load_before_scaling']:.1f})"
        )
    report["rows"] = rows(report)
    if options.write:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(case_json(report))
    for difference in report["differences"]:
        print(f"DIFFERENT: {difference}", file=sys.stderr)
    return 1 if report["differences"] else 0


def rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The measurements as lines of the report's table."""
    shared = {
        "command": "make bench-dm-math",
        "versions": {name: metadata.version(name) for name in ("mathematics_dataset", "sympy")},
    }
    lines = [
        {
            "job": "DeepMind Mathematics, drawing",
            "peer": f"upstream generator ({report['rows_compared']:,} rows, all equal)",
            "ratio": report["times_upstream"],
            "aim": "≥ 4",
            "ours": f"{report['rows_per_second']:,.0f} rows/s per core",
            "theirs": f"{report['upstream_rows_per_second']:,.0f} rows/s per core",
            **shared,
        }
    ]
    if "two_workers_over_one" in report:
        lines.append(
            {
                "job": "DeepMind Mathematics, drawing",
                "peer": "one worker, by two workers",
                "ratio": report["two_workers_over_one"],
                "aim": "≥ 1.9",
                "ours": "2 workers",
                "theirs": "1 worker",
                **shared,
            }
        )
    return lines


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ours against upstream, same seeds")
    parser.add_argument("--per-combination", type=int, default=20)
    parser.add_argument("--start", type=int, default=0, help="first index")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--split", choices=("train", "validation"), default="train")
    parser.add_argument(
        "--scaling", type=int, default=500, metavar="N", help="rows per combination; 0: leave out"
    )
    parser.add_argument("--no-write", dest="write", action="store_false")
    return parser.parse_args()


def compare(seed: int, split: Split, start: int, count: int) -> dict[str, Any]:
    upstream, ours = official.load(), fast.load()
    seconds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    differences: list[str] = []
    calls = 0
    for combination, name in enumerate(NAMES):
        blocks = [
            drawn(generator, seed, split, combination, range(start, start + count))
            for generator in (upstream, ours)
        ]
        for index, theirs, mine in zip(range(start, start + count), *blocks, strict=True):
            calls += theirs.example.attempts
            if (theirs.example, theirs.state) != (mine.example, mine.state):
                differences.append(f"{split} {name} {index}: {theirs.example} {mine.example}")
            seconds[name.split("/")[0]][0] += theirs.seconds
            seconds[name.split("/")[0]][1] += mine.seconds
    totals = [sum(pair[side] for pair in seconds.values()) for side in (0, 1)]
    rows = count * len(NAMES)
    return {
        "seed": seed,
        "split": split,
        "start": start,
        "per_combination": count,
        "rows_compared": rows,
        "draws_compared": calls,
        "differences": differences,
        "python": platform.python_version(),
        "generator": official.identity(),
        "upstream_rows_per_second": round(rows / totals[0], 1),
        "rows_per_second": round(rows / totals[1], 1),
        "times_upstream": round(totals[0] / totals[1], 2),
        "milliseconds_by_module": {
            name: [round(1e3 * side / (3 * count), 3) for side in pair]
            for name, pair in seconds.items()
        },
    }


class Timed(NamedTuple):
    example: Draw
    state: str
    seconds: float


def drawn(
    generator: official.Generator, seed: int, split: Split, combination: int, indices: range
) -> list[Timed]:
    draw(seed, split, combination, indices.stop, generator)  # imports and caches
    found = []
    for index in indices:
        began = time.process_time()
        example = draw(seed, split, combination, index, generator)
        spent = time.process_time() - began
        found.append(Timed(example, state(generator), spent))
    return found


def state(generator: official.Generator) -> str:
    """What the next draws depend on."""
    python = repr(generator.random.getstate()[1])
    numpy = generator.numpy_random.get_state(legacy=False)["state"]
    return hashlib.sha256(f"{python}{numpy['pos']}".encode() + numpy["key"].tobytes()).hexdigest()


def scaling(count: int) -> float:
    """Wall time of one worker over that of two, on the same units."""
    one, two = (wall_time(workers, count) for workers in (1, 2))
    return one / two


def wall_time(workers: int, count: int) -> float:
    units = [unit(index) for index in range(count)]
    warm = [unit(count + index) for index in range(4 * workers)]
    with tempfile.TemporaryDirectory() as folder, ProcessRunner(workers) as runner:
        job = Job(open_store(folder), runner)
        job.run(DRAW, warm)
        return wall(lambda: job.run(DRAW, units))


def unit(index: int) -> Unit:
    args = DrawArgs(official.identity(), 9, "default", "train", index, index + 1)
    return DRAW.unit(str(index), args)


def wall(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def print_table(report: dict[str, Any]) -> None:
    print(f"{'module':40} {'upstream ms':>12} {'ours ms':>10} {'times':>7}")
    for name, (theirs, ours) in sorted(report["milliseconds_by_module"].items()):
        print(f"{name:40} {theirs:12.2f} {ours:10.2f} {theirs / ours:7.1f}")
    print(
        f"all: {report['upstream_rows_per_second']:.0f} → {report['rows_per_second']:.0f} rows/s "
        f"per core, {report['times_upstream']:.1f} times upstream; "
        f"{report['rows_compared']:,} rows from {report['draws_compared']:,} draws compared, "
        f"{len(report['differences'])} different"
    )


if __name__ == "__main__":
    sys.exit(main())
