"""What a run writes down, and what a person sees of it while it trains.

- Line i of metrics.jsonl is step i and carries its checksum. Missing, doubled or damaged lines are
  refused, but a last line that a kill cut short is dropped; lines are synced before checkpoints.
- Validation rows are a fixed subset, evenly spaced, about 5% of a run; nothing is selected by it.
- Utilisation is useful arithmetic (three forward passes by the paper's formulas, causal pairs and
  rows of targets only) over time × the GEMM rate that this device reached just before.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from tangobench.errors import CorruptionError, UsageError
from tangobench.model.config import SCALING, ModelConfig, formula
from tangobench.model.language import LanguageModel
from tangobench.model.training.loader import Batch, Stream, configs_of
from tangobench.model.training.optim import autocast
from tangobench.model.training.recipes import Recipe
from tangobench.pipeline.core import files
from tangobench.pipeline.core.hashing import LINE, seal, unseal
from tangobench.pipeline.reading import Dataset

_NUMBERS: Final = ("loss", "tokens", "seconds")  # what results are made of
POINTS: Final = 20  # measurements of a run
_MOST_ROWS: Final = 256
_SHARE: Final = 0.05  # of a run's time; a forward pass is a third of a step
_TRACED: Final = 3  # steps of a profile, after one that warms up
_GEMM: Final = 768
_REPETITIONS: Final = 8
_CAUSAL: Final = {"tango", "recurrent_transformer", "untied_transformer", "gau"}
DTYPES: Final = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}


class MetricsLog:
    """Appends to `metrics.jsonl` and, if asked for, to a folder of TensorBoard events."""

    def __init__(self, path: Path, *, first_step: int, tensorboard: bool = False) -> None:
        kept = read_metrics(path)[:first_step]
        if len(kept) < first_step:
            raise _corrupt(path, f"it has {len(kept):,} steps, the checkpoint {first_step:,}")
        for left in path.parent.glob(f"{files.PARTIAL}*"):  # of a process that was killed
            left.unlink()
        files.write_atomic(path, b"".join(seal(row, LINE) for row in kept))
        self._path = path
        with files.explain_os_errors(path, 0):
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._events: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(path.parent / "events"), purge_step=first_step)

    def write(self, row: dict[str, Any]) -> None:
        line = seal(row, LINE)
        with files.explain_os_errors(self._path, len(line)):
            files.write_all(self._file, line)
        if self._events is not None:
            for name, value in _scalars(row):
                self._events.add_scalar(name, value, row["step"])

    def sync(self) -> None:
        """Make all lines durable: a checkpoint never has more steps than the log."""
        with files.explain_os_errors(self._path, 0):
            os.fsync(self._file)

    def close(self) -> None:
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
    """All whole lines, none if there is no file; with `steps`, exactly that many must be there."""
    try:
        lines = files.read_untrusted(path, limit=files.LOG_BYTES).split(b"\n")
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


class Validation:
    """The fixed validation rows of a run; configs without validation rows are left out."""

    def __init__(self, dataset: Dataset, recipe: Recipe) -> None:
        configs = [c for c in configs_of(dataset) if "validation" in dataset.lock.splits(c)]
        budget = int(_SHARE * 3 * recipe.steps * recipe.batch / POINTS / max(1, len(configs)))
        self._precision = recipe.precision
        self._batches: dict[str, Batch] = {}
        self.rows = 0
        for config in configs:
            stream = Stream(dataset, config, "validation", context=recipe.context)
            count = min(len(stream), _MOST_ROWS, max(4, budget))
            rows = np.linspace(0, max(0, len(stream) - 1), count).astype(np.int64)
            if count:
                self._batches[config] = stream.batch(rows)
                self.rows += count
            stream.close()

    @torch.no_grad()
    def nll(self, model: LanguageModel, microbatch: int) -> dict[str, float]:
        """Mean NLL of the subset's targets in nats, by config, some rows at once."""
        device = next(model.parameters()).device
        found = {}
        for config, whole in self._batches.items():
            total, count = 0.0, 0
            for batch in whole.microbatches(microbatch):
                tokens, places = batch.on(device, model.config.vocabulary)
                with autocast(device.type, self._precision):
                    nll = model.loss_at(tokens, places)
                total, count = total + float(nll), count + batch.targets
            if count:
                found[config] = total / count
        return found


class Meter:
    """Tokens per second and utilisation since the start of this process."""

    def __init__(self, recipe: Recipe, device: str) -> None:
        self._config = recipe.model_config()
        self._rate = gemm_rate(device, recipe.precision)
        self._flop = self._seconds = 0.0
        self._tokens = 0

    def add(self, batch: Batch, seconds: float) -> None:
        self._flop += useful_flop(self._config, batch.lengths_B.tolist(), batch.targets)
        self._seconds += seconds
        self._tokens += batch.tokens

    def __str__(self) -> str:
        seconds = max(self._seconds, 1e-9)
        rate = f"{self._tokens / seconds:,.0f} tokens/s"
        share = self._flop / seconds / self._rate
        return f"{rate} · {share:.0%} of the GEMM rate" if share else rate


def gemm_rate(device: str, precision: str) -> float:
    a = torch.ones(_GEMM, _GEMM, device=device, dtype=DTYPES[precision])
    return 2.0 * _GEMM**3 / best(lambda: float((a @ a)[0, 0]))  # waits for a GPU


def best(work: Callable[[], object]) -> float:
    """Seconds of the fastest repetition: CPU time with one thread and no GPU, else wall time."""
    clock = time.perf_counter if torch.get_num_threads() > 1 else time.thread_time
    if torch.cuda.is_initialized():
        clock = time.perf_counter
    times = []
    for _ in range(_REPETITIONS):
        began = clock()
        work()
        times.append(clock() - began)
    return max(min(times), 1e-9)


def useful_flop(config: ModelConfig, lengths: list[int], targets: int) -> float:
    """Arithmetic of one step that no implementation can do without; 0 if there is no formula."""
    if config.arch not in SCALING:
        return 0.0
    total = float(targets * config.d_model * config.vocabulary)
    for length, rows in Counter(lengths).items():
        terms = formula(config, length)
        pairs = terms["pairs"] * ((length + 1) / (2 * length) if config.arch in _CAUSAL else 1)
        total += rows * (terms["projections"] + pairs + terms.get("state", 0))
    return 2 * 3 * total


def trace(path: Path) -> torch.profiler.profile:
    """A profile of some steps after one that warms up, as a file for chrome://tracing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=_TRACED, repeat=1),
        on_trace_ready=lambda profile: profile.export_chrome_trace(str(path)),
        profile_memory=True,
    )
