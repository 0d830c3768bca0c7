"""What attackers start from: built samples, a finished run, and the program to attack.

Set TANGOBENCH_PYTHON to the interpreter of another installation to attack that one, and
TANGOBENCH_OUT to an OUT of its making: the three samples and a finished, scored `tiny_run`.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import training

from tangobench.cli import main

PYTHON = os.environ.get("TANGOBENCH_PYTHON")
MADE = os.environ.get("TANGOBENCH_OUT")


@pytest.fixture
def attacked(capfdbinary):
    """Runs `tangobench`: an attack ends in time, with the expected code and no traceback."""

    def run(*words: object, code: int, seconds: int = 60) -> str:
        call = elsewhere if PYTHON else here
        found, said = call(list(map(str, words)), seconds, capfdbinary)
        assert "Traceback" not in said, said
        assert found == code, said
        return said

    return run


def here(words: list[str], seconds: int, capture) -> tuple[int, str]:
    """The program in this process; a call that blocks is interrupted."""

    def late(*_: object) -> None:
        raise AssertionError(f"still running after {seconds} s: {words}")

    capture.readouterr()
    before = signal.signal(signal.SIGALRM, late), signal.getsignal(signal.SIGTERM)
    signal.alarm(seconds)
    try:
        found = main(words)
    finally:
        signal.alarm(0)
        for number, handler in zip((signal.SIGALRM, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
        gc.unfreeze()
    out, err = capture.readouterr()
    return found, (out + err).decode(errors="replace")


def elsewhere(words: list[str], seconds: int, _capture) -> tuple[int, str]:
    """The program of the other installation."""
    done = subprocess.run(
        [str(PYTHON), "-m", "tangobench", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=seconds,
    )
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


@pytest.fixture
def made(sample):
    """Copies a built sample into a folder."""

    def copied(name: str, folder: Path) -> Path:
        place = Path(MADE) if MADE else sample(name)
        return Path(shutil.copytree(place / f"{name}-sample", folder / f"{name}-sample"))

    return copied


@pytest.fixture
def math(made, tmp_path) -> Path:
    """A copy of the DeepMind Mathematics sample."""
    return made("dm_math", tmp_path)


@pytest.fixture
def lean(made, tmp_path) -> Path:
    """A copy of the Lean sample."""
    return made("lean", tmp_path)


@pytest.fixture
def fineweb(made, tmp_path) -> Path:
    """A copy of the FineWeb-Edu sample."""
    return made("fineweb", tmp_path)


@pytest.fixture(scope="session")
def trained(sample, tmp_path_factory) -> Path:
    """An OUT with the mathematics sample and a finished, scored tiny run on it."""
    if MADE:
        return Path(MADE)
    from tangobench.eval.scoring.results import evaluate
    from tangobench.model.training.train import train

    out = tmp_path_factory.mktemp("trained")
    shutil.copytree(sample("dm_math") / "dm_math-sample", out / "dm_math-sample")
    evaluate(train(training.tiny_run(), training.options(out)))
    return out


@pytest.fixture
def out(trained, tmp_path) -> Path:
    """A copy of that OUT."""
    return Path(shutil.copytree(trained, tmp_path / "out"))


@pytest.fixture
def run_folder(out) -> Path:
    """The run in it."""
    return next((out / "runs").iterdir())


@pytest.fixture
def checkpoint(run_folder) -> Path:
    """Its last checkpoint."""
    return max((run_folder / "checkpoints").glob("*.json"))
