"""Places and processes to harm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import fault_toy
import pytest
from samples import each_sample

SUPPORT = Path(fault_toy.__file__).parent
slow_sample = each_sample(pytest.mark.faults, pytest.mark.slow)
fast_sample = each_sample(pytest.mark.faults)


@pytest.fixture
def memory_folder(tmp_path):
    """A folder in memory where there is one: crash points are about order, not about disks."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="tangobench-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 kB; needs root."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("only root can mount a small disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def start():
    """Starts the program in a process group of its own; kills what is left of it at the end."""
    running: list[subprocess.Popen] = []

    def starting(*words: object, **environment: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, str(SUPPORT / "toy_cli.py"), *map(str, words)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(process)
        return process

    yield starting
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()
