"""What a person sees of a long job: stage, share done, rate, ETA and memory.

On a terminal one line is redrawn; elsewhere a plain line is printed at most every few seconds.
Everything goes to standard error; `NO_COLOR`, `--quiet` and a missing terminal are honoured.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import sys
import time
from typing import Final, TextIO

from tangobench.errors import printable

_REDRAW_SECONDS: Final = 0.1


class Reporter:
    """Prints progress of one stage at a time."""

    _every = 10.0  # seconds between lines that stay

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        stream = stream or sys.stderr
        self._stream: TextIO = getattr(stream, "unfiltered", stream)  # it has codes of its own
        self.quiet = quiet
        self._live = self._stream.isatty() and not quiet
        colour = self._live and not os.environ.get("NO_COLOR")
        self._bold, self._plain = ("\x1b[1m", "\x1b[0m") if colour else ("", "")
        self._cleared = "\r\x1b[2K" if self._live else ""
        Reporter.start(self, "", 0, 0.0)

    def say(self, line: str) -> None:
        self._keep(printable(line))

    def _keep(self, line: str) -> None:
        if not self.quiet:
            self._write(f"{self._cleared}{line}\n")

    def start(self, stage: str, count: int, weight: float, noun: str = "unit") -> None:
        """Begin a stage of `count` units; `weight` is their sum."""
        self._noun = noun
        self._stage, self._units, self._weight = printable(stage), count, weight or 1.0
        self._done = self._reused = 0
        self._weight_done = self._weight_new = 0.0
        self._began = self._drawn = time.monotonic()

    def advance(
        self, weight: float, *, reused: bool = False, label: str = "", count: int = 1
    ) -> None:
        self._done += count
        self._reused += count * reused
        self._weight_done += weight
        self._weight_new += 0.0 if reused else weight
        now = time.monotonic()
        if now - self._drawn >= (_REDRAW_SECONDS if self._live else self._every):
            self._drawn = now
            self._draw(self._status(now, label))

    def finish(self) -> None:
        seconds = time.monotonic() - self._began
        kept = f", {self._reused:,} kept from before" if self._reused else ""
        name = f"{self._bold}{self._stage}{self._plain}"
        done = units(self._done, self._noun)
        self._keep(f"{name}: {done} in {duration(seconds)}{kept} · {memory()}")

    def _share(self) -> float:
        return min(1.0, self._weight_done / self._weight)

    def _left(self, seconds: float) -> str:
        """Time that the rest takes at the rate so far, once there is one to judge by."""
        if self._weight_new <= 0 or (self._weight_new < self._weight / 50 and seconds < 60):
            return "?"
        rest = max(0.0, self._weight - self._weight_done)  # rounding: no "-0.0 s"
        return duration(rest * seconds / self._weight_new)

    def _status(self, now: float, label: str) -> str:
        seconds = now - self._began
        left = self._left(seconds)
        rate = (self._done - self._reused) / seconds if seconds > 0 else 0.0
        speed = f"{rate:.1f}/s" if rate >= 1 else f"{60 * rate:.1f}/min"
        # What is read most comes first: a narrow terminal cuts the rest off.
        fields = [f"{self._bold}{self._stage}{self._plain} {self._share():4.0%}", f"{left} left"]
        fields += [printable(label)] if label else []
        fields += [f"{self._done:,}/{units(self._units, self._noun)}", speed, memory()]
        return " · ".join(fields)

    def _draw(self, line: str) -> None:
        if self._live:
            width = shutil.get_terminal_size().columns - 1 + len(self._bold + self._plain)
            self._write(f"{self._cleared}{line[:width]}")
        elif not self.quiet:
            self._write(f"{line}\n")

    def _write(self, text: str) -> None:
        # Nobody may be listening any more (`2>&1 | head`): no reason to stop a build.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


def units(count: int, noun: str = "unit") -> str:
    """A number of units in words: 1 unit, 1,200 steps."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """A time span a person can read: 0.4 s, 12 s, 3 m 05 s, 2 h 04 m."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} m {int(seconds % 60):02d} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} m"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def memory() -> str:
    return f"{size(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)} peak"
