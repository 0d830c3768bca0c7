"""One Prefect server for all flow tests, one Dask cluster for all Dask tests, and a toy dataset."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Units are pickled by reference, so worker processes must be able to import the toy.
sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def prefect_server():
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture
def toy(monkeypatch):
    """The toy dataset in the place of lean."""
    import toy_dataset

    from tangobench.pipeline import api

    monkeypatch.setitem(api.DATASETS, "lean", "toy_dataset")
    monkeypatch.setattr(api, "load_spec", lambda cls, name, profile, over=None: cls(**over or {}))
    monkeypatch.setattr(toy_dataset, "FAULTS", {})
    return toy_dataset


class Cluster:
    """A Dask scheduler and workers on loopback, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers: list[subprocess.Popen] = []
        self.environment = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
        self.environment["DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES"] = "10"
        address_file = folder / "scheduler.json"
        self.scheduler = self._start(
            "scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--no-dashboard",
            "--scheduler-file",
            str(address_file),
        )
        deadline = time.monotonic() + 60
        while not address_file.exists():
            assert time.monotonic() < deadline, "the Dask scheduler did not start"
            time.sleep(0.1)
        import json

        self.address: str = json.loads(address_file.read_text())["address"]

    def _start(self, *words: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *words],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "dask.log").open("ab"),
        )

    def add_worker(self, **environment: str) -> subprocess.Popen:
        self.environment.update(environment)
        worker = self._start(
            "worker",
            self.address,
            "--nthreads",
            "1",
            "--no-nanny",
            "--no-dashboard",
            "--host",
            "127.0.0.1",
        )
        self.workers.append(worker)
        return worker

    def stop(self) -> None:
        for process in [*self.workers, self.scheduler]:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def dask_cluster(tmp_path_factory, s3_server):
    cluster = Cluster(tmp_path_factory.mktemp("dask"))
    try:
        cluster.add_worker()
        cluster.add_worker()
        yield cluster
    finally:
        cluster.stop()
