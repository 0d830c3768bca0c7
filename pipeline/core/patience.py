"""Patience with a network that fails for a while: backoff with jitter, up to a limit.

- 408, 429, 5xx, resets and time-outs pass: they are tried again until `seconds` have gone by
  without progress. `Retry-After` and `RateLimit` say how long to wait; a wait beyond the limit is
  an error at once.
- A refused connection, an unknown name, no route and `HF_HUB_OFFLINE` do not pass: they fail at
  once, with the same kind, `source-unreachable` (exit 7).
- Anything else is not the network's fault and is raised as it is.

Usage: `patiently(lambda: api.dataset_info(name), 120.0, "the hub")`.
"""

from __future__ import annotations

import errno
import io
import random
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tangobench.errors import ResourceError

Value = TypeVar("Value")
PATIENCE: Final = 120.0
"""Seconds without a byte after which a source counts as unreachable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """How remote input is read: downloaded once or in ranges, and how long to wait for it."""

    stream: bool = False
    patience: float = PATIENCE


_LONGEST_PAUSE: Final = 30.0
_NO_WAY: Final = {errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN}
# Base classes by name: httpx (of huggingface_hub), aiohttp and botocore (of s3fs) need no import.
_NETWORK: Final = {
    "TransportError",
    "ClientConnectionError",
    "ClientPayloadError",
    "HTTPClientError",
}
_RATE_LIMIT: Final = re.compile(r"\bt\s*=\s*(\d+)")


class Patience:
    """How long one transfer has gone without a byte."""

    def __init__(
        self, seconds: float, what: str, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._limit, self._what, self._sleep = seconds, what, sleep
        self._tries = 0
        self._since = time.monotonic()

    def progressed(self) -> None:
        """Bytes arrived."""
        self._tries, self._since = 0, time.monotonic()

    def wait(self, error: Exception) -> None:
        """Sleep before the next try; raise if there should be none."""
        if is_down(error):
            raise self._unreachable(error, "check the network and HF_ENDPOINT") from error
        asked = pause_asked(error)
        if asked is None:
            raise error
        backoff = min(_LONGEST_PAUSE, 0.5 * 2**self._tries) * random.uniform(0.5, 1.5)
        pause = max(asked, backoff)
        self._tries += 1
        if time.monotonic() - self._since + pause > self._limit:
            need = max(self._limit * 2, pause + 10)
            fix = f"run the same command again later, or with --patience {need:.0f}: it resumes"
            raise self._unreachable(error, fix) from error
        self._sleep(pause)

    def _unreachable(self, error: Exception, fix: str) -> ResourceError:
        lines = str(error).strip().splitlines()
        said = f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
        return ResourceError(
            f"{self._what} cannot be reached: {said}", kind="source-unreachable", fix=fix
        )


def patiently(function: Callable[[], Value], seconds: float, what: str) -> Value:
    """The function's value, asked for again while the network fails."""
    patience = Patience(seconds, what)
    while True:
        try:
            return function()
        except Exception as error:
            patience.wait(error)


def is_down(error: BaseException) -> bool:
    """Whether nobody is there to wait for: refused, no such name, no route, offline by choice."""
    return any(
        isinstance(cause, socket.gaierror)
        or type(cause).__name__ == "OfflineModeIsEnabled"
        or (isinstance(cause, OSError) and cause.errno in _NO_WAY)
        for cause in _causes(error)
    )


def is_http(error: BaseException) -> bool:
    """Whether a client of HTTP gave up: a lasting status, a loop of redirects, no address."""
    return bool({base.__name__ for base in type(error).__mro__} & {"HTTPError", "InvalidURL"})


def pause_asked(error: BaseException) -> float | None:
    """Seconds that the server asks to wait, 0 if it does not say; None if waiting cannot help."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if isinstance(status, int):
        passing = status in (408, 429) or status >= 500
        return _asked(getattr(response, "headers", {})) if passing else None
    for cause in _causes(error):
        names = {base.__name__ for base in type(cause).__mro__}
        if isinstance(cause, TimeoutError | ConnectionError | EOFError) or names & _NETWORK:
            return 0.0
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _asked(headers: Mapping[str, Any]) -> float:
    """`Retry-After: 30`, or `RateLimit: "resolvers";r=0;t=55`."""
    after = str(headers.get("Retry-After", ""))
    limit = _RATE_LIMIT.search(str(headers.get("RateLimit", "")))
    return max(float(after) if after.isdigit() else 0.0, float(limit[1]) if limit else 0.0)


class PatientFile(io.RawIOBase):
    """A remote file for readers that know nothing of networks: reads are tried again.

    After a failure the file is opened anew: a client may have cached half of an answer.
    """

    def __init__(self, opened: Callable[[], Any], seconds: float, what: str) -> None:
        self._opened, self._seconds, self._what = opened, seconds, what
        self._place = 0
        self._handle: Any = None
        self._size = int(patiently(self._open, seconds, what).size)

    def _open(self) -> Any:
        if self._handle is None:
            self._handle = self._opened()
        return self._handle

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` from the current place, as far as there are bytes."""
        data = patiently(lambda: self._bytes(len(buffer)), self._seconds, self._what)
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)

    def _bytes(self, count: int) -> Any:
        count = max(0, min(count, self._size - self._place))
        handle = self._open()
        try:
            handle.seek(self._place)
            data = handle.read(count)
            if len(data) != count:
                raise EOFError(f"{len(data):,} bytes came, {count:,} were asked for")
        except Exception:
            self._handle = None
            raise
        return data

    def seek(self, place: int, whence: int = 0) -> int:
        """Move."""
        self._place = place + (0, self._place, self._size)[whence]
        return self._place

    def tell(self) -> int:
        """The current place."""
        return self._place

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Release the connection."""
        if self._handle is not None:
            self._handle.close()
        super().close()
