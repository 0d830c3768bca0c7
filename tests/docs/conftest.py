"""The folder in which the pages' commands run: what a reader has who followed them so far.

- Built once for all tests of this folder, which stay in one process (`xdist_group("docs")`).
- What a reader brings along has a small stand-in under the name that the pages use.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import polars
import pytest
from reader import HOME, succeed

SAMPLES = ("fineweb", "lean", "dm_math", "dm_math_tests")


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory, sample: Callable[[str], Path]) -> Path:
    """The samples, the manifests, two trained toy models, one of them scored, and stand-ins."""
    place = tmp_path_factory.mktemp("reader")
    (place / "manifests").symlink_to(HOME / "manifests")
    for name in SAMPLES:
        built = sample(name) / f"{name}-sample"
        shutil.copytree(built, place / "out" / built.name, copy_function=os.link)
    for words in (
        "train --recipe sample-dm_math-tango --quiet",
        "train --recipe sample-dm_math-wango --quiet --validate-every 0",
        "eval sample-dm_math-tango-s17-101",
    ):
        succeed(place, "tangobench", *words.split())
    _own_parquet(place / "path" / "to" / "parquet")
    _lean_project(place / "mathlib4", "Mathlib/Order")
    _lean_project(place / "batteries", "Batteries/Data")
    return place


def _own_parquet(folder: Path) -> None:
    """Long documents of the validation dump and of a training dump."""
    folder.mkdir(parents=True)
    texts = polars.read_parquet(HOME / "pipeline" / "fineweb" / "sample.parquet")
    texts = texts.with_columns(id=polars.col("id").bin.encode("hex"))
    longest = texts.sort(polars.col("text").str.len_bytes(), descending=True)
    sides = (polars.col("dump") == dump for dump in ("CC-MAIN-2023-50", "CC-MAIN-2022-49"))
    parts = [longest.filter(side).head(60) for side in sides]
    polars.concat(parts).write_parquet(folder / "a.parquet")


def _lean_project(repository: Path, folder: str) -> None:
    """A clone with three files."""
    place = repository / folder
    place.mkdir(parents=True)
    for name in ("A", "B", "C"):
        (place / f"{name}.lean").write_text(
            f"theorem {name}_self (n : Nat) : n = n := rfl\n\n"
            f"theorem {name}_add (n : Nat) : n + 0 = n := by simp\n"
        )
    for words in ("init --quiet -b main", "add .", "commit --quiet -m first"):
        succeed(repository, "git", *words.split())
