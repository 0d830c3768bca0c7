"""A run on disk and in the record: its folder, log and dataset, which code and machine made it.

- A run is stored in OUT/runs/RUN and trains on OUT/DATASET-PROFILE; trained on another folder, it
  notes where that is.
- Line i of metrics.jsonl is step i and carries its checksum. Missing, doubled or damaged lines are
  refused, but a last line that a kill cut short is dropped; lines are synced before checkpoints.
- `code_sha256` covers the sources that decide weights and scores; provenance is there to be read
  and never decides whether a checkpoint may be continued.
"""

from __future__ import annotations

import functools
import importlib.resources
import importlib.util
import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tangobench import __version__
from tangobench.errors import CorruptionError, TangobenchError, UsageError
from tangobench.model.config import BLOCK_PARAMS
from tangobench.model.training.recipes import Recipe, Run
from tangobench.pipeline.core import files
from tangobench.pipeline.core.files import read_untrusted
from tangobench.pipeline.core.hashing import LINE, digest, seal, sha256_bytes, unseal
from tangobench.pipeline.core.lock import NAME
from tangobench.pipeline.core.spec import parse
from tangobench.pipeline.core.store import Place, place_of

DATASET: Final = "dataset.txt"  # where the data is, if not at OUT/DATASET-PROFILE
_LONGEST: Final = 1 << 16
_NAME: Final = re.compile(NAME)
_MOST_PARAMS: Final = 1 << 34
# What trains and scores; the rest of `eval` only shows results.
_DECIDING: Final = ("model", "eval/scoring")


def run_folder(out: Path, run: Run) -> Path:
    return out / "runs" / run.name


def find_run_folder(given: str | Path, out: str | Path) -> Path:
    """The folder that was named, the run of that name in OUT, or the only run of that recipe."""
    runs = Path(out) / "runs"
    for folder in (Path(given), runs / given):
        if folder.is_dir():
            return folder
    found = sorted(runs.glob("*/"))
    seeds = re.compile(re.escape(str(given)) + r"-s\d+-\d+")
    if len(ours := [folder for folder in found if seeds.fullmatch(folder.name)]) == 1:
        return ours[0]
    there = ", ".join(path.name for path in found) or "none"
    why = f"there is no run {given} (in {runs}: {there})"
    raise UsageError(why, kind="run-missing", fix="name one of those, or another --out")


def dataset_place(out: Path, run: Run) -> Place:
    note = run_folder(out, run) / DATASET
    try:
        return place_of(read_untrusted(note, limit=_LONGEST).decode("utf-8", "surrogateescape"))
    except FileNotFoundError:
        return out / run.recipe.folder
    except OSError as error:
        why = f"{note} cannot be read: {error.strerror}"
        fix = "remove it: the dataset is then looked for as OUT/DATASET-PROFILE"
        raise CorruptionError(why, kind="run-corrupt", fix=fix, path=str(note)) from None


def described_run(meta: Mapping[str, Any], seeds: Sequence[Any]) -> Run | None:
    """The run of a recipe and seeds, if its name and hash are those that stand beside them."""
    try:
        recipe = parse(Recipe, meta["recipe"], where="a record")
        run = Run(recipe, *seeds)
        plain = recipe.as_json() == meta["recipe"] and all(type(seed) is int for seed in seeds)
        names = (recipe.name, recipe.dataset, recipe.profile, recipe.arch)  # shown, parts of paths
        plain = plain and all(map(_NAME.fullmatch, names))
        # Results of an architecture that nobody registered in this process are still results.
        known = recipe.arch in BLOCK_PARAMS
        fits = not known or recipe.model_config().total_params <= _MOST_PARAMS
        same = (run.name, run.sha256) == (meta["run"], meta["run_sha256"])
    except (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, TangobenchError):
        return None
    return run if plain and fits and same else None


def deciding_files() -> dict[str, bytes]:
    """Sources of the packages that decide weights and scores, sub-packages included."""
    root = Path(str(importlib.resources.files("tangobench.model"))).parent
    folders = {name: root / name for name in _DECIDING}
    return {
        f"{name}/{file.relative_to(folder).as_posix()}": file.read_bytes()
        for name, folder in folders.items()
        for file in sorted(folder.rglob("*.py"))
    }


@functools.cache
def code_sha256() -> str:
    return digest({name: sha256_bytes(data) for name, data in deciding_files().items()})


@functools.cache
def commit() -> str | None:
    """The git commit of the running sources, `+` behind it if they were changed; None elsewhere."""
    root = Path(str(importlib.resources.files("tangobench.model"))).parent
    if not (root / ".git").exists():
        return None
    words = ("describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+")
    git = ["git", "-C", str(root), *words]
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def provenance(device: str) -> dict[str, Any]:
    import torch  # not at the top: `tables` reads runs without it

    return {
        "tangobench": __version__,
        "code_sha256": code_sha256(),
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "device": device if device == "cpu" else torch.cuda.get_device_name(device),
        "threads": torch.get_num_threads(),
    }


_NUMBERS: Final = ("loss", "tokens", "seconds")  # what results are made of


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
    message = f"{path}: {why}"
    fix = "restore the file, or remove the run's folder and train it again"
    return CorruptionError(message, kind="metrics-corrupt", fix=fix, path=str(path))


def require_tensorboard() -> None:
    """Say that the package is missing before anything is written."""
    if importlib.util.find_spec("tensorboard") is None:
        why = "--tensorboard needs the tensorboard package"
        fix = "pip install tensorboard (metrics.jsonl is written without it)"
        raise UsageError(why, kind="missing-extra", fix=fix)
