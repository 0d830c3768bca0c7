"""What workers do in the launcher's tests in place of training."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tangobench.errors import BusyError, InputError

FAILS = "sample-dm_math-flash-s2-2"


def twenty_steps(run: Any, out: Path, device: str, extras: Sequence[str]) -> None:
    """A line per step, resumed after those that are there; one run fails until it is repaired."""
    here = out / run.name
    lock = here.with_suffix(".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise BusyError("held", kind="busy") from None
    with here.with_suffix(".devices").open("a") as file:
        file.write(f"{device}\n")
    for step in range(here.read_text().count("x") if here.exists() else 0, 20):
        if run.name == FAILS and step == 5 and not (out / "repaired").exists():
            raise InputError("loss nan at step 5", kind="loss-not-finite")
        with here.open("a") as file:
            file.write("x")
        time.sleep(0.01)
    with here.with_suffix(".done").open("a") as file:
        file.write("once\n")


def until_asked_to_stop(run: Any, out: Path, device: str, extras: Sequence[str]) -> None:
    """Marks its start, and the SIGTERM at which training would save a checkpoint."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit((out / "saved").touch()))
    (out / "pid").write_text(str(os.getpid()))
    (out / "started").touch()
    time.sleep(60)


def a_bug(run: Any, out: Path, device: str, extras: Sequence[str]) -> None:
    print("begun", flush=True)
    raise ZeroDivisionError("a bug")
