"""A project folder with a server of its own, as `make deploy` leaves it; its builds are the toy."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from tangobench.flows.local import server
from tangobench.flows.local.place import Place
from tangobench.flows.local.process import stop

PROJECT = Path(__file__).parents[2]
HERE = PROJECT / "tests" / "flows"  # where the toy dataset is
FLOW = """
import sys

sys.path.insert(0, {here!r})
import toy_run

from tangobench.flows.deployments import build_lean
"""

# Everything a stranger can try: read, start a run with a command of their own, be given a token.
STRANGER = """
import json, sys, urllib.error, urllib.request

url, deployment = sys.argv[1:]
run = json.dumps({"job_variables": {"command": "touch /tmp/pwned"}}).encode()
tries = [
    ("GET", "/flow_runs/count", None, {}),
    ("GET", "/csrf-token?client=me", None, {}),
    ("POST", "/flow_runs/filter", b"{}", {"Content-Type": "application/json"}),
    ("POST", f"/deployments/{deployment}/create_flow_run", run, {}),
    ("POST", f"/deployments/{deployment}/create_flow_run", run, {"Host": "127.0.0.1:4200"}),
    ("POST", f"/deployments/{deployment}/create_flow_run", run,
     {"Prefect-Csrf-Token": "x", "Prefect-Csrf-Client": "me", "Authorization": "Basic eDp5"}),
    ("POST", "/health", b"{}", {}),
]
for method, path, data, headers in tries:
    asked = urllib.request.Request(url + path, data=data, method=method, headers=headers)
    try:
        print(urllib.request.urlopen(asked, timeout=60).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""


def as_nobody(*words: str) -> list[str]:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv to become another user")
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *words]


def strangers_luck(url: str, deployment: str) -> set[str]:
    """The statuses that another user of this machine gets."""
    # The system's Python: the environment of the tests may be out of another user's reach.
    done = subprocess.run(
        [*as_nobody("/usr/bin/env", "python3", "-I", "-c", STRANGER), url, deployment],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()
    return set(done.stdout.split())


@contextlib.contextmanager
def embedded(folder: Path) -> Iterator[str]:
    """The address of a server as a flow command starts it for itself."""
    place = Place(folder)
    place.prepare()
    users = place.folder / "users"
    with users.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        state = server.start_server(place, 0, "embedded", str(users))
        try:
            log = place.folder / "embedded.log"
            server.wait_for("server", partial(server.ready, state), state.server, log)
            yield state.url
        finally:
            stop(state.server, seconds=10.0)


class Project:
    """A project folder of its own whose `build-lean` builds the toy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "flows").mkdir(parents=True)
        shutil.copy(PROJECT / "pyproject.toml", folder)
        text = (PROJECT / "prefect.yaml").read_text()
        # The other flows are the same code over other data; one keeps the test short.
        kept = [
            p
            for p in re.split(r"(?m)^(?=  - name: )", text)
            if not p.startswith("  - name: ") or "build-lean" in p
        ]
        (folder / "prefect.yaml").write_text("".join(kept))
        (folder / "flows" / "deployments.py").write_text(FLOW.format(here=str(HERE)))
        names = [name for name in os.environ if name.startswith("PREFECT_")]
        self.environment = {k: v for k, v in os.environ.items() if k not in names}
        self.environment["HOME"] = str(folder / "user")
        self.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(self, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def server(self, action: str) -> subprocess.CompletedProcess:
        port = "14321"  # away from Prefect's own, where a user's server may listen
        return self.run(
            sys.executable, "-m", "tangobench.flows.local.server", action, "--port", port
        )

    def deployment_run(self, *words: str, **faults: object) -> subprocess.CompletedProcess:
        env = json.dumps({"TOY_FAULTS": json.dumps(faults)})
        return self.run("prefect", "deployment", "run", *words, "--job-variable", f"env={env}")

    @property
    def state(self) -> dict:
        return json.loads((self.folder / ".state" / "prefect" / "state.json").read_text())

    def processes(self) -> list[psutil.Process]:
        found = []
        for part in ("server", "worker"):
            process = psutil.Process(self.state[part]["pid"])
            found += [process, *process.children(recursive=True)]
        return found

    def flow_run(self, output: str) -> dict:
        ident = re.search(r"UUID: (\S+)", output)[1]
        return self.ask(f"/flow_runs/{ident}")[1]

    @property
    def auth(self) -> str:
        path = self.folder / ".state" / "prefect" / "auth"
        return path.read_text().strip() if path.exists() else ""

    def ask(self, path: str, *, method: str = "GET", auth: str | None = None) -> tuple[int, object]:
        """Status and JSON of one request, with the project's own string unless another is given."""
        auth = self.auth if auth is None else auth
        headers = {"Authorization": f"Basic {base64.b64encode(auth.encode()).decode()}"}
        asked = urllib.request.Request(
            f"{self.state['url']}{path}", method=method, headers=headers if auth else {}
        )
        try:
            with urllib.request.urlopen(asked, timeout=60) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, None

    def runs(self) -> int:
        """Flow runs in the database."""
        done = self.run("prefect", "flow-run", "ls", "--limit", "200", "--output", "json")
        assert done.returncode == 0, done.stdout + done.stderr
        return len(json.loads(done.stdout))
