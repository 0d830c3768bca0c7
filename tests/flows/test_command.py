"""`python -m tangobench.flows` as a process: no API, an API, interruption, exit codes."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tangobench.flows import __main__
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
        output, errors = process.communicate(timeout=240)
        return process.returncode, output, errors


@pytest.fixture
def command(tmp_path):
    return Command(tmp_path)


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def database(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(folder / ".state" / "prefect" / "home" / "prefect.db")


def servers(folder: Path) -> list[psutil.Process]:
    """Servers that record for a folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "tangobench.flows.local.serve" in words and any(str(folder) in w for w in words):
            found.append(process)
    return found


@pytest.mark.xdist_group("prefect")
class TestWithoutAnApi:
    """Recorded in the folder itself, through a server that comes and goes with the commands."""

    @pytest.fixture(scope="class")
    def template(self, tmp_path_factory):
        """A project folder with a fresh database, as `make setup` leaves it."""
        command = Command(tmp_path_factory.mktemp("template"))
        words = [sys.executable, "-m", "tangobench.flows.local.server", "init"]
        subprocess.run(words, cwd=command.folder, env=command.environment, check=True)
        return command.folder

    @pytest.fixture
    def command(self, template, tmp_path):
        shutil.copytree(template / ".state", tmp_path / ".state")
        return Command(tmp_path)

    def test_two_commands_at_once_are_recorded_whole_and_leave_nothing(
        self, command, toy, tmp_path
    ):
        expected = api.build("lean", out=str(tmp_path / "library")).lock.root
        both = [command.start("--workers", "1", "--out", name) for name in ("a", "b")]
        for process in both:
            output, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors
            assert output.splitlines() == [expected]
            assert errors.splitlines()[0].startswith(
                f"flow run recorded in {tmp_path}/.state/prefect"
            )
            assert "Finished in state" not in errors and "prefect" not in errors.split("\n", 1)[1]
        wait_for(lambda: not servers(tmp_path), 20)
        with database(tmp_path) as rows:
            runs = rows.execute("select name, state_type, tags from flow_run").fetchall()
            tasks = rows.execute("select name, state_type from task_run order by name").fetchall()
            artifacts = dict(rows.execute("select key, count(*) from artifact group by key"))
            logs = [m for (m,) in rows.execute("select message from log")]
        assert [(name[:12], state) for name, state, _ in runs] == [
            ("lean-sample-", "COMPLETED")
        ] * 2
        assert all("tangobench" in tags for *_, tags in runs)
        assert tasks == [(name, "COMPLETED") for name in ("draw", "draw", "total", "total")]
        assert artifacts["lean-sample-lock"] == artifacts["lean-sample-draw"] == 2
        assert logs.count(f"root {expected}") == 2
        assert any(f"Beginning flow run '{runs[0][0]}'" in m for m in logs)

    def test_a_killed_command_takes_its_server_along_and_is_found_crashed(self, command, tmp_path):
        log = tmp_path / "log"
        process = command.start("--workers", "2", faults={"seconds": 20, "log": str(log)})
        wait_for(lambda: log.exists() and len(log.read_text().split()) >= 2, 120)
        children = psutil.Process(process.pid).children(recursive=True)
        assert servers(tmp_path)
        process.kill()
        process.communicate()
        _, left = psutil.wait_procs(children, timeout=30)
        assert not left and not servers(tmp_path)
        code, _, errors = command.run("--workers", "2")
        assert code == 0, errors
        with database(tmp_path) as rows:
            states = [s for (s,) in rows.execute("select state_type from flow_run")]
        assert sorted(states) == ["COMPLETED", "CRASHED"]

    @pytest.mark.parametrize(
        ("broken", "said"),
        [
            ("database", ""),
            ("folder", ""),
            pytest.param("version", "", marks=[pytest.mark.faults, pytest.mark.slow]),
            pytest.param("server", "did not start in 3 s", marks=pytest.mark.faults),
        ],
    )
    def test_recording_never_costs_a_dataset(self, command, toy, tmp_path, broken, said):
        environment = {}
        if broken == "database":
            (tmp_path / ".state" / "prefect" / "home" / "prefect.db").write_bytes(b"x" * 9000)
        elif broken == "folder":
            shutil.rmtree(tmp_path / ".state")
            (tmp_path / ".state").write_text("a file")
        elif broken == "version":
            with database(tmp_path) as rows:
                rows.execute("update alembic_version set version_num = 'ffffffffffff'")
        else:
            environment["TOY_PATIENCE"] = "3"
        expected = api.build("lean", out=str(tmp_path / "library")).lock.root
        code, output, errors = command.run("--workers", "2", **environment)
        assert code == 0, errors
        assert output.splitlines() == [expected]
        (loud,) = [line for line in errors.splitlines() if line.startswith("RUN NOT RECORDED")]
        assert said in loud
        assert "Traceback" not in errors
        assert not servers(tmp_path)

    @pytest.mark.faults
    @pytest.mark.slow
    def test_a_locked_database_is_waited_for_or_costs_the_record_only(self, command, toy, tmp_path):
        expected = api.build("lean", out=str(tmp_path / "library")).lock.root
        holder = database(tmp_path)
        holder.isolation_level = None
        holder.execute("begin exclusive")
        try:
            code, output, errors = command.run("--workers", "2")
        finally:
            holder.execute("rollback")
            holder.close()
        assert code == 0, errors
        assert output.splitlines() == [expected] and "Traceback" not in errors
        assert errors.count("RUN NOT RECORDED") == 1
        assert not servers(tmp_path)

    @pytest.mark.faults
    @pytest.mark.slow
    def test_a_killed_server_costs_the_record_only(self, command, toy, tmp_path):
        expected = api.build("lean", out=str(tmp_path / "library")).lock.root
        log = tmp_path / "log"
        process = command.start("--workers", "1", faults={"seconds": 0.5, "log": str(log)})
        wait_for(lambda: log.exists() and len(log.read_text().split()) >= 3, 120)
        for server in servers(tmp_path):
            server.kill()
        output, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
        assert output.splitlines() == [expected]
        assert errors.count("RUN NOT RECORDED") == 1, errors


