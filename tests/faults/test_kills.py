"""SIGKILL of the whole process group at seeded times, again and again, on one folder."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time

import pytest
from trees import hashes, temporary_files

from tangobench.pipeline.publish import verify

from .conftest import slow_sample

pytestmark = pytest.mark.faults


def kill_after(process: subprocess.Popen, seconds: float) -> bool:
    """True if it was still running and is now dead."""
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return True


def kill_and_resume(start, words: list, times: list[float]) -> int:
    """How often the build was killed before one was let through."""
    killed = sum(kill_after(start(*words), seconds) for seconds in times)
    last = start(*words)
    out, err = last.communicate(timeout=280)
    assert last.returncode == 0, out + err
    return killed


def test_a_build_killed_at_random_times_gives_the_same_files(start, tmp_path, toy_original):
    rng = random.Random(1)
    log = tmp_path / "log"
    words = ["build", "toy", "--out", tmp_path / "out", "--workers", 2, "--set", "units=3"]
    environment = {"TOY_SECONDS": "1.0", "TOY_LOG": str(log)}
    times = [rng.uniform(0.3, 1.8) for _ in range(6)]
    killed = kill_and_resume(lambda *w: start(*w, **environment), words, times)
    assert killed >= 2
    folder = tmp_path / "out" / "toy-sample"
    verify(folder)
    assert hashes(folder) == hashes(toy_original)
    assert not temporary_files(tmp_path / "out")
    # Three units; a kill costs at most one unit per worker.
    assert len(log.read_text().split()) <= 3 + 2 * killed


@slow_sample
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", [1, 2])
def test_each_sample_killed_25_times(start, tmp_path, sample, dataset, seed):
    """Two seeds of 25: every time on a fresh folder or on what the kills before left."""
    original = sample(dataset) / f"{dataset}-sample"
    rng = random.Random(seed)
    out = tmp_path / "out"
    words = ["build", dataset, "--out", out, "--workers", 2]
    began = time.monotonic()
    kill_and_resume(start, words, [])
    whole = time.monotonic() - began
    killed = kill_and_resume(
        start, [*words[:-4], "--out", tmp_path / "killed", "--workers", 2],
        [rng.uniform(0.2, 0.9 * whole) for _ in range(25)],
    )  # fmt: skip
    assert killed >= 1
    assert hashes(tmp_path / "killed" / original.name) == hashes(original)
    assert not temporary_files(tmp_path / "killed")


def test_kill_of_the_main_process_alone_leaves_no_worker_and_resumes(start, tmp_path, toy_original):
    log = tmp_path / "log"
    words = ["build", "toy", "--out", tmp_path / "out", "--workers", 2]
    process = start(*words, TOY_SECONDS="30", TOY_LOG=str(log))
    deadline = time.monotonic() + 60
    while not log.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.communicate()
    group = process.pid
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("workers outlived the build")
    kill_and_resume(start, words, [])
    assert hashes(tmp_path / "out" / "toy-sample") == hashes(toy_original)
    assert not temporary_files(tmp_path / "out")
