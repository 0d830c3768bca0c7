"""The same files whatever the machine is set to, whatever its clock says, without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import fault_toy
import pytest
from trees import hashes

from tangobench.pipeline import api
from tangobench.pipeline.core.pool import ProcessRunner

from .conftest import fast_sample, slow_sample

pytestmark = pytest.mark.faults
SUPPORT = Path(fault_toy.__file__).parent

SETTINGS = {
    "plain": {},
    "hash seed 1, New York, C locale": {
        "PYTHONHASHSEED": "1",
        "TZ": "America/New_York",
        "LC_ALL": "C",
    },
    "hash seed 2, Kiritimati, UTF-8": {
        "PYTHONHASHSEED": "2",
        "TZ": "Pacific/Kiritimati",
        "LC_ALL": "C.UTF-8",
    },
    "other HOME and TMPDIR, unoptimised": {"HOME": "HERE", "TMPDIR": "HERE", "PYTHONDEVMODE": "1"},
    "optimised, no byte code": {"PYTHONOPTIMIZE": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    "50 years earlier": {"CLOCK": "early"},
    "four threads": {"OMP_NUM_THREADS": "4", "POLARS_MAX_THREADS": "4", "RAYON_NUM_THREADS": "4"},
}


# Loaded by every interpreter before anything else: a clock 50 years off, and no way out.
OFFLINE_50_YEARS_LATER = """
import os, socket, time
real, off = time.time, 50 * 365.25 * 86400
off = -off if os.environ.get("CLOCK") == "early" else off
time.time = lambda: real() + off
time.time_ns = lambda: int((real() + off) * 1e9)
class Closed(socket.socket):
    def connect(self, address):
        if self.family != socket.AF_UNIX:
            raise RuntimeError(f"a sample build opened a socket to {address}")
        return super().connect(address)
    connect_ex = connect
socket.socket = Closed
def refuse(*arguments, **options):
    raise RuntimeError(f"a sample build looked up {arguments}")
socket.getaddrinfo = socket.gethostbyname = refuse
"""


def build_under(
    dataset: str, place: Path, settings: dict[str, str], workers: int, umask: int
) -> dict[str, str]:
    """Hashes of a sample built by the program with these settings, from a folder of its own.

    The kernel forbids it internet sockets, and with one worker every socket: see `sealed`.
    """
    here = place / "cwd"
    here.mkdir(parents=True)
    (here / "sitecustomize.py").write_text(OFFLINE_50_YEARS_LATER)
    options = ["--out", "../out", "--workers", str(workers), "--quiet"]
    replaced = {k: str(here) if v == "HERE" else v for k, v in settings.items()}
    done = subprocess.run(
        [sys.executable, *(SUPPORT / n for n in ("sealed.py", "toy_cli.py")), "build", dataset,
         *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(here),
             "SEALED": "all" if workers == 1 else "internet", **replaced},
        cwd=here,
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return hashes(place / "out" / f"{dataset}-sample")


@pytest.mark.parametrize(
    "name",
    # Without stored byte code every library is compiled again: minutes on a busy machine.
    [pytest.param(n, marks=pytest.mark.slow if "byte code" in n else ()) for n in SETTINGS],
)
def test_settings_of_the_machine_change_no_byte(tmp_path, toy_original, name):
    umask = 0o077 if "seed" in name else 0o022
    found = build_under("toy", tmp_path, SETTINGS[name], 1, umask)
    assert found == hashes(toy_original)


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_change_no_byte(toy, tmp_path, toy_original, workers):
    with ProcessRunner(workers) as runner:
        assert hashes(api.run(toy.request(tmp_path), runner).folder) == hashes(toy_original)


def test_the_clock_is_off_and_sockets_are_closed(tmp_path):
    """The lock on the door is locked: else the tests here would prove less than they say."""
    (tmp_path / "sitecustomize.py").write_text(OFFLINE_50_YEARS_LATER)
    script = "import socket, time; print(time.time()); socket.create_connection(('127.0.0.1', 9))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert float(done.stdout) > time.time() + 49 * 365 * 86400
    assert "a sample build looked up" in done.stderr


@fast_sample
def test_each_sample_with_another_hash_seed_zone_locale_and_umask(sample, tmp_path, dataset):
    expected = hashes(sample(dataset) / f"{dataset}-sample")
    settings = SETTINGS["hash seed 1, New York, C locale"]
    assert build_under(dataset, tmp_path, settings, 1, 0o077) == expected


# The toy meets every setting alone, each sample meets them in two lots.
LOTS = {
    "seed 1, New York, C, other folders": (2, {**SETTINGS["hash seed 1, New York, C locale"],
        **SETTINGS["other HOME and TMPDIR, unoptimised"]}),
    "seed 2, Kiritimati, early, threads": (4, {**SETTINGS["hash seed 2, Kiritimati, UTF-8"],
        **SETTINGS["50 years earlier"], **SETTINGS["four threads"]}),
}  # fmt: skip


@slow_sample
@pytest.mark.parametrize("name", LOTS)
def test_each_sample_under_all_settings(sample, tmp_path, dataset, name):
    expected = hashes(sample(dataset) / f"{dataset}-sample")
    workers, settings = LOTS[name]
    assert build_under(dataset, tmp_path, settings, workers, 0o027) == expected


@pytest.mark.slow
@pytest.mark.xdist_group("sample-lean")
def test_a_sample_optimised_and_without_byte_code(sample, tmp_path):
    """One sample: every library is compiled again."""
    expected = hashes(sample("lean") / "lean-sample")
    settings = SETTINGS["optimised, no byte code"]
    assert build_under("lean", tmp_path, settings, 1, 0o027) == expected


FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))


@slow_sample
@pytest.mark.skipif(not FAKETIME, reason="needs libfaketime: apt-get install faketime")
@pytest.mark.parametrize("clock", ["-50y", "+50y", "2038-01-19 03:14:05"])
def test_each_sample_with_a_clock_that_every_library_sees(sample, tmp_path, dataset, clock):
    """Also the clock of native code, and one that runs over the end of 32-bit seconds."""
    done = subprocess.run(
        [sys.executable, "-m", "tangobench", "build", dataset, "--out", tmp_path, "--quiet"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "LD_PRELOAD": str(FAKETIME[0]),
             "FAKETIME": clock, "FAKETIME_DONT_FAKE_MONOTONIC": "1"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    began = json.loads((tmp_path / f"{dataset}-sample" / "run.json").read_text())["began"]
    assert began[:4] != time.strftime("%Y")  # the clock really was another
    assert hashes(tmp_path / f"{dataset}-sample") == hashes(sample(dataset) / f"{dataset}-sample")
