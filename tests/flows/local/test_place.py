"""The files of the local server: what is believed, what is the user's, what is put aside."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from contextlib import nullcontext
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tangobench.errors import TangobenchError, UsageError
from tangobench.flows import _api
from tangobench.flows.local import process as _process
from tangobench.flows.local import server
from tangobench.flows.local.place import Place, State, remove_toml, write_private, write_toml
from tangobench.flows.local.process import alive

URL = "http://127.0.0.1:14999/api"
GONE = _process.Process(
    pid=4_000_000, started=1.0, command=("p", "-m", "tangobench.flows.local.serve")
)
USERS = '[api]\nurl = "http://127.0.0.1:14998/api"\n'


@pytest.fixture
def place(tmp_path, monkeypatch):
    before = dict(os.environ)  # the commands set it for their children
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "user"))
    (tmp_path / "prefect.yaml").write_text("name: x\n")
    place = Place(root=tmp_path)
    place.prepare()
    yield place
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def bystander():
    """A process of the user's that looks like our server in nothing but its pid."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def forged(bystander, **changes) -> dict:
    real = _process.identify(bystander.pid)
    return {"url": URL, "server": {**asdict(real), **changes}, "worker": None}


ODD = {
    "not json": "{",
    "a list": "[]",
    "a number": "7",
    "nested deep": "[" * 30_000,
    "another field": json.dumps({"url": URL, "server": None, "worker": None, "more": 1}),
    "no url": json.dumps({"url": None, "server": None, "worker": None}),
    "url of a file": json.dumps({"url": "file:///etc", "server": None, "worker": None}),
    "no port": json.dumps({"url": "http://127.0.0.1:abc/api", "server": None, "worker": None}),
    "port 99999": json.dumps({"url": "http://127.0.0.1:99999/api", "server": None, "worker": None}),
    "a null in the url": json.dumps({"url": f"{URL}\0", "server": None, "worker": None}),
    "a version before": json.dumps(
        {"url": URL, "server": {"pid": 7, "started": "1"}, "worker": None}
    ),
    "pid as text": json.dumps(
        {
            "url": URL,
            "server": {"pid": "7", "started": 1.0, "command": []},
            "worker": None,
        }
    ),
    "a group's pid": json.dumps(
        {
            "url": URL,
            "server": {
                "pid": -1,
                "started": 1.0,
                "command": ["p", "-m", "tangobench.flows.local.serve"],
            },
            "worker": None,
        }
    ),
    "no text": b"\xff\xfe",
    "a huge file": " " * 70_000,
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_an_odd_state_is_reported_and_put_aside(place, text, capsys):
    path = place.folder / "state.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(0o600)  # it is refused for what it says, not for who can read it
    assert server.down(place) is None
    said = capsys.readouterr().err
    assert str(path) in said and "state.json.odd" in said
    assert not path.exists() and (place.folder / "state.json.odd").exists()


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_a_state_that_is_no_file_does_not_hang(place, kind, capsys):
    path = place.folder / "state.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/etc/passwd")
    else:
        path.mkdir()
    assert server.down(place) is None
    assert "state.json.odd" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["lock", "auth"])
@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_files_of_the_state_that_are_none(place, tmp_path, file, kind):
    """Nothing hangs, nothing outside is emptied, and what cannot be replaced is named."""
    path, precious = place.folder / file, tmp_path / "precious"
    precious.write_text("mine")
    place.save(State(url=URL, server=GONE))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(precious)
    else:
        path.mkdir()
    refused = kind == "folder" or (kind, file) == ("link", "lock")
    with pytest.raises(TangobenchError, match=str(path)) if refused else nullcontext():
        server.down(place)
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("name", ["prefect.toml", ".env", "pyproject.toml"])
@pytest.mark.parametrize("kind", ["pipe", "device", "no text"])
def test_settings_that_cannot_be_read_configure_nothing(place, name, kind):
    path = place.root / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"\xff")
    assert _api.configured_url(place.root) is None


def test_a_users_server_is_not_asked_when_nothing_of_ours_runs_on_it(place, monkeypatch):
    monkeypatch.setattr(_api, "answers", lambda *_, **__: pytest.fail("it was asked"))
    place.save(State(url="http://192.0.2.1/api"))
    assert server.down(place) is not None


@pytest.mark.parametrize("part", ["server", "worker"])
@pytest.mark.parametrize("command", ["true", "ours"])
def test_a_forged_pid_is_never_signalled(place, bystander, part, command):
    """Neither with the process's own command line nor with one that ours would have."""
    state = forged(bystander)
    if command == "ours":
        words = (
            ["-m", "tangobench.flows.local.serve"]
            if part == "server"
            else ["-m", "prefect", "worker", "start"]
        )
        state["server"]["command"] = [sys.executable, *words]
    state[part], state["server"] = state["server"], state["server"] if part == "server" else None
    write_private(place.folder / "state.json", json.dumps(state))
    server.down(place)
    assert bystander.poll() is None


