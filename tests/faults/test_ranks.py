"""Training with several gloo ranks, each harmed at each step: typed ends, then the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import fault_toy
import pytest

DRIVER = Path(fault_toy.__file__).with_name("rank_driver.py")
pytestmark = [pytest.mark.faults, pytest.mark.timeout(1500)]
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory, make_toy_math):
    folder = tmp_path_factory.mktemp("data")
    make_toy_math(folder)
    return folder


@pytest.fixture
def drive(data, memory_folder, record_property):
    """Runs the driver: nothing may be wrong; gives the number of cases."""

    def driving(how: str, size: int, share: str = "0/1") -> int:
        done = subprocess.run(
            [sys.executable, str(DRIVER), how, str(data), str(memory_folder), str(size), share],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        assert found["wrong"] == [], done.stderr
        record_property("faults", found["tried"])
        return found["tried"]

    return driving


@pytest.mark.parametrize(
    ("size", "share", "cases"),
    [
        pytest.param(2, "13/16", 1, id="2-one"),
        pytest.param(2, "0/1", 16, id="2-every", marks=slow),
        pytest.param(3, "0/3", 8, id="3-third", marks=slow),
    ],
)
def test_any_rank_killed_at_any_step(drive, size, share, cases):
    """The others end as `rank-lost`; the same command reaches the bits of a quiet run."""
    assert drive("kill", size, share) == cases


@slow
@pytest.mark.parametrize(("size", "cases"), [(2, 6), (3, 8)])
def test_sigterm_of_any_rank_stops_all_with_one_checkpoint(drive, size, cases):
    assert drive("term", size, "0/3") == cases


@slow
def test_nan_on_one_rank_stops_all_before_a_weight_changes(drive):
    assert drive("nan", 2, "0/3") == 6


@slow
def test_a_disk_that_is_full_at_a_checkpoint_stops_all(drive):
    assert drive("full", 2) == 8


@slow
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_checkpoint_of_another_number_of_ranks(drive, size):
    """The same rows in the same order, the same losses up to rounding."""
    assert drive("sizes", size) == 2


@slow
def test_a_folder_that_two_runs_share(drive):
    """The second ends as busy, on every rank; the first reaches the bits of a quiet run."""
    assert drive("shared", 2)
