"""`make deploy` to `make undeploy`, with real server, worker, browserless `prefect` commands."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from deployed import Project

from tangobench.flows import _api

pytestmark = [pytest.mark.prefect, pytest.mark.xdist_group("prefect"), pytest.mark.timeout(600)]


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


def lines(path: Path) -> int:
    return len(path.read_text().split()) if path.exists() else 0


def listening(processes) -> list[str]:
    return [
        connection.laddr.ip
        for process in processes
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]


def test_the_users_words_start_a_run_that_ends_with_the_library_root(project, toy, tmp_path):
    from tangobench.pipeline import api

    expected = api.build("lean", out=str(tmp_path / "library")).lock.root
    addresses = listening(project.processes())
    assert addresses and set(addresses) == {"127.0.0.1"}
    done = project.deployment_run("build-lean", "--watch")
    assert done.returncode == 0, done.stdout + done.stderr
    assert expected in done.stdout.replace("\n", "")
    assert "draw: 12 units" in done.stdout
    assert (project.folder / "out" / "lean-sample" / "manifest.lock.json").exists()


@pytest.mark.slow
def test_overrides_of_a_deployment_give_the_library_root(project, toy, tmp_path):
    from tangobench.pipeline import api

    fewer = {"units": 5}
    expected = api.build("lean", out=str(tmp_path / "library"), overrides=fewer).lock.root
    assert expected != api.build("lean", out=str(tmp_path / "whole")).lock.root
    words = ("-p", f"overrides={json.dumps(fewer)}", "-p", "out=fewer", "--watch")
    done = project.deployment_run("build-lean", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert expected in done.stdout.replace("\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "faults", "said"),
    [
        pytest.param(
            ["build-lean", "-p", "profile=huge"], {}, "'huge' is not one of", id="bad value"
        ),
        pytest.param(["build-lean", "-p", "size=3"], {}, "'size'", id="unknown parameter"),
        pytest.param(["nobody"], {}, "not found", id="unknown name"),
        pytest.param(
            ["build-lean/build-lean", "-p", "out=bad", "--watch"],
            {"bad": 7},
            "number 7 is odd",
            id="failing run",
        ),
    ],
)
def test_exit_codes_and_messages(project, words, faults, said):
    done = project.deployment_run(*words, **faults)
    assert done.returncode == 1
    assert said in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.faults
@pytest.mark.slow
def test_a_cancelled_run_leaves_no_process_and_resumes(project):
    log = project.folder / "cancel.log"
    begun = project.deployment_run("build-lean", "-p", "out=cancelled", seconds=4, log=str(log))
    assert begun.returncode == 0
    wait_for(lambda: lines(log) >= 4)
    worker = psutil.Process(project.state["worker"]["pid"])
    children = worker.children(recursive=True)
    ident = project.flow_run(begun.stdout)["id"]
    assert project.run("prefect", "flow-run", "cancel", ident).returncode == 0
    _, left = psutil.wait_procs(children, timeout=30)
    assert not left
    wait_for(lambda: project.flow_run(begun.stdout)["state_type"] == "CANCELLED")
    again = project.deployment_run("build-lean", "-p", "out=cancelled", "--watch")
    assert again.returncode == 0
    assert "kept from before" in again.stdout


@pytest.mark.faults
@pytest.mark.slow
def test_a_killed_worker_ends_its_run_and_deploy_brings_it_back(project):
    log = project.folder / "killed.log"
    begun = project.deployment_run("build-lean", "-p", "out=killed", seconds=3, log=str(log))
    wait_for(lambda: lines(log) >= 4)
    worker = psutil.Process(project.state["worker"]["pid"])
    children = worker.children(recursive=True)
    assert len(children) > 2
    worker.kill()
    _, left = psutil.wait_procs(children, timeout=30)
    assert not left
    assert project.flow_run(begun.stdout)["state_type"] == "CRASHED"
    assert project.server("up").returncode == 0
    again = project.deployment_run("build-lean", "-p", "out=killed", "--watch")
    assert again.returncode == 0
    assert "kept from before" in again.stdout


@pytest.mark.faults
@pytest.mark.slow
def test_a_killed_flow_process_is_a_crashed_run(project):
    log = project.folder / "flow.log"
    begun = project.deployment_run("build-lean", "-p", "out=flow", seconds=1, log=str(log))
    wait_for(lambda: lines(log) >= 4)
    (flow,) = psutil.Process(project.state["worker"]["pid"]).children()
    children = flow.children(recursive=True)
    flow.kill()
    _, left = psutil.wait_procs(children, timeout=10)
    assert not left
    wait_for(lambda: project.flow_run(begun.stdout)["state_type"] == "CRASHED", 20)


@pytest.mark.slow
def test_the_shell_lines_work_in_another_folder(project, tmp_path):
    exports = project.server("env").stdout
    script = f"{exports}\ncd {tmp_path}\nprefect deployment run build-lean"
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.faults
@pytest.mark.slow
def test_undeploy_in_the_middle_of_a_run_leaves_nothing(project):
    log = project.folder / "undeploy.log"
    project.deployment_run("build-lean", "-p", "out=undeploy", seconds=1, log=str(log))
    wait_for(lambda: lines(log) >= 2)
    processes = project.processes()
    assert (project.folder / "prefect.toml").exists()
    done = project.server("down")
    assert (done.returncode, done.stdout) == (0, "stopped\n")
    assert not [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not (project.folder / "prefect.toml").exists()
    assert project.server("down").stdout == "nothing was running\n"
    assert project.run("prefect", "deployment", "run", "build-lean").returncode == 1


@pytest.mark.slow
def test_a_server_that_is_there_is_used_and_left_alone(prefect_server, tmp_path):
    from prefect.settings import PREFECT_API_URL

    url = PREFECT_API_URL.value()
    project = Project(tmp_path / "project")
    project.environment["PREFECT_API_URL"] = url
    assert project.server("up").returncode == 0
    first = project.state
    try:
        assert (first["url"], first["server"]) == (url, None)
        assert not (project.folder / "prefect.toml").exists()
        assert project.server("up").returncode == 0
        assert project.state == first, "a second make deploy starts nothing"
        begun = project.deployment_run("build-lean")
        wait_for(lambda: project.flow_run(begun.stdout)["state_type"] == "COMPLETED", 120)
        worker = psutil.Process(first["worker"]["pid"])
    finally:
        assert project.server("down").returncode == 0
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    assert _api.answers(url)


def test_a_folder_without_prefect_yaml_is_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tangobench.flows.local.server", "up"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "prefect.yaml" in done.stderr
    assert not (tmp_path / ".state").exists()
