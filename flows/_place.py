"""Where the local Prefect server lives: its folder, its recorded state, its environment.

- `state.json` is written as soon as a process is started, so a crash loses none of them.
- Server and worker see loopback, a database of their own and no analytics.

Usage: `Place(root=Path.cwd()).load()`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tangobench.flows._process import Process

PORT = 4200  # Prefect's usual one; another is taken when it is in use
TOML_MARK = "# Written by `make deploy`, removed by `make undeploy`.\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """What runs, and which of it was started here."""

    url: str
    server: Process | None = None
    worker: Process | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The project folder and the files this module keeps in it."""

    root: Path

    @property
    def folder(self) -> Path:
        """Everything of the local server: database, logs, state."""
        return self.root / ".state" / "prefect"

    @property
    def toml(self) -> Path:
        """The file by which plain `prefect` commands find the server."""
        return self.root / "prefect.toml"

    def load(self) -> State | None:
        """The recorded state, or None when nothing was started."""
        try:
            found = json.loads((self.folder / "state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        parts = {k: Process(**found[k]) if found[k] else None for k in ("server", "worker")}
        return State(url=found["url"], **parts)

    def save(self, state: State) -> None:
        """Record the state before anything else can go wrong."""
        path = self.folder / "state.json"
        path.with_suffix(".tmp").write_text(json.dumps(asdict(state)), encoding="utf-8")
        path.with_suffix(".tmp").replace(path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One `up` or `down` at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def environment(place: Place, state: State, *, starting: bool = False) -> dict[str, str]:
    """The environment of server, worker and deployment commands.

    On a server of the user's own (`state.server` is None and none is `starting`) home and profile
    stay the user's, because credentials may live there.
    """
    own = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PWD": str(place.root),  # prefect.yaml takes the flows' working folder from it
        "DO_NOT_TRACK": "1",
        "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1,localhost"])),
        "PREFECT_API_URL": state.url,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # Imported inside a running loop, as server and worker do, the plugin logs a traceback.
        "PREFECT_PLUGINS_ENABLED": "false",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
    }
    if state.server is not None or starting:
        home = place.folder / "home"
        own |= {
            "PREFECT_HOME": str(home),
            "PREFECT_SERVER_API_HOST": "127.0.0.1",
            "PREFECT_SERVER_API_PORT": str(urlsplit(state.url).port or PORT),
            # The default copies the UI into site-packages.
            "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(home / "ui"),
            # Without these two `--watch` shows no logs.
            "PREFECT_SERVER_LOGS_STREAM_OUT_ENABLED": "true",
            "PREFECT_SERVER_LOGS_STREAM_PUBLISHING_ENABLED": "true",
        }
    return {**os.environ, **own}


def write_toml(place: Place, state: State) -> None:
    """Point plain `prefect` commands in the project folder at the server."""
    home = json.dumps(str(place.folder / "home"))
    text = f'{TOML_MARK}home = {home}\n\n[api]\nurl = "{state.url}"\n'
    place.toml.write_text(text, encoding="utf-8")


def remove_toml(place: Place) -> None:
    """Take back `write_toml`; a file of the user's own stays."""
    if place.toml.exists() and place.toml.read_text(encoding="utf-8").startswith(TOML_MARK):
        place.toml.unlink()
