"""Die before the k-th file-system operation, for every k; then resume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import fault_toy
import pytest

from .conftest import fast_sample, slow_sample

DRIVER = Path(fault_toy.__file__).with_name("crash_driver.py")
pytestmark = pytest.mark.faults


def drive(*words: object) -> dict:
    done = subprocess.run(
        [sys.executable, str(DRIVER), *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "points", [pytest.param("40", id="some"), pytest.param("all", marks=pytest.mark.slow)]
)
def test_no_crash_point_of_a_build_loses_or_leaves_anything(memory_folder, points, record_property):
    found = drive("toy", memory_folder, "--points", points)
    record_property("faults", found["tried"])
    assert found["wrong"] == []
    assert found["tried"] >= 40
    assert found["operations"] > 200


@pytest.mark.parametrize("naive", ["in-place", "lock-first", "trusting"])
def test_the_harness_catches_naive_builders(memory_folder, naive):
    """A check that cannot fail is none: writers as people write them must not pass."""
    points = "16" if naive == "trusting" else "8"
    found = drive("toy", memory_folder, "--points", points, "--naive", naive)
    says = {
        "in-place": "under its final name but not final",
        "lock-first": "there is a lock but",
        "trusting": "the resumed build",
    }[naive]
    assert any(says in line for line in found["wrong"])


@fast_sample
def test_some_crash_points_of_each_sample(memory_folder, sample, dataset):
    memo = sample(dataset) / ".units"
    found = drive(dataset, memory_folder, "--points", "4", "--memo", memo)
    assert found["wrong"] == []


@slow_sample
@pytest.mark.timeout(1500)
def test_every_kind_of_crash_point_of_each_sample(memory_folder, sample, dataset, record_property):
    """The first, a middle and the last operation of each kind; the toy dies before every one."""
    memo = sample(dataset) / ".units"
    found = drive(dataset, memory_folder, "--points", "3-per-kind", "--memo", memo)
    record_property("faults", found["tried"])
    assert found["wrong"] == []
    assert 60 < found["tried"] < found["operations"]
