"""A project folder with a server of its own, as `make deploy` leaves it; its builds are the toy."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil

PROJECT = Path(__file__).parents[2]
HERE = PROJECT / "tests" / "flows"  # where the toy dataset is
FLOW = """
import sys

sys.path.insert(0, {here!r})
import toy_run

from tangobench.flows.deployments import build_lean
"""


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
