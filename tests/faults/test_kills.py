"""SIGKILL of the whole process group at seeded times, again and again, on one folder."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from trees import hashes, temporary_files

from tangobench.pipeline.core.shard_reader import verify

from .conftest import slow_sample

pytestmark = pytest.mark.faults
KILLS = 6
WHOLE: dict[str, float] = {}  # seconds of a build that nobody disturbs, by dataset


def kill_after(process: subprocess.Popen, seconds: float) -> bool:
    """True if it was still running and is now dead."""
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return True


def let_through(start, words: list) -> float:
    """Seconds of a build that nobody disturbs."""
    began = time.monotonic()
    last = start(*words)
    out, err = last.communicate(timeout=280)
    assert last.returncode == 0, out + err
    return time.monotonic() - began


def records(store: Path) -> dict[str, tuple[int, int]]:
    """Each finished unit: which file its record is, and when it was written."""
    found = [(path, path.stat()) for path in (store / "records").rglob("*.json")]
    return {path.name: (s.st_ino, s.st_mtime_ns) for path, s in found}


def kill_often(start, words: list, out: Path, kills: int, rng: random.Random, whole: float) -> int:
    """Kill `kills` builds that are under way; how many finished before they could be killed.

    A unit that was recorded before a kill must still have that very record at the end: it was not
    done again. So a kill costs at most the units under way, one per worker.
    """
    finished = killed = 0
    while killed < kills:
        before = records(out / ".units")
        if not kill_after(start(*words), rng.uniform(0.15, 0.95) * whole):
            finished += 1
        else:
            killed += 1
        after = records(out / ".units")
        assert {name: after.get(name) for name in before} == before
        if killed < kills and (any(out.glob("*/manifest.lock.json")) or finished > killed):
            shutil.rmtree(out, ignore_errors=True)  # nothing more to lose: from the beginning
    before = records(out / ".units")
    let_through(start, words)
    after = records(out / ".units")
    assert {name: after.get(name) for name in before} == before
    return finished


def test_a_build_killed_at_random_times_gives_the_same_files(start, tmp_path, toy_original):
    log = tmp_path / "log"
    out = tmp_path / "out"
    words = ["build", "toy", "--out", out, "--workers", 2, "--set", "units=3"]

    def slowly(*words: object) -> subprocess.Popen:
        return start(*words, TOY_SECONDS="1.0", TOY_LOG=str(log))

    rng = random.Random(1)
    killed = sum(kill_after(slowly(*words), rng.uniform(0.3, 1.8)) for _ in range(6))
    assert killed >= 2
    let_through(slowly, words)
    folder = out / "toy-sample"
    verify(folder)
    assert hashes(folder) == hashes(toy_original)
    assert not temporary_files(out)
    # Three units; a kill costs at most one unit per worker.
    assert len(log.read_text().split()) <= 3 + 2 * killed


@slow_sample
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", range(2))
def test_each_sample_killed_again_and_again(
    start, tmp_path, sample, dataset, seed, record_property
):
    """Each kill meets what the kills before left."""
    record_property("faults", KILLS)
    original = sample(dataset) / f"{dataset}-sample"
    out = tmp_path / "out"
    words = ["build", dataset, "--out", out, "--workers", 2, "--quiet"]
    if dataset not in WHOLE:
        WHOLE[dataset] = let_through(start, [*words[:3], tmp_path / "whole", *words[4:]])
    kill_often(start, words, out, KILLS, random.Random(seed), WHOLE[dataset])
    assert hashes(out / original.name) == hashes(original)
    assert not temporary_files(out)


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
    let_through(start, words)
    assert hashes(tmp_path / "out" / "toy-sample") == hashes(toy_original)
    assert not temporary_files(tmp_path / "out")
