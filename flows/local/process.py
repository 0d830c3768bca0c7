"""Background processes that are stopped exactly: the same process, its children, nothing else.

- A process is known by its pid, start time, boot and command line, so a reused pid is never
  signalled; of a record from elsewhere the caller checks the command line as well.
- `stop` ends the process and every descendant it had, politely first.

Usage: `server = start([...], env=env, log=path)`, later `stop(server, seconds=10)`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """One process on this machine, now and later."""

    pid: int
    started: str
    boot: str
    command: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    parent: int
    started: str
    zombie: bool
    command: tuple[str, ...]


def _proc_row(folder: Path) -> _Row | None:
    try:
        text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        words = (folder / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
    except OSError:
        return None
    # The command name is in parentheses and may itself contain spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return _Row(
        parent=int(fields[1]),
        started=fields[19],
        zombie=fields[0] in "ZX",
        command=tuple(words),
    )


def boot() -> str:
    """What differs from one start of this machine to the next, where the system tells."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text(encoding="ascii").strip() if path.exists() else ""


def table() -> dict[int, _Row]:
    """Every process of this machine."""
    proc = Path("/proc")
    if (proc / "self/stat").exists():
        rows = {int(p.name): _proc_row(p) for p in proc.iterdir() if p.name.isdigit()}
        return {pid: row for pid, row in rows.items() if row is not None}
    listing = subprocess.run(
        ["ps", "-axwwo", "pid=,ppid=,stat=,lstart=,args="],
        capture_output=True,
        text=True,
        check=True,
    )
    found = {}
    for line in listing.stdout.splitlines():
        pid, parent, state, *rest = line.split()
        found[int(pid)] = _Row(
            parent=int(parent),
            started=" ".join(rest[:5]),
            zombie=state[0] == "Z",
            command=tuple(rest[5:]),
        )
    return found


def _process(pid: int, row: _Row) -> Process:
    return Process(pid=pid, started=row.started, boot=boot(), command=row.command)


def identify(pid: int) -> Process | None:
    """The process that has this pid now."""
    row = table().get(pid)
    return None if row is None or row.zombie else _process(pid, row)


def alive(process: Process) -> bool:
    """Whether this very process still runs."""
    return identify(process.pid) == process


def descendants(process: Process) -> list[Process]:
    """All children, grandchildren, … of a process, oldest first."""
    rows = table()
    found, frontier = [], {process.pid} if alive(process) else set()
    while frontier:
        children = {pid for pid, row in rows.items() if row.parent in frontier and not row.zombie}
        found += [_process(pid, rows[pid]) for pid in sorted(children)]
        frontier = children
    return found


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
    # The child is ours and not yet reaped, so its row is there even if it has already ended.
    return _process(child.pid, table()[child.pid])


def _signal(processes: Iterable[Process], number: signal.Signals) -> None:
    for process in processes:
        if alive(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)


def _reap(process: Process) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)


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
    _signal([process], signal.SIGTERM)
    wait_gone([process], seconds)
    _signal(family, signal.SIGTERM)
    if not wait_gone(family, seconds / 2):
        _signal(family, signal.SIGKILL)
        wait_gone(family, seconds)
    _reap(process)
