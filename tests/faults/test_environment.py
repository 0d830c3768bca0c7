"""The same files whatever the machine is set to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fault_toy
import pytest
from trees import hashes

from tangobench.pipeline import api
from tangobench.pipeline.pool import ProcessRunner

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
    "optimised, no byte code": {"PYTHONOPTIMIZE": "2", "PYTHONDONTWRITEBYTECODE": "1"},
    "four threads": {"OMP_NUM_THREADS": "4", "POLARS_MAX_THREADS": "4", "RAYON_NUM_THREADS": "4"},
}


def build_under(
    dataset: str, place: Path, settings: dict[str, str], workers: int, umask: int
) -> dict[str, str]:
    """Hashes of a sample built by the program with these settings, from a folder of its own."""
    here = place / "cwd"
    here.mkdir(parents=True)
    options = ["--out", "../out", "--workers", str(workers), "--quiet"]
    replaced = {k: str(here) if v == "HERE" else v for k, v in settings.items()}
    done = subprocess.run(
        [sys.executable, SUPPORT / "toy_cli.py", "build", dataset, *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", **replaced},
        cwd=here,
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return hashes(place / "out" / f"{dataset}-sample")


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_machine_change_no_byte(tmp_path, toy_original, name):
    umask = 0o077 if "seed" in name else 0o022
    found = build_under("toy", tmp_path, SETTINGS[name], 1, umask)
    assert found == hashes(toy_original)


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
@pytest.mark.parametrize("workers", [2, 4])
def test_workers_and_start_methods_change_no_byte(toy, tmp_path, toy_original, method, workers):
    with ProcessRunner(workers, method) as runner:
        assert hashes(api.run(toy.request(tmp_path), runner).folder) == hashes(toy_original)


@fast_sample
def test_each_sample_with_another_hash_seed_zone_locale_and_umask(sample, tmp_path, dataset):
    expected = hashes(sample(dataset) / f"{dataset}-sample")
    settings = SETTINGS["hash seed 1, New York, C locale"]
    assert build_under(dataset, tmp_path, settings, 1, 0o077) == expected


@slow_sample
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("name", SETTINGS)
def test_each_sample_under_all_settings(sample, tmp_path, dataset, name, workers):
    expected = hashes(sample(dataset) / f"{dataset}-sample")
    assert build_under(dataset, tmp_path, SETTINGS[name], workers, 0o027) == expected


@slow_sample
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_each_sample_with_other_start_methods(sample, tmp_path, dataset, method):
    with ProcessRunner(2, method) as runner:
        built = api.run(api.Request(name=dataset, out=str(tmp_path)), runner)
    assert hashes(built.folder) == hashes(sample(dataset) / f"{dataset}-sample")