@pytest.mark.parametrize("words", [["--profile", "huge"], ["--set", "no_such=1"], ["--workers=0"]])
def test_a_wrong_option_is_one_line_and_starts_nothing(words, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tangobench.flows", "lean", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2 and "usage:" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "faults", "code", "said"),
    [
        pytest.param(["--runner", "dask"], {}, 2, "--address", id="dask without address"),
    ],
)
def test_exit_codes_are_those_of_the_program(command, words, faults, code, said):
    found, _, errors = command.run(*words, faults=faults)
    assert (found, said in errors) == (code, True), errors


def test_an_api_that_does_not_answer_is_one_clear_error(command):
    code, _, errors = command.run(PREFECT_API_URL="http://127.0.0.1:9/api")
    assert code == 2
    assert "no Prefect API answers at http://127.0.0.1:9/api" in errors
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

    @pytest.mark.parametrize(
        "sent",
        [
            pytest.param(signal.SIGINT, id="ctrl-c"),
            pytest.param(
                signal.SIGTERM, id="sigterm", marks=[pytest.mark.faults, pytest.mark.slow]
            ),
        ],
    )
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


def test_each_dataset_has_a_time_of_its_own(monkeypatch):
    began = []
    monkeypatch.setattr(__main__, "recorded", lambda place, say: contextlib.nullcontext())
    monkeypatch.setattr(__main__.data, "build", lambda one, run: began.append(one.began))
    monkeypatch.setattr(time, "monotonic", itertools.count(100).__next__)
    assert __main__.main(["lean", "dm_math"]) == 0
    assert began[1] > began[0] > 100
