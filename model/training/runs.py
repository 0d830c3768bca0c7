"""Where a run is stored: OUT/runs/RUN, how a command finds it, and the dataset it was trained on.

- A run trains on OUT/DATASET-PROFILE; trained on another folder, it notes where that is.

Usage: `run_folder(Path("out"), run)`, `find_run_folder("mini-dm_math-tango-s17-101", Path("out"))`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tangobench.errors import CorruptionError
from tangobench.model.training.recipes import Run
from tangobench.pipeline.core import untrusted
from tangobench.pipeline.core.files import write_atomic
from tangobench.pipeline.core.remote import Place, place_of

_DATA: Final = "dataset.txt"
_LONGEST: Final = 1 << 16


def run_folder(out: Path, run: Run) -> Path:
    """The folder of a run's checkpoints and metrics."""
    return out / "runs" / run.name


def find_run_folder(given: str | Path, out: str | Path) -> Path:
    """The folder that was named, or the run of that name in OUT."""
    folder = Path(given)
    return folder if folder.is_dir() else Path(out) / "runs" / folder


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
        return place_of(untrusted.read(note, limit=_LONGEST).decode("utf-8", "surrogateescape"))
    except FileNotFoundError:
        return out / run.recipe.folder
    except OSError as error:
        raise CorruptionError(
            f"{note} cannot be read: {error.strerror}",
            kind="run-corrupt",
            fix="remove it: the dataset is then looked for as OUT/DATASET-PROFILE",
            path=str(note),
        ) from None
