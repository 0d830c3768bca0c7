"""Background processes that are stopped exactly: the same process, its children, nothing else.

- A process is known by its pid, start time and command line, so a reused pid is never signalled;
  of a record from elsewhere the caller checks the command line as well.
- `stop` ends the process and every descendant it had, politely first.

Usage: `server = start([...], env=env, log=path)`, later `stop(server, seconds=10)`.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

_CLOCK_SECONDS: Final = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """One process on this machine, now and later."""

    pid: int
    started: float
    command: tuple[str, ...]


def identify(pid: int) -> Process | None:
    """The process that has this pid now; a zombie is none."""
    with contextlib.suppress(psutil.Error):
        return _record(psutil.Process(pid))
    return None


def _record(found: psutil.Process, command: Sequence[str] | None = None) -> Process:
    words = found.cmdline() if command is None else command
    return Process(pid=found.pid, started=found.create_time(), command=tuple(words))


def alive(process: Process) -> bool:
    """Whether this very process still runs."""
    found = identify(process.pid)
    if found is None or found.command != process.command:
        return False
    return abs(found.started - process.started) < _CLOCK_SECONDS  # clocks are corrected


def descendants(process: Process) -> list[Process]:
    """All children, grandchildren, … of a process."""
    with contextlib.suppress(psutil.Error):
        if alive(process):
            children = psutil.Process(process.pid).children(recursive=True)
            return [found for child in children if (found := identify(child.pid))]
    return []


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    keep: Sequence[int] = (),
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
    return _record(psutil.Process(child.pid), argv)


def wait_gone(processes: Sequence[Process], seconds: float) -> bool:
    """Wait until none of the processes runs; False if the time was too short."""
    deadline = time.monotonic() + seconds
    while any(alive(process) for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def stop(process: Process, *, seconds: float) -> None:
    """End the process with SIGTERM, then whatever is left of it and its descendants."""
    family = [process, *descendants(process)]
    for targets, end, patience in (
        ([process], psutil.Process.terminate, seconds),
        (family, psutil.Process.terminate, seconds / 2),
        (family, psutil.Process.kill, seconds),
    ):
        for target in targets:
            with contextlib.suppress(psutil.Error):
                if alive(target):
                    end(psutil.Process(target.pid))
        wait_gone(targets, patience)
    with contextlib.suppress(psutil.Error):
        psutil.Process(process.pid).wait(0)  # takes the exit code of a child of ours
