"""Where the local Prefect server lives: its folder, its secret, its recorded state, its settings.

- Folder and files (database, logs, secret, state) are open to their owner only; every API path and
  websocket asks for the secret (GET of health and ready excepted).
- `state.json` is written as soon as a process is started, so a crash loses none of them; it is
  believed only as far as the processes themselves confirm it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import secrets
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import urlsplit

from pydantic import ConfigDict, TypeAdapter

from tangobench.errors import UsageError
from tangobench.flows import _api
from tangobench.flows.local.process import Process
from tangobench.pipeline.core.files import atomic_file, exclusive, open_untrusted

PORT: Final = 4200  # Prefect's usual one; another is taken when it is in use
_STATE_BYTES: Final = 65_536
# How the two programs are started; a recorded process that was not started so is not ours.
SERVE: Final = ("-m", "tangobench.flows.local.serve")
WORKER: Final = ("-m", "prefect", "worker", "start")


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """What runs, and which of it was started here."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    url: str
    server: Process | None = None
    worker: Process | None = None


_STATE: Final = TypeAdapter(State)


class Place:
    """A project folder: `.state/prefect` with database, logs, secret (`auth`) and state, and the
    `prefect.toml` by which plain `prefect` commands find the server.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / ".state" / "prefect"
        self.auth = self.folder / "auth"
        self.toml = root / "prefect.toml"

    def load(self, name: str = "state.json") -> State | None:
        """The recorded state, or None when nothing was started.

        A file that `save` did not write is reported and put aside as `state.json.odd`.
        """
        path = self.folder / name
        try:
            return read_state(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            with contextlib.suppress(OSError):
                path.replace(path.with_suffix(".json.odd"))
            print(
                f"{path} is not a state that was written here ({type(error).__name__}): "
                f"renamed to {path.name}.odd, nothing in it was used or stopped",
                file=sys.stderr,
            )
            return None

    def save(self, state: State, name: str = "state.json") -> None:
        write_private(self.folder / name, json.dumps(asdict(state)))

    def prepare(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o700)
            # Root may use a folder of somebody else, who may then replace what is in it.
            if any(f.lstat().st_uid != os.geteuid() for f in (self.folder, self.folder.parent)):
                raise PermissionError(errno.EPERM, "it belongs to another user")
        except OSError as error:
            why = f"{self.folder} cannot be used: {error.strerror}"
            fix = f"make it a folder of your own: sudo chown -R $USER {self.folder.parent}"
            raise UsageError(why, kind="state-folder", fix=fix) from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One `up` or `down` at a time."""
        self.prepare()
        with exclusive(self.folder / "lock", wait_seconds=math.inf):
            yield

    def secret(self) -> str:
        """The string that the server asks for, made on first use.

        One that others could have read, or that is not of our form, is replaced.
        """
        with contextlib.suppress(OSError, ValueError):
            text = _read(self.auth).strip()
            if re.fullmatch(r"tangobench:[\w-]{43}", text):
                return text
        self.prepare()
        text = f"tangobench:{secrets.token_urlsafe(32)}"
        write_private(self.auth, f"{text}\n")
        return text

    def users_url(self, state: State | None) -> str | None:
        """The API that the user configured, if it is not a server that we started."""
        url = _api.configured_url(self.root)
        return None if state and state.server and url == state.url else url


def _read(path: Path) -> str:
    """A small regular file of the user's; never a link, a pipe, or one that others can read."""
    with open_untrusted(path, limit=_STATE_BYTES) as (descriptor, size):
        found = os.fstat(descriptor)
        if found.st_mode & 0o077 or found.st_uid != os.geteuid():
            raise ValueError("others can read it")
        return os.read(descriptor, size).decode()


def write_private(path: Path, text: str) -> None:
    """Replace a file, readable by its owner only."""
    with atomic_file(path) as file:
        os.fchmod(file.descriptor, 0o600)
        file.write(text.encode())


def read_state(path: Path) -> State:
    """A state as `Place.save` writes it; ValueError if it is anything else."""
    state = _STATE.validate_json(_read(path))
    address = urlsplit(state.url)  # its `port` is a ValueError if it is none
    if address.scheme not in ("http", "https") or address.port == 0 or "\0" in state.url:
        raise ValueError("url is no address")
    for found, form in ((state.server, SERVE), (state.worker, WORKER)):
        if found and (found.pid < 2 or found.command[1 : 1 + len(form)] != form):
            raise ValueError("it names a process that `make deploy` does not start")
    return state


def environment(place: Place, state: State, *, starting: bool = False) -> dict[str, str]:
    """The environment of server, worker and deployment commands.

    On a server of the user's own (`state.server` is None and none is `starting`) home, profile and
    credentials stay the user's.
    """
    values = {
        **os.environ,
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
    if state.server is None and not starting:
        return values
    values.pop("PREFECT_API_KEY", None)  # it would be sent in the place of the string
    address = urlsplit(state.url)
    return {
        **values,
        **client_settings(place, state.url),
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(address.port or PORT),
        "PREFECT_SERVER_API_AUTH_STRING": place.secret(),
        "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": f"{address.scheme}://{address.netloc}",
        # The default copies the UI into site-packages.
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(place.folder / "home" / "ui"),
        # Without these two `--watch` shows no logs.
        "PREFECT_SERVER_LOGS_STREAM_OUT_ENABLED": "true",
        "PREFECT_SERVER_LOGS_STREAM_PUBLISHING_ENABLED": "true",
    }


def client_settings(place: Place, url: str) -> dict[str, str]:
    return {
        "PREFECT_HOME": str(place.folder / "home"),
        "PREFECT_API_URL": url,
        "PREFECT_API_AUTH_STRING": place.secret(),
        "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "true",
    }


def write_toml(place: Place, state: State) -> bool:
    """Point plain `prefect` commands in the project folder at the server.

    False, and nothing written, if the user has a `prefect.toml` already.
    """
    if os.path.lexists(place.toml) and not _api.is_ours(place.toml):
        return False
    home, secret = json.dumps(str(place.folder / "home")), json.dumps(place.secret())
    api = f"[api]\nurl = {json.dumps(state.url)}\nauth_string = {secret}\n"
    write_private(place.toml, f"{_api.TOML_MARK}home = {home}\n\n{api}")
    return True


def remove_toml(place: Place) -> None:
    """Take back `write_toml`; a file of the user's own stays."""
    if _api.is_ours(place.toml):
        place.toml.unlink()
