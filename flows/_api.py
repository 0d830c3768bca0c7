"""Which Prefect API a command would talk to, found without importing Prefect (2 to 4 seconds).

The order is Prefect's own: environment, `.env`, `prefect.toml`, `pyproject.toml`, the active
profile, read from the current folder. A `prefect.toml` that `make deploy` wrote counts for nothing:
anybody may have taken the port of a server that has ended.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import tomllib
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from dotenv import dotenv_values

from tangobench.pipeline.core.files import read_untrusted

NAME: Final = "PREFECT_API_URL"
TOML_MARK: Final = "# Written by `make deploy`, removed by `make undeploy`.\n"
_SETTINGS_BYTES: Final = 1 << 20


def _settings(path: Path, *keys: str) -> Any:
    """A value of a settings file (`.env` or TOML); None if the file is not one or lacks it.

    It may be a link, but never a pipe that is waited for or a device without an end.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        text = read_untrusted(path, limit=_SETTINGS_BYTES, links=True).decode()
        found: Any = tomllib.loads(text) if path.suffix else dotenv_values(stream=io.StringIO(text))
        for key in keys:
            found = found.get(key)
        return found
    return None


def is_ours(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return read_untrusted(path, limit=_SETTINGS_BYTES).startswith(TOML_MARK.encode())
    return False


def configured_url(folder: Path, environment: Mapping[str, str] = os.environ) -> str | None:
    """The API address that the user configured for Prefect commands in `folder`, or None."""
    own = folder / "prefect.toml"
    home = Path(environment.get("PREFECT_HOME") or Path.home() / ".prefect")
    profiles = Path(environment.get("PREFECT_PROFILES_PATH") or home / "profiles.toml")
    active = environment.get("PREFECT_PROFILE") or _settings(profiles, "active")
    found = (
        environment.get(NAME)
        or _settings(folder / ".env", NAME)
        or (None if is_ours(own) else _settings(own, "api", "url"))
        or _settings(folder / "pyproject.toml", "tool", "prefect", "api", "url")
        or _settings(profiles, "profiles", active, NAME)
    )
    return found if isinstance(found, str) and found else None


def answers(url: str, seconds: float = 3.0, path: str = "/health") -> bool:
    """Whether a Prefect API answers at `url`.

    Prefect says `true` to health, or refuses in its own words; another program on a port of this
    machine says something else. Elsewhere a gateway may speak first: any answer but a 5xx counts.
    """
    # A proxy of the environment cannot reach this machine's own loopback.
    proxies = urllib.request.ProxyHandler({} if is_loopback(url) else None)
    try:
        opener = urllib.request.build_opener(proxies)
        with opener.open(url.rstrip("/") + path, timeout=seconds) as reply:
            return not is_loopback(url) or _body(reply) in (True, {"message": "OK"})
    except urllib.error.HTTPError as error:
        if is_loopback(url):
            return error.code == 401 and "exception_message" in (_body(error) or {})
        return error.code < 500
    except (OSError, ValueError, http.client.HTTPException):
        return False


def _body(reply: Any) -> Any:
    try:
        return json.loads(reply.read(1000))
    except (ValueError, RecursionError):
        return None


def is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in {"127.0.0.1", "localhost", "::1"}
