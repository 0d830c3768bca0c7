"""Builds under Prefect and Dask whose driver is killed: same files, no finished unit done again."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from trees import hashes, temporary_files

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.prefect,
    pytest.mark.dask,
    pytest.mark.xdist_group("prefect"),
    pytest.mark.timeout(1500),
]
KILLS = 3  # per sample


def records(store):
    found = [(path, path.stat()) for path in (store / "records").rglob("*.json")]
    return {path.name: (s.st_ino, s.st_mtime_ns) for path, s in found}


def start(dataset, out, words):
    from prefect.settings import PREFECT_API_URL

    command = [sys.executable, "-m", "tangobench.flows", dataset, "--out", str(out), *words]
    address = PREFECT_API_URL.value()
    assert address
    return subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PREFECT_API_URL": address},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def let_through(dataset, out, words):
    began = time.monotonic()
    process = start(dataset, out, words)
    said = process.communicate(timeout=280)[0]
    assert process.returncode == 0, said
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("dataset", "runner"), [("lean", "processes"), ("dm_math", "processes"), ("fineweb", "dask")]
)
def test_a_flow_run_killed_again_and_again(
    dataset, runner, prefect_server, dask_cluster, sample, tmp_path, record_property
):
    record_property("faults", KILLS)
    original = sample(dataset) / f"{dataset}-sample"
    words = ["--workers", "2"]
    if runner == "dask":
        words = ["--runner", "dask", "--address", dask_cluster.address]
    whole = let_through(dataset, tmp_path / "whole", words)
    rng = random.Random(f"{dataset} {runner}")
    out, killed = tmp_path / "out", 0
    while killed < KILLS:
        before = records(out / ".units")
        process = start(dataset, out, words)
        try:
            process.communicate(timeout=rng.uniform(0.4, 0.95) * whole)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            killed += 1
        after = records(out / ".units")
        # Workers of a cluster outlive their driver and finish what they had begun.
        assert {name: after.get(name) for name in before} == before
        if killed < KILLS and any(out.glob("*/manifest.lock.json")):
            shutil.rmtree(out)
    let_through(dataset, out, words)
    assert hashes(out / original.name) == hashes(original)
    assert runner == "dask" or not temporary_files(out)
