"""Background processes that are stopped exactly: the same process, its children, nothing else.

A process is known by its pid, start time and command line, so a reused pid is never signalled; of a
record from elsewhere the caller checks the command line as well.
Usage: `server = start([...], env=env, log=path)`, later `stop(server, seconds=10)`.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import psutil
from pydantic import ConfigDict

_CLOCK_SECONDS: Final = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """One process on this machine, now and later."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    pid: int
    started: float
    command: tuple[str, ...]


def identify(pid: int) -> Process | None:
    """The process that has this pid now; a zombie is none."""
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(pid)
        return Process(pid=pid, started=found.create_time(), command=tuple(found.cmdline()))
    return None


def alive(process: Process | None) -> bool:
    """Whether this very process still runs."""
    found = identify(process.pid) if process else None
    if process is None or found is None or found.command != process.command:
        return False
    return abs(found.started - process.started) < _CLOCK_SECONDS  # clocks are corrected


def descendants(process: Process | None) -> list[Process]:
    with contextlib.suppress(psutil.Error):
        if process is not None and alive(process):
            children = psutil.Process(process.pid).children(recursive=True)
            return [found for child in children if (found := identify(child.pid))]
    return []


def start(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, keep: Sequence[int] = ()
) -> Process:
    """Start `argv` in its own session; its files are the user's alone, its output goes to `log`.

    `keep` names file descriptors that it inherits.
    """
    with log.open("ab") as output:
        child = subprocess.Popen(
            argv,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o077,
            pass_fds=keep,
        )
    # Not yet reaped, so it is known even if it has already ended.
    started = psutil.Process(child.pid).create_time()
    return Process(pid=child.pid, started=started, command=tuple(argv))


def wait_gone(processes: Sequence[Process], seconds: float) -> None:
    """Wait until none of the processes runs, but not longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)


def stop(process: Process | None, *, seconds: float) -> None:
    """End the process with SIGTERM, then whatever is left of it and its descendants."""
    if process is None:
        return
    family = [process, *descendants(process)]
    for targets, end, patience in (
        ([process], psutil.Process.terminate, seconds),
        (family, psutil.Process.terminate, seconds / 2),
        (family, psutil.Process.kill, seconds),
    ):
        for target in filter(alive, targets):
            with contextlib.suppress(psutil.Error):
                end(psutil.Process(target.pid))
        wait_gone(targets, patience)
    with contextlib.suppress(psutil.Error):
        psutil.Process(process.pid).wait(0)  # takes the exit code of a child of ours
