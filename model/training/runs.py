"""Where a run is stored: OUT/runs/RUN, how a command finds it, and the dataset it was trained on.

- A run trains on OUT/DATASET-PROFILE; trained on another folder, it notes where that is.

Usage: `run_folder(Path("out"), run)`, `find_run_folder("mini-dm_math-tango-s17-101", Path("out"))`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from pydantic import TypeAdapter

from tangobench.errors import CorruptionError, TangobenchError, UsageError
from tangobench.model.config import ARCHS, Arch, is_known
from tangobench.model.training.recipes import Recipe, Run
from tangobench.pipeline.core.files import read_untrusted, write_atomic
from tangobench.pipeline.core.lock_schema import NAME
from tangobench.pipeline.core.remote import Place, place_of

_DATA: Final = "dataset.txt"
_LONGEST: Final = 1 << 16
_NAME: Final = re.compile(NAME)
_RECIPE: Final = TypeAdapter(Recipe)
_MOST_PARAMS: Final = 1 << 34


def run_folder(out: Path, run: Run) -> Path:
    """The folder of a run's checkpoints and metrics."""
    return out / "runs" / run.name


def find_run_folder(given: str | Path, out: str | Path) -> Path:
    """The folder that was named, or the run of that name in OUT."""
    runs = Path(out) / "runs"
    for folder in (Path(given), runs / given):
        if folder.is_dir():
            return folder
    there = ", ".join(sorted(path.name for path in runs.glob("*/"))) or "none"
    raise UsageError(
        f"there is no run {given} (in {runs}: {there})",
        kind="run-missing",
        fix="name one of those, or another --out",
    )


def note_dataset(out: Path, run: Run, data: str) -> None:
    """Remember the dataset folder of a run, if it is not the usual one."""
    place = place_of(data)
    if isinstance(place, Path):
        place = place.absolute()
        if place == (out / run.recipe.folder).absolute():
            return
    write_atomic(run_folder(out, run) / _DATA, str(place).encode("utf-8", "surrogateescape"))


def dataset_place(out: Path, run: Run) -> Place:
    """Where the dataset of a run is."""
    note = run_folder(out, run) / _DATA
    try:
        return place_of(read_untrusted(note, limit=_LONGEST).decode("utf-8", "surrogateescape"))
    except FileNotFoundError:
        return out / run.recipe.folder
    except OSError as error:
        raise CorruptionError(
            f"{note} cannot be read: {error.strerror}",
            kind="run-corrupt",
            fix="remove it: the dataset is then looked for as OUT/DATASET-PROFILE",
            path=str(note),
        ) from None


def described_run(meta: Mapping[str, Any], seeds: Sequence[Any]) -> Run | None:
    """The run of a recipe and seeds, if its name and hash are those that stand beside them."""
    try:
        recipe = _recipe(meta["recipe"])
        run = Run(recipe, *seeds)
        plain = recipe.as_json() == meta["recipe"] and all(type(seed) is int for seed in seeds)
        names = (recipe.name, recipe.dataset, recipe.profile)  # parts of paths
        plain = plain and all(map(_NAME.fullmatch, names))
        # Results of an architecture that nobody registered in this process are still results.
        fits = not is_known(recipe.arch) or recipe.model_config().total_params <= _MOST_PARAMS
        same = (run.name, run.sha256) == (meta["run"], meta["run_sha256"])
    except (ValueError, TypeError, ArithmeticError, LookupError, TangobenchError):
        return None
    return run if plain and fits and same else None


def _recipe(values: Mapping[str, Any]) -> Recipe:
    """A recipe from plain values, each of its field's type; an architecture may be one's own."""
    arch = values["arch"]
    if arch in ARCHS:
        recipe: Recipe = _RECIPE.validate_json(json.dumps(values), strict=True)
        return recipe
    if not isinstance(arch, str) or not _NAME.fullmatch(arch):
        raise ValueError(f"arch is {arch!r}")
    plain: Recipe = _RECIPE.validate_json(json.dumps({**values, "arch": ARCHS[0]}), strict=True)
    return dataclasses.replace(plain, arch=cast(Arch, arch))
