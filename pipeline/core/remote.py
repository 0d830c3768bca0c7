"""Patience with connections that fail for a while.

- 408, 429, 5xx, resets and time-outs of any client are tried again until `seconds` have passed
  without a byte. A refused connection, an unknown name, no route and `HF_HUB_OFFLINE` fail at once.
  Both are `source-unreachable`.
"""

from __future__ import annotations

import errno
import io
import random
import re
import socket
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from tangobench.errors import InputError, ResourceError, TangobenchError

Value = TypeVar("Value")
PATIENCE: Final = 120.0
"""Seconds without a byte after which a source counts as unreachable."""
_LONGEST_PAUSE: Final = 30.0
_LONGEST_STALL: Final = 30.0
_NO_WAY: Final = {errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN}
# Base classes by name: httpx (of huggingface_hub), aiohttp and botocore (of s3fs) need no import.
_NETWORK: Final = frozenset(
    ("TransportError", "ClientConnectionError", "ClientPayloadError", "HTTPClientError")
)
_RATE_LIMIT: Final = re.compile(r"\bt\s*=\s*(\d+)")


class Patience:
    """How long one transfer has gone without a byte."""

    def __init__(
        self, seconds: float, what: str, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._limit, self._what, self._sleep = seconds, what, sleep
        self.progressed()

    def progressed(self) -> None:
        self._tries, self._since = 0, time.monotonic()

    def wait(self, error: Exception) -> None:
        """Sleep before the next try; raise if there should be none."""
        if any(_is_down(cause) for cause in _causes(error)):
            raise self._unreachable(
                error, "check the network and the address (HF_ENDPOINT is the hub's)"
            ) from error
        if (asked := _pause_asked(error)) is None:
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
        why = f"{self._what} cannot be reached: {_first_line(error)}"
        return ResourceError(why, kind="source-unreachable", fix=fix)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def stall(seconds: float) -> float:
    """After how many seconds without a byte a connection is given up for a new one."""
    return min(_LONGEST_STALL, seconds / 2)


def patiently(function: Callable[[], Value], seconds: float, what: str) -> Value:
    """The function's value, asked for again while the network fails."""
    patience = Patience(seconds, what)
    while True:
        try:
            return function()
        except Exception as error:
            patience.wait(error)


def is_http(error: BaseException) -> bool:
    """Whether a client of HTTP gave up: a lasting status, a loop of redirects, no address."""
    return bool({base.__name__ for base in type(error).__mro__} & {"HTTPError", "InvalidURL"})


def _is_down(cause: BaseException) -> bool:
    """Whether nobody is there to wait for: refused, no such name, no route, offline by choice."""
    return (
        isinstance(cause, socket.gaierror)
        or type(cause).__name__ == "OfflineModeIsEnabled"
        or (isinstance(cause, OSError) and cause.errno in _NO_WAY)
    )


def _pause_asked(error: BaseException) -> float | None:
    """Seconds that the server asks to wait, 0 if it does not say; None if waiting cannot help."""
    for cause in _causes(error):
        status, headers = _answer(cause)
        if status:
            if status not in (408, 429) and status < 500:
                return None
            # `Retry-After: 30`, or `RateLimit: "resolvers";r=0;t=55`.
            after = str(headers.get("retry-after", ""))
            limit = _RATE_LIMIT.search(str(headers.get("ratelimit", "")))
            return max(float(after) if after.isdigit() else 0.0, float(limit[1]) if limit else 0.0)
        names = {base.__name__ for base in type(cause).__mro__}
        if isinstance(cause, TimeoutError | ConnectionError | EOFError) or names & _NETWORK:
            return 0.0
    return None


def _answer(error: BaseException) -> tuple[int, dict[str, Any]]:
    """Status and headers of the answer that an error is about; 0 if it is about none.

    httpx keeps the answer in `response`, botocore a dictionary; aiohttp has both in the error.
    """
    found = getattr(error, "response", None)
    if isinstance(found, dict):
        found = found.get("ResponseMetadata", {})
        return found.get("HTTPStatusCode", 0), found.get("HTTPHeaders", {})
    found = error if found is None else found
    status = getattr(found, "status_code", getattr(found, "status", 0))
    headers = dict(getattr(found, "headers", None) or {})
    return status if isinstance(status, int) else 0, {k.lower(): v for k, v in headers.items()}


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


class PatientFile(io.RawIOBase):
    """A remote file whose reads are tried again, for readers that know nothing of networks."""

    def __init__(self, opened: Callable[[], Any], seconds: float, what: str) -> None:
        self._opened, self._seconds, self._what = opened, seconds, what
        self._place = 0
        self._handle: Any = None
        self._size = int(self._patiently(self._open).size)

    def _patiently(self, function: Callable[[], Value]) -> Value:
        """Typed here: a client's OSError looks like one that Arrow raises for a broken file."""
        try:
            return patiently(function, self._seconds, self._what)
        except TangobenchError:
            raise
        except Exception as error:
            what = f"{self._what} cannot be read: {_first_line(error)}"
            fix = (
                "check the address and your permission to read it, then run the same command again"
            )
            raise InputError(what, kind="source-unreadable", fix=fix, file=self._what) from error

    def _open(self) -> Any:
        self._handle = self._handle or self._opened()
        return self._handle

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` from the current place, as far as there are bytes."""
        data = self._patiently(lambda: self._bytes(len(buffer)))
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
            self._handle = None  # open it anew: a client may have cached half of an answer
            raise
        return data

    def seek(self, place: int, whence: int = 0) -> int:
        self._place = place + (0, self._place, self._size)[whence]
        return self._place

    def readable(self) -> bool:
        return True

    seekable = readable

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
        super().close()
