"""Real runs on four CPU "devices": the launcher killed, a run killed, a run that fails."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tangobench.model.training.runs import read_metrics

pytestmark = pytest.mark.faults

PAIRS = ("s17-101", "s23-103", "s41-107")
RUNS = [f"sample-dm_math-untied_transformer-{pair}" for pair in PAIRS]
BROKEN = RUNS[2]


def start(out):
    words = ["replicate", "--devices", "cpu,cpu,cpu,cpu", "--out", str(out), "--json"]
    words += ["--only", "sample-dm_math-untied*"]
    return subprocess.Popen(
        [sys.executable, "-m", "tangobench", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def trainers(out):
    """Processes that train into a folder, by run: each holds its run's lock."""
    found = {}
    for path in (out / "runs").glob("*/.lock"):
        with path.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                found[path.parent.name] = int(lock.read() or 0)
    return {run: number for run, number in found.items() if number}


def steps(out, run):
    path = out / "runs" / run / "metrics.jsonl"
    return len(read_metrics(path)) if path.is_file() else 0


def until(condition, seconds=200):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_nothing_is_trained_twice(tmp_path, make_toy_math):
    make_toy_math(tmp_path)
    broken = tmp_path / "runs" / BROKEN
    broken.parent.mkdir()
    broken.write_text("not a folder")
    launcher = start(tmp_path)
    victim = until(lambda: [run for run in trainers(tmp_path) if steps(tmp_path, run) > 2])[0]
    os.kill(trainers(tmp_path)[victim], signal.SIGKILL)
    until(lambda: sum(steps(tmp_path, run) > 4 for run in RUNS) >= 1)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    until(lambda: not trainers(tmp_path), 60)
    second = start(tmp_path)
    states = json.loads(second.communicate(timeout=400)[0])["runs"]
    named = {state["run"]: state["name"] for state in states}
    assert named.pop(BROKEN) == "failed" and set(named.values()) == {"done"}
    assert second.returncode != 0
    before = {run: (tmp_path / "results" / f"{run}.json").stat().st_mtime_ns for run in named}
    broken.unlink()
    third = start(tmp_path)
    states = json.loads(third.communicate(timeout=400)[0])["runs"]
    assert third.returncode == 0 and {state["name"] for state in states} == {"done"}
    for run, when in before.items():  # what was finished was not touched
        assert (tmp_path / "results" / f"{run}.json").stat().st_mtime_ns == when
    for run in RUNS:
        rows = read_metrics(tmp_path / "runs" / run / "metrics.jsonl")
        assert [row["step"] for row in rows] == list(range(30))
        log = (tmp_path / "logs" / f"{run}.log").read_text()
        assert not re.search("Traceback", log)
