"""Hard limits: ten times the input, in a memory that the input alone would not fill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import SUPPORT

pytestmark = pytest.mark.faults
BENCH = SUPPORT.parents[1] / "bench" / "memory.py"
# Megabytes of private memory (RLIMIT_DATA: heap, arenas and stacks, used or not). Peaks, measured
# by `make bench-memory`, are a third to a half of it; what grew with the input would not fit.
LIMITS = {"fineweb": 1200, "lean": 1000, "dm_math": 1000, "training": 1200, "verify": 700}


def run(job: str, scale: int, limit: int) -> subprocess.CompletedProcess:
    words = ["--job", job, "--scale", str(scale), "--limit", str(limit)]
    threads = {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(BENCH), *words],
        env={
            **os.environ,
            **threads,
            "MALLOC_ARENA_MAX": "2",
            "ARROW_DEFAULT_MEMORY_POOL": "system",
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("job", LIMITS)
def test_ten_times_the_input_within_a_hard_limit(job):
    done = run(job, 10, LIMITS[job])
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["peak_mb"] < LIMITS[job]


def test_the_limit_is_one_and_is_told():
    """In a memory that is too small the build ends with one error, not with a crash."""
    done = run("fineweb", 1, 1)
    assert done.returncode != 0


def test_the_measured_growth_is_in_the_bounds_that_the_docs_state():
    path = Path(BENCH).parent / "results" / "memory.json"
    measured = json.loads(path.read_text())
    assert set(measured["growth_at_ten_times"]) == set(LIMITS)
    for row in measured["rows"]:
        assert row["peak_mb"] < LIMITS[row["job"]], row
    for job, growth in measured["growth_at_ten_times"].items():
        assert growth < 1.5, f"{job}: {growth} times the memory for ten times the input"
