"""The server's lock: who does not have the string starts nothing and reads nothing."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
import uuid

import pytest
from deployed import as_nobody, embedded, strangers_luck

pytestmark = [pytest.mark.prefect, pytest.mark.xdist_group("prefect"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def deployment(project):
    status, found = project.ask("/deployments/name/build-lean/build-lean")
    assert status == 200
    return found["id"]


def test_another_user_can_neither_read_nor_start_a_run(project, deployment):
    before = project.runs()
    assert strangers_luck(project.state["url"], deployment) <= {"401", "403"}
    assert project.runs() == before


def test_another_user_gets_nothing_from_the_server_of_a_command(tmp_path):
    """The embedded server of `make data-*`, and its websockets."""
    with embedded(tmp_path) as url:
        assert strangers_luck(url, str(uuid.uuid4())) <= {"401", "403"}
        for path in SOCKETS:
            refused_websocket(url, path, None)


@pytest.mark.parametrize("name", ["auth", "state.json", "home/prefect.db", "server.log"])
def test_another_user_cannot_open_the_files(project, name):
    path = project.folder / ".state" / "prefect" / name
    assert path.is_file()
    assert subprocess.run(as_nobody("cat", str(path)), check=False, capture_output=True).returncode


def test_modes(project):
    def mode(name):
        return stat.S_IMODE((project.folder / name).stat().st_mode)

    assert mode(".state/prefect") == 0o700
    assert mode(".state/prefect/auth") == mode("prefect.toml") == 0o600
    assert mode(".state/prefect/home/prefect.db") == 0o600


def test_every_path_asks_for_the_string(project):
    """The paths are the server's own list, so that a new one is covered too."""
    status, described = project.ask("/openapi.json")
    assert status == 200
    paths = [re.sub(r"{[^}]*}", "x", path) for path in described["paths"]]
    assert len(paths) > 100
    found = {p: project.ask(p.removeprefix("/api"), auth="")[0] for p in ["/openapi.json", *paths]}
    open_paths = {path for path, status in found.items() if status != 401}
    assert open_paths == {"/health", "/ready"}
    assert project.ask("/flow_runs/count", method="POST", auth="")[0] in (401, 403)
    assert project.ask("/flows/x", auth="tangobench:wrong")[0] == 401


SOCKETS = [
    "/events/in",
    "/events/out",
    "/logs/out",
    "/task_runs/subscriptions/scheduled",
    "/work_pools/tangobench/workers/connect",
]


@pytest.mark.parametrize("path", SOCKETS)
@pytest.mark.parametrize("said", [None, {"type": "auth", "token": "tangobench:wrong"}])
def test_every_websocket_asks_for_the_string(project, path, said):
    refused_websocket(project.state["url"], path, said)


def refused_websocket(url: str, path: str, said: dict | None) -> None:
    from websockets.exceptions import ConnectionClosed, InvalidStatus
    from websockets.sync.client import connect

    url = url.replace("http", "ws") + path
    with pytest.raises((ConnectionClosed, InvalidStatus)):  # noqa: SIM117
        with connect(url, subprotocols=["prefect"] if said else None) as socket:
            socket.send(json.dumps(said or {"type": "hello"}))
            for _ in range(3):
                answer = json.loads(socket.recv(timeout=20))
                assert answer.get("type") != "auth_success"


def test_a_page_of_another_address_is_not_invited(project):
    import urllib.request

    for origin, expected in [("http://evil.test", None), (project.state["url"][:-4], "own")]:
        asked = urllib.request.Request(f"{project.state['url']}/health", headers={"Origin": origin})
        with urllib.request.urlopen(asked, timeout=60) as reply:
            allowed = reply.headers["Access-Control-Allow-Origin"]
        assert allowed == (origin if expected else None)


def test_the_string_is_printed_by_prefect_env_only(project):
    again = project.server("up")
    assert again.returncode == 0, again.stderr
    assert len(project.auth) > 40 and project.auth not in again.stdout + again.stderr
    assert ".state/prefect/auth" in again.stdout
    assert f"PREFECT_API_AUTH_STRING={project.auth}" in project.server("env").stdout
    for log in ("server.log", "worker.log"):
        assert project.auth not in (project.folder / ".state" / "prefect" / log).read_text()
    commands = [word for process in project.processes() for word in process.cmdline()]
    assert commands and project.auth not in " ".join(commands)


def test_plain_commands_work_in_the_project_folder_and_not_without_its_file(project, tmp_path):
    assert project.run("prefect", "work-pool", "ls").returncode == 0
    bare = subprocess.run(
        [sys.executable, "-m", "prefect", "work-pool", "ls"],
        cwd=tmp_path,
        env={**project.environment, "PREFECT_API_URL": project.state["url"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert bare.returncode != 0
