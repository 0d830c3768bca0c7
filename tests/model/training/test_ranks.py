"""Several processes with gloo on separate disks: they agree before they begin, or all stop."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from tangobench.model.training import checkpoint
from tangobench.model.training.runs import read_metrics

RUN = "sample-dm_math-untied_transformer-s17-101"
WORDS = ("--recipe", "sample-dm_math-untied_transformer", "--checkpoint-every", "3")


def start(folders, *words, told=subprocess.DEVNULL, json=True):
    """One process per folder, as torchrun would on as many machines."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(len(folders)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shown = ("--json", "--quiet") if json else ()
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tangobench", "train", "--out", out, *WORDS, *shown, *words],
            env={**os.environ, **common, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=told, text=True,
        )
        for rank, out in enumerate(folders)
    ]  # fmt: skip


def ended(processes, within):
    deadline = time.monotonic() + within
    return [process.wait(max(1, deadline - time.monotonic())) for process in processes]


@pytest.fixture
def folders(tmp_path, make_toy_math):
    made = [tmp_path / f"disk-{rank}" for rank in range(3)]
    for folder in made:
        folder.mkdir()
        make_toy_math(folder)
    return made


def step_of(folder):
    return checkpoint.load(checkpoint.latest(folder / "runs" / RUN / "checkpoints")).step


def test_ranks_that_begin_elsewhere_stop_all(folders):
    assert ended(start(folders[:2], "--stop-at", "3"), 120) == [0, 0]
    meta = checkpoint.load(checkpoint.latest(folders[0] / "runs" / RUN / "checkpoints")).meta[
        "provenance"
    ]
    assert (meta["world_size"], meta["kernel"], meta["precision"]) == (2, "strips", "fp32")
    assert meta["microbatch"] >= 1
    # Rank 1 has no checkpoint on its own disk: it would begin at 0.
    processes = start(folders[:2])
    assert ended(processes, 60) == [3, 3]
    for process in processes:
        error = json.loads(process.stdout.read().splitlines()[-1])
        assert error["error"] == "ranks-disagree"
        assert "rank 0: step 3" in error["message"] and "rank 1: step 0" in error["message"]
    assert step_of(folders[0]) == 3


def test_only_the_first_rank_prints(folders):
    processes = start(folders[:2], "--stop-at", "1", told=subprocess.PIPE, json=False)
    printed = [process.communicate(timeout=120) for process in processes]
    assert "loss" in printed[0][1] and RUN in printed[0][0]
    assert printed[1] == ("", "")


def test_a_killed_rank_ends_the_others_and_the_command_resumes(folders):
    log = folders[0] / "runs" / RUN / "metrics.jsonl"
    processes = start(folders)
    until = random.Random(5).randrange(4, 9)
    deadline = time.monotonic() + 120
    while not log.is_file() or len(read_metrics(log)) < until:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    processes[2].send_signal(signal.SIGKILL)
    assert all(ended(processes, 60))
    error = json.loads(processes[0].stdout.read().splitlines()[-1])
    assert error["error"] == "rank-lost"
    assert step_of(folders[0]) < 30
    for other in folders[1:]:
        shutil.copytree(folders[0] / "runs", other / "runs", dirs_exist_ok=True)
    assert ended(start(folders), 200) == [0, 0, 0]
    assert step_of(folders[0]) == 30
    assert [row["step"] for row in read_metrics(log)] == list(range(30))


def test_sigterm_saves_a_checkpoint(folders):
    log = folders[0] / "runs" / RUN / "metrics.jsonl"
    processes = start(folders[:1], "--checkpoint-every", "1000")
    deadline = time.monotonic() + 120
    while not log.is_file() or len(read_metrics(log)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    processes[0].send_signal(signal.SIGTERM)
    assert ended(processes, 60) == [130]
    assert 2 <= step_of(folders[0]) < 30
