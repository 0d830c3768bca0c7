"""What a run writes down as it goes: one JSON line per step, and TensorBoard events if asked for.

- A resumed run drops the lines of steps that it will take again, so every step stands there once.
- A line that a kill cut short is dropped too.

Usage: `log = MetricsLog(path, first_step=0); log.write({"step": 0, "loss": 4.3})`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tangobench.errors import UsageError
from tangobench.pipeline.files import write_atomic


class MetricsLog:
    """Appends to `metrics.jsonl` and, if asked for, to a folder of TensorBoard events."""

    def __init__(self, path: Path, *, first_step: int, tensorboard: bool = False) -> None:
        kept = [row for row in read_metrics(path) if row["step"] < first_step]
        write_atomic(path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self._file = path.open("a", encoding="utf-8")
        self._events = _event_writer(path.parent / "events", first_step) if tensorboard else None

    def write(self, row: dict[str, Any]) -> None:
        """Add one step."""
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        self._file.flush()
        if self._events is not None:
            for name, value in row.items():
                if name != "step" and isinstance(value, int | float):
                    self._events.add_scalar(name, value, row["step"])

    def close(self) -> None:
        """Finish both files."""
        self._file.close()
        if self._events is not None:
            self._events.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a metrics file; none if there is no file."""
    rows = []
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break  # a kill cut this line short; nothing after it can be trusted
    return rows


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
