"""`python -m tangobench.flows` as a process: no API, an API, interruption, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tangobench.pipeline import api

HERE = Path(__file__).parent


class Command:
    """The command in an empty folder, with a clean Prefect configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")
        }
        self.environment |= {"PREFECT_HOME": str(folder / "home"), "PYTHONPATH": str(HERE)}

    def start(self, *words: str, faults: dict | None = None, **environment: str):
        return subprocess.Popen(
            [sys.executable, str(HERE / "toy_run.py"), "lean", *words],
            cwd=self.folder,
            env={**self.environment, **environment, "TOY_FAULTS": json.dumps(faults or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, **options):
        process = self.start(*words, **options)
        output, errors = process.communicate(timeout=120)
        return process.returncode, output, errors


@pytest.fixture
def command(tmp_path):
    return Command(tmp_path)


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def test_without_an_api_it_builds_here_says_so_and_leaves_nothing(command, toy, tmp_path):
    expected = api.build("lean", out=str(tmp_path / "library")).lock.root
    code, output, errors = command.run("--workers", "2")
    assert code == 0, errors
    assert output.splitlines()[-1] == expected
    assert "no Prefect API is configured: building in this process" in errors
    assert not (tmp_path / "home").exists()  # Prefect was not even imported


def test_the_first_unit_starts_without_waiting_for_prefect(command, tmp_path):
    log = tmp_path / "log"
    process = command.start("--workers", "1", faults={"seconds": 5, "log": str(log)})
    try:
        began = time.monotonic()
        wait_for(log.exists)
        # 3 s is the promise on an idle machine; Prefect's own server would take 18 to 34.
        assert time.monotonic() - began < 9
        assert not any(
            child.name() == "prefect" for child in psutil.Process(process.pid).children()
        )
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_an_interrupted_build_ends_soon_resumes_and_leaves_no_process(command, sent, tmp_path):
    log = tmp_path / "log"
    process = command.start("--workers", "2", faults={"seconds": 0.3, "log": str(log)})
    wait_for(lambda: log.exists() and len(log.read_text().split()) >= 4)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(sent)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "the same command resumes" in errors
    _, left = psutil.wait_procs(children, timeout=5)
    assert not left
    done_before = len(list((tmp_path / "out" / ".units" / "records").rglob("*.json")))
    assert done_before >= 1
    code, _, errors = command.run("--workers", "2")
    assert code == 0
    assert f"{done_before} kept from before" in errors


def test_a_killed_build_leaves_no_workers(command, tmp_path):
    log = tmp_path / "log"
    process = command.start("--workers", "2", faults={"seconds": 20, "log": str(log)})
    wait_for(lambda: log.exists() and len(log.read_text().split()) >= 2)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    _, left = psutil.wait_procs(children, timeout=10)
    assert not left


@pytest.mark.parametrize(
    ("words", "faults", "code", "said"),
    [
        pytest.param([], {"bad": 7}, 5, "number 7 is odd", id="bad input"),
        pytest.param(["--workers", "0"], {}, 2, "--workers is 0", id="no workers"),
        pytest.param(["--runner", "dask"], {}, 2, "--address", id="dask without address"),
        pytest.param(["--profile", "huge"], {}, 2, "huge", id="unknown profile"),
    ],
)
def test_exit_codes_are_those_of_the_program(command, words, faults, code, said):
    found, _, errors = command.run(*words, faults=faults)
    assert (found, said in errors) == (code, True), errors


def test_an_api_that_does_not_answer_is_one_clear_error(command):
    code, _, errors = command.run(PREFECT_API_URL="http://127.0.0.1:9/api")
    assert code == 2
    assert "http://127.0.0.1:9/api does not answer" in errors
    assert "Traceback" not in errors


@pytest.mark.prefect
@pytest.mark.xdist_group("prefect")
class TestWithAnApi:
    @pytest.fixture
    def url(self, prefect_server):
        from prefect.settings import PREFECT_API_URL

        return PREFECT_API_URL.value()

    def test_the_run_appears_there_with_the_same_root(self, command, url, toy, tmp_path):
        from prefect import get_client

        expected = api.build("lean", out=str(tmp_path / "library")).lock.root
        code, output, errors = command.run("--workers", "2", PREFECT_API_URL=url)
        assert code == 0, errors
        assert output.splitlines()[-1] == expected
        with get_client(sync_client=True) as client:
            newest = client.read_flow_runs(limit=1, sort="START_TIME_DESC")[0]
        assert newest.name.startswith("lean-sample-") and newest.state.is_completed()

    def test_a_failing_run_has_the_programs_exit_code(self, command, url):
        code, _, errors = command.run(faults={"bad": 7}, PREFECT_API_URL=url)
        assert code == 5
        assert "number 7 is odd" in errors

    @pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
    def test_an_interrupted_run_is_crashed_and_leaves_no_process(
        self, command, url, sent, tmp_path
    ):
        from prefect import get_client

        log = tmp_path / "log"
        faults = {"seconds": 0.5, "log": str(log)}
        process = command.start("--workers", "2", faults=faults, PREFECT_API_URL=url)
        wait_for(lambda: log.exists() and len(log.read_text().split()) >= 4)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(sent)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
        _, left = psutil.wait_procs(children, timeout=5)
        assert not left
        with get_client(sync_client=True) as client:
            newest = client.read_flow_runs(limit=1, sort="START_TIME_DESC")[0]
        assert newest.state.is_crashed()
        assert command.run("--workers", "2", PREFECT_API_URL=url)[0] == 0
