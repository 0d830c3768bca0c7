"""Which Prefect API a command would talk to, found without importing Prefect.

`import prefect` takes 2 to 4 seconds; a build that needs no API must not wait for it.

- The order is Prefect's own: environment, `.env`, `prefect.toml`, `pyproject.toml`, the active
  profile; the files are read from the current folder, as Prefect does.
- No answer means that the build runs in this process.

Usage: `url = configured_url(Path.cwd())`.
"""

from __future__ import annotations

import os
import tomllib
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

NAME = "PREFECT_API_URL"


def _toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return {}


def _dotenv(path: Path) -> str | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        name, found, value = line.removeprefix("export ").partition("=")
        if found and name.strip() == NAME:
            return value.strip().strip("'\"") or None
    return None


def _in_profile(environment: Mapping[str, str]) -> str | None:
    home = Path(environment.get("PREFECT_HOME") or Path.home() / ".prefect")
    path = Path(environment.get("PREFECT_PROFILES_PATH") or home / "profiles.toml")
    profiles = _toml(path)
    active = environment.get("PREFECT_PROFILE") or profiles.get("active")
    url: str | None = profiles.get("profiles", {}).get(active, {}).get(NAME)
    return url


def configured_url(folder: Path, environment: Mapping[str, str] = os.environ) -> str | None:
    """The API address a Prefect command started in `folder` would use, or None."""
    return (
        environment.get(NAME)
        or _dotenv(folder / ".env")
        or _toml(folder / "prefect.toml").get("api", {}).get("url")
        or _toml(folder / "pyproject.toml")
        .get("tool", {})
        .get("prefect", {})
        .get("api", {})
        .get("url")
        or _in_profile(environment)
    )


def answers(url: str, seconds: float = 3.0, path: str = "/health") -> bool:
    """Whether a server answers at `url`; a refusal (401, 404) is an answer, a 5xx is not."""
    # A proxy of the environment cannot reach this machine's own loopback.
    proxies = urllib.request.ProxyHandler({} if is_loopback(url) else None)
    try:
        opener = urllib.request.build_opener(proxies)
        with opener.open(url.rstrip("/") + path, timeout=seconds) as reply:
            return int(reply.status) < 500
    except urllib.error.HTTPError as error:
        return error.code < 500
    except (OSError, ValueError):
        return False


def is_loopback(url: str) -> bool:
    """Whether `url` names this machine."""
    return urlsplit(url).hostname in {"127.0.0.1", "localhost", "::1"}