@pytest.mark.parametrize("field", ["started", "command"])
def test_another_life_of_a_pid_is_not_alive(bystander, field):
    real = _process.identify(bystander.pid)
    assert alive(real)
    assert not alive(replace(real, **{field: ("x",) if field == "command" else 1.0}))


def test_a_stale_state_is_reported_and_removed(place, capsys):
    place.save(State(url=URL, server=GONE))
    assert server.down(place) is not None
    assert "no longer running: the server" in capsys.readouterr().err
    assert place.load() is None


def test_a_users_own_toml_is_neither_written_nor_removed(place):
    place.toml.write_text(USERS)
    assert not write_toml(place, State(url=URL))
    remove_toml(place)
    assert place.toml.read_text() == USERS


def test_a_link_is_the_users_own_even_to_a_file_of_ours(place, tmp_path):
    assert write_toml(place, State(url=URL))
    elsewhere = place.toml.rename(tmp_path / "elsewhere.toml")
    place.toml.symlink_to(elsewhere)
    assert not write_toml(place, State(url=URL))
    remove_toml(place)
    assert place.toml.is_symlink() and elsewhere.exists()


def test_our_own_toml_is_private_and_comes_and_goes(place):
    place.toml.write_text(_api.TOML_MARK)
    place.toml.chmod(0o644)
    assert write_toml(place, State(url=URL))
    assert stat.S_IMODE(place.toml.stat().st_mode) == 0o600
    assert _api.configured_url(place.root) is None  # it is not the user's choice
    remove_toml(place)
    assert not place.toml.exists()


def test_the_secret_stays_unless_others_could_have_read_it(place):
    first = place.secret()
    assert place.secret() == first and stat.S_IMODE(place.auth.stat().st_mode) == 0o600
    place.auth.chmod(0o644)
    second = place.secret()
    assert second != first and stat.S_IMODE(place.auth.stat().st_mode) == 0o600
    place.auth.write_text("short\n")
    assert place.secret() not in (first, second, "short")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder away")
@pytest.mark.parametrize("level", ["folder", "parent"])
def test_a_folder_of_another_user_is_refused(place, level):
    """Its owner could put another address into the state: the worker would take orders there."""
    os.chown(place.folder if level == "folder" else place.folder.parent, 65534, 65534)
    with pytest.raises(UsageError, match="belongs to another user") as caught:
        server.down(place)
    assert caught.value.kind == "state-folder"


@pytest.mark.parametrize("change", ["mode", "owner"])
def test_a_state_that_others_may_have_written_is_put_aside(place, change, capsys):
    place.save(State(url=URL))
    path = place.folder / "state.json"
    if change == "mode":
        path.chmod(0o666)
    elif os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    else:
        pytest.skip("needs root to give a file away")
    assert place.load() is None
    assert "state.json.odd" in capsys.readouterr().err


def test_a_configured_api_comes_before_the_server_of_deploy(place, bystander, monkeypatch):
    monkeypatch.setattr(_api, "answers", lambda *_, **__: True)
    monkeypatch.setattr(server, "alive", lambda process: True)
    place.save(State(url=URL, server=GONE))
    assert server.known(place) == State(url=URL, server=GONE)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:14998/api")
    assert server.known(place) == State(url="http://127.0.0.1:14998/api")


def test_a_wide_open_folder_is_closed(place):
    place.folder.chmod(0o755)
    place.prepare()
    assert stat.S_IMODE(place.folder.stat().st_mode) == 0o700


class Other(BaseHTTPRequestHandler):
    """A web server that is not Prefect: it says yes to everything."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>welcome</html>")

    def log_message(self, *args):
        pass


@pytest.fixture
def other():
    with HTTPServer(("127.0.0.1", 0), Other) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/api"
        running.shutdown()


def test_another_program_at_the_configured_address_is_not_used(place, other, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", other)
    assert not _api.answers(other)
    with pytest.raises(UsageError, match="no Prefect API answers") as caught:
        server.up(place)
    assert caught.value.kind == "prefect-unreachable"
    assert not (place.folder / "state.json").exists()


def test_whoever_took_the_port_of_our_last_server_is_not_asked(place, monkeypatch):
    """Its answers, however right, come without our process: the secret must not go there."""
    asked = []
    monkeypatch.setattr(_api, "answers", lambda *args, **options: asked.append(args) or True)
    place.save(State(url=URL, server=GONE))
    write_toml(place, State(url=URL))
    monkeypatch.setenv("PREFECT_API_URL", URL)  # as `prefect-env` leaves it in a shell
    monkeypatch.setattr(server, "_start_server", lambda place, port: ("started", port))
    assert server._find_server(place, 4200) == ("started", 14999)
    assert asked == []


def test_a_taken_port_gives_another(place):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with server.listener(port) as found:
            assert found.getsockname()[1] != port
