"""What a run writes down as it goes: one JSON line per step, and TensorBoard events if asked for.

- Line i is step i: missing, doubled or misplaced steps are refused. A resumed run drops the lines
  of steps that it will take again, and lines are synced before a checkpoint is written.
- Where it was measured, `validation_nll` holds the NLL of a fixed subset by config.
- Every line carries a checksum of itself. The last line may be cut short by a kill and is dropped;
  any other damage is refused, because curves and timings in results come from here.

Usage: `log = MetricsLog(path, first_step=0); log.write({"step": 0, "loss": 4.3})`.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tangobench.errors import CorruptionError, UsageError
from tangobench.pipeline.core.files import (
    LOG_BYTES,
    PARTIAL,
    explain_os_errors,
    read_untrusted,
    write_all,
    write_atomic,
)
from tangobench.pipeline.core.sealed import LINE, seal, unseal

_NUMBERS: Final = ("loss", "tokens", "seconds")  # what results are made of


class MetricsLog:
    """Appends to `metrics.jsonl` and, if asked for, to a folder of TensorBoard events."""

    def __init__(self, path: Path, *, first_step: int, tensorboard: bool = False) -> None:
        kept = read_metrics(path)[:first_step]
        if len(kept) < first_step:
            raise _corrupt(path, f"it has {len(kept):,} steps, the checkpoint {first_step:,}")
        for left in path.parent.glob(f"{PARTIAL}*"):  # of a process that was killed
            left.unlink()
        write_atomic(path, b"".join(seal(row, LINE) for row in kept))
        self._path = path
        with explain_os_errors(path, 0):
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._events = _event_writer(path.parent / "events", first_step) if tensorboard else None

    def write(self, row: dict[str, Any]) -> None:
        """Add one step."""
        line = seal(row, LINE)
        with explain_os_errors(self._path, len(line)):
            write_all(self._file, line)
        if self._events is not None:
            for name, value in _scalars(row):
                self._events.add_scalar(name, value, row["step"])

    def sync(self) -> None:
        """Make all lines durable: a checkpoint never has more steps than the log."""
        with explain_os_errors(self._path, 0):
            os.fsync(self._file)

    def close(self) -> None:
        """Finish both files."""
        os.close(self._file)
        if self._events is not None:
            self._events.close()


def _scalars(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from ((f"{name}/{inner}", number) for inner, number in value.items())
        elif name != "step" and isinstance(value, int | float):
            yield name, value


def read_metrics(path: Path, *, steps: int | None = None) -> list[dict[str, Any]]:
    """All whole lines, line i being step i; none if there is no file.

    With `steps`, exactly that many must be there. After the last newline there is nothing, or what
    a kill cut short.
    """
    try:
        lines = read_untrusted(path, limit=LOG_BYTES).split(b"\n")
    except FileNotFoundError:
        lines = [b""]
    except OSError as error:
        raise _corrupt(path, str(error.strerror)) from None
    # Files of earlier versions have no checksums at all; one line without is damage.
    checked = any(b'"checksum"' in line for line in lines)
    rows = [_row(line, path, number, checked) for number, line in enumerate(lines[:-1])]
    if steps is not None and len(rows) != steps:
        raise _corrupt(path, f"it has {len(rows):,} steps, the checkpoint {steps:,}")
    return rows


def _row(line: bytes, path: Path, number: int, checked: bool) -> dict[str, Any]:
    try:
        row: dict[str, Any] = unseal(line + b"\n", LINE) if checked else json.loads(line)
        step = row["step"]
        whole = isinstance(row["config"], str) and all(
            type(row[name]) in (int, float) and math.isfinite(row[name]) for name in _NUMBERS
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise _corrupt(path, f"line {number + 1} is damaged or edited") from None
    if type(step) is not int or step != number or not whole:
        raise _corrupt(path, f"line {number + 1} is not step {number} with its loss and times")
    return row


def _corrupt(path: Path, why: str) -> CorruptionError:
    return CorruptionError(
        f"{path}: {why}",
        kind="metrics-corrupt",
        fix="restore the file, or remove the run's folder and train it again",
        path=str(path),
    )


def require_tensorboard() -> None:
    """Say that the package is missing before anything is written."""
    if importlib.util.find_spec("tensorboard") is None:
        raise UsageError(
            "--tensorboard needs the tensorboard package",
            kind="missing-extra",
            fix="pip install tensorboard (metrics.jsonl is written without it)",
        )


def _event_writer(folder: Path, first_step: int) -> Any:
    require_tensorboard()
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=first_step)
