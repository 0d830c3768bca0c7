"""What orchestration costs: the same units through worker processes alone and through Prefect.

- Work is a fixed number of PBKDF2 rounds per unit, so its CPU time is known and steady.
- The cost is counted in CPU seconds of the driver and of the Prefect server beyond the plain run,
  as a share of the work: wall time on a shared machine says more about the neighbours. What the
  server burns when idle is measured first and taken off.
- One server on loopback, SQLite, as `make deploy` starts it.

Usage: `python bench/flows.py [--core-seconds 30]`, writes bench/results/flows.json.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from prefect import flow
from prefect.testing.utilities import prefect_test_harness

from tangobench.flows._run import Staged
from tangobench.pipeline.core.build import Runner
from tangobench.pipeline.core.hashing import case_json
from tangobench.pipeline.core.pool import make_runner

WORKERS = 2
HERE = Path(__file__).parent
work = functools.partial(hashlib.pbkdf2_hmac, "sha256", b"password", b"salt")


def rounds_for(seconds: float) -> int:
    """PBKDF2 rounds that take `seconds` of CPU on this machine."""
    began = time.process_time()
    work(200_000)
    return max(1, int(200_000 * seconds / (time.process_time() - began)))


def server_process() -> psutil.Process | None:
    for child in psutil.Process().children(recursive=True):
        if "uvicorn" in " ".join(child.cmdline()) or "prefect.server" in " ".join(child.cmdline()):
            return child
    return None


def cpu(process: psutil.Process | None) -> float:
    if process is None:
        return 0.0
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def counted(into: dict[str, float]) -> Iterator[None]:
    server = server_process()
    own, other, wall = time.process_time(), cpu(server), time.monotonic()
    yield
    into |= {
        "driver_cpu": round(time.process_time() - own, 3),
        "server_cpu": round(cpu(server) - other, 3),
        "wall": round(time.monotonic() - wall, 3),
    }


def idle_rate(seconds: float = 8.0) -> float:
    """CPU seconds per second that the server takes for itself."""
    server = server_process()
    before = cpu(server)
    time.sleep(seconds)
    return (cpu(server) - before) / seconds


def run(make: Callable[[], Runner], rounds: int, units: int) -> dict[str, float]:
    found: dict[str, float] = {}
    runner = make()
    try:
        labels = [f"hash: unit {i}" for i in range(units)]
        list(runner.map(work, [1] * WORKERS, labels[:WORKERS]))  # start workers
        with counted(found):
            list(runner.map(work, [rounds] * units, labels))
    finally:
        runner.close()
    return found


@flow(name="bench-units")
def through_prefect(rounds: int, units: int) -> dict[str, float]:
    return run(lambda: Staged(make_runner(WORKERS)), rounds, units)


def compare(unit_seconds: float, core_seconds: float) -> dict[str, Any]:
    idle = idle_rate()
    units, rounds = max(WORKERS, int(core_seconds / unit_seconds)), rounds_for(unit_seconds)
    plain = run(lambda: make_runner(WORKERS), rounds, units)
    flown: dict[str, float] = through_prefect(rounds, units)
    flown["server_idle_cpu"] = round(idle * flown["wall"], 3)
    server = max(0.0, flown["server_cpu"] - flown["server_idle_cpu"])
    extra = flown["driver_cpu"] + server - plain["driver_cpu"]
    return {
        "unit_seconds": unit_seconds,
        "units": units,
        "work_core_seconds": core_seconds,
        "processes": plain,
        "prefect": flown,
        "cpu_seconds_of_orchestration": round(extra, 4),
        "overhead_share_of_work": round(extra / core_seconds, 4),
        "wall_ratio": round(flown["wall"] / plain["wall"], 3),
    }


def table_row(case: dict[str, Any]) -> dict[str, Any]:
    """A case as a line of the report's table: CPU with Prefect over CPU without."""
    work = case["work_core_seconds"]
    return {
        "job": "Orchestration by Prefect, CPU",
        "peer": f"worker processes alone, {case['units']:,} units of {case['unit_seconds']:g} s",
        "ratio": round(1 + case["overhead_share_of_work"], 4),
        "aim": "at most 1.05",
        "ours": f"{work * (1 + case['overhead_share_of_work']):.1f} core-seconds",
        "theirs": f"{work:.1f} core-seconds",
        "command": "make bench-flows",
        "versions": {"prefect": metadata.version("prefect")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--core-seconds", type=float, default=30.0)
    args = parser.parse_args()
    with prefect_test_harness(server_startup_timeout=120):
        cases = [compare(seconds, args.core_seconds) for seconds in (0.01, 0.5)]
    result = {"workers": WORKERS, "load_at_end": os.getloadavg()[0], "cases": cases}
    result["rows"] = [table_row(case) for case in cases]
    path = HERE / "results" / "flows.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(case_json(result), encoding="utf-8")
    for row in cases:
        print(
            f"{row['units']:>6,} units of {row['unit_seconds']:g} s: orchestration "
            f"{row['cpu_seconds_of_orchestration']:.2f} s, {row['overhead_share_of_work']:.1%} of "
            f"the work, wall {row['wall_ratio']:.2f}x"
        )


if __name__ == "__main__":
    main()
