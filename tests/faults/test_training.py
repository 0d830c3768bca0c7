"""Training that is killed between and during checkpoints: bit-identical weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import fault_toy
import pytest

DRIVER = Path(fault_toy.__file__).with_name("train_driver.py")
pytestmark = [pytest.mark.faults, pytest.mark.timeout(1500)]


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


@pytest.fixture(scope="module")
def data(tmp_path_factory, make_toy_math):
    folder = tmp_path_factory.mktemp("data")
    make_toy_math(folder)
    return folder


@pytest.mark.parametrize(
    "shares", [pytest.param(40, id="some"), pytest.param(1, id="every", marks=pytest.mark.slow)]
)
def test_training_dies_before_any_operation_and_reaches_the_same_bits(
    data, memory_folder, shares, record_property
):
    """Operations are those of checkpoints, of the log and of the lock: also *during* a save."""
    found = drive("crash", data, memory_folder, f"0/{shares}")
    record_property("faults", found["tried"])
    assert found["wrong"] == []
    assert found["operations"] > 40
    assert found["tried"] == len(range(0, found["operations"], shares))


@pytest.mark.parametrize(
    "count", [pytest.param(2, id="2"), pytest.param(20, id="20", marks=pytest.mark.slow)]
)
def test_training_killed_at_random_times_reaches_the_same_bits(
    data, memory_folder, count, record_property
):
    """Every kill loses at most the steps since the last checkpoint."""
    found = drive("kill", data, memory_folder, count, 5)
    record_property("faults", count)
    assert found["wrong"] == []
    assert found["killed"] == count
