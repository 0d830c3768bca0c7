"""What a run writes down as it goes: one JSON line per step, and TensorBoard events if asked for.

- A resumed run drops the lines of steps that it will take again, so every step stands there once.
- Every line carries a checksum of itself. The last line may be cut short by a kill and is dropped;
  any other damage is refused, because curves and timings in results come from here.

Usage: `log = MetricsLog(path, first_step=0); log.write({"step": 0, "loss": 4.3})`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from tangobench.errors import CorruptionError, UsageError
from tangobench.pipeline.files import PARTIAL, explain_os_errors, write_all, write_atomic
from tangobench.pipeline.hashing import digest

_DIGITS: Final = 16


class MetricsLog:
    """Appends to `metrics.jsonl` and, if asked for, to a folder of TensorBoard events."""

    def __init__(self, path: Path, *, first_step: int, tensorboard: bool = False) -> None:
        kept = [row for row in read_metrics(path) if row["step"] < first_step]
        for left in path.parent.glob(f"{PARTIAL}*"):  # of a process that was killed
            left.unlink()
        write_atomic(path, b"".join(map(_line, kept)))
        self._path = path
        with explain_os_errors(path, 0):
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._events = _event_writer(path.parent / "events", first_step) if tensorboard else None

    def write(self, row: dict[str, Any]) -> None:
        """Add one step."""
        line = _line(row)
        with explain_os_errors(self._path, len(line)):
            write_all(self._file, line)
        if self._events is not None:
            for name, value in row.items():
                if name != "step" and isinstance(value, int | float):
                    self._events.add_scalar(name, value, row["step"])

    def close(self) -> None:
        """Finish both files."""
        os.close(self._file)
        if self._events is not None:
            self._events.close()


def _line(row: dict[str, Any]) -> bytes:
    checked = {**row, "checksum": digest(row)[:_DIGITS]}
    return json.dumps(checked, allow_nan=False).encode() + b"\n"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a metrics file; none if there is no file."""
    lines = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    # Files of earlier versions have no checksums at all; one line without is damage.
    checked = any(b'"checksum"' in line for line in lines)
    rows = [_row(line, path, number, checked) for number, line in enumerate(lines[:-1], 1)]
    return rows  # after the last newline stands nothing, or what a kill cut short


def _row(line: bytes, path: Path, number: int, checked: bool) -> dict[str, Any]:
    try:
        row = json.loads(line)
        checksum = row.pop("checksum", None)
        whole = type(row["step"]) is int and (
            _line(row) == line + b"\n" if checked else checksum is None
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise CorruptionError(
            f"line {number} of {path} is damaged or edited",
            kind="metrics-corrupt",
            fix="restore the file, or remove it: weights do not depend on it, but the curve of the "
            "steps before is lost",
            path=str(path),
        )
    found: dict[str, Any] = row
    return found


def _event_writer(folder: Path, first_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError(
            "--tensorboard needs the tensorboard package",
            kind="missing-extra",
            fix="pip install tensorboard (metrics.jsonl is written without it)",
        ) from None
    return SummaryWriter(str(folder), purge_step=first_step)
