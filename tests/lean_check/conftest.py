"""One start of Lean for all tests that only parse."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tangobench.eval.proofs.wasm import RESULTS, LeanRun, first_command, run_lean, without_imports
from tangobench.pipeline.core.spec import load_spec
from tangobench.pipeline.lean.fetch import open_repository, package_files
from tangobench.pipeline.lean.git import list_files, read_files
from tangobench.pipeline.lean.spec import Spec

HERE = Path(__file__).parent
MATHLIB_FILES = os.environ.get("TANGOBENCH_MATHLIB_FILES") or "400"  # or "all"
SECONDS = 1500


@dataclass(frozen=True, slots=True)
class Seen:
    """What Lean saw in one file: commands as (start, end, next), theorems as (word, proof, end)."""

    commands: list[tuple[int, ...]]
    theorems: list[tuple[str, int, int, int]]


def mathlib_files() -> Iterator[tuple[str, bytes]]:
    """A fixed sample of Mathlib, where a clone is at hand."""
    source = os.environ.get("TANGOBENCH_MATHLIB")
    if source:
        spec = load_spec(Spec, "lean", "paper")
        git_dir = open_repository(source, spec.commit)
        files = list_files(git_dir, spec.commit, spec.root).files
        chosen = sorted(files, key=lambda f: hashlib.sha256(f.path.encode()).digest())
        chosen = chosen if MATHLIB_FILES == "all" else chosen[: int(MATHLIB_FILES)]
        yield from zip((f.path for f in chosen), read_files(git_dir, chosen), strict=True)


def own_files() -> dict[str, bytes]:
    return {p: d for p, d in package_files().items() if p.startswith("Sample/")}


@pytest.fixture(scope="session")
def files() -> dict[str, bytes]:
    hard = {f"Hard/{p.name}": p.read_bytes() for p in sorted((HERE / "hard").glob("*.lean"))}
    return {**own_files(), **hard, **dict(mathlib_files())}


@pytest.fixture(scope="session")
def lines() -> list[list[str]]:
    """Fields of what `answer` wrote, line by line."""
    return []


@pytest.fixture(scope="session")
def answer(files: dict[str, bytes], lines: list[list[str]]) -> LeanRun:
    """Lean on the sample as it is, and its parser on all files."""

    def write(folder: Path) -> str:
        for i, data in enumerate(files.values()):
            (folder / f"{i}.lean").write_bytes(without_imports(data))
        starts = ", ".join(str(first_command(data)) for data in files.values())
        program = [(HERE / name).read_text() for name in ("Positions.lean", "Vocabulary.lean")]
        ask = f'#eval Positions.print "{folder / RESULTS}" "{folder}" [{starts}]'
        return "\n".join(["import Lean", *program, ask, "\n"])

    return run_lean(write, seconds=SECONDS, heard=lines.append)


@pytest.fixture(scope="session")
def compiled() -> LeanRun:
    """Lean on the whole sample, every proof checked."""
    texts = [without_imports(data).decode() for data in own_files().values()]
    return run_lean(lambda folder: "\n".join(["import Lean", *texts]), seconds=SECONDS)


@pytest.fixture(scope="session")
def seen(files: dict[str, bytes], answer: LeanRun, lines: list[list[str]]) -> dict[str, Seen]:
    found = {path: Seen([], []) for path in files}
    names = list(files)
    for file, word, *places in lines[:-1]:  # the last one says that Lean has read it all
        numbers = [-1 if place == "-" else int(place) for place in places]
        entry = found[names[int(file)]]
        if word == "command":
            entry.commands.append(tuple(numbers))
        elif numbers[0] >= 0:  # else it gave up before the word
            entry.theorems.append((word, *numbers))
    return found
