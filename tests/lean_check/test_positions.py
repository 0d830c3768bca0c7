"""The extractor against Lean: the sample compiles, and theorem starts agree on real files.

What it shows: that no theorem is missed or made up and that keywords are where Lean sees them. What
it does not show: where proofs end (without Mathlib, Lean's parser stops early at unknown notation),
and `lemma`, which is Mathlib's own word.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from lean_wasm import home, run_lean

from tangobench.pipeline.lean_fetch import open_repository
from tangobench.pipeline.lean_git import list_files, read_files
from tangobench.pipeline.lean_proofs import extract
from tangobench.pipeline.lean_sample import package_files
from tangobench.pipeline.lean_spec import Spec
from tangobench.pipeline.spec import load_spec

pytestmark = pytest.mark.slow

MATHLIB_FILES = 200
PROGRAM = Path(__file__).with_name("Positions.lean").read_text(encoding="utf-8")


def mathlib_files() -> Iterator[tuple[str, bytes]]:
    """A fixed sample of Mathlib, where a clone is at hand."""
    source = os.environ.get("TANGOBENCH_MATHLIB")
    if source:
        spec = load_spec(Spec, "lean", "paper")
        git_dir = open_repository(source, spec.commit)
        files = list_files(git_dir, spec.commit, spec.root).files
        chosen = sorted(files, key=lambda f: hashlib.sha256(f.path.encode()).digest())
        chosen = chosen[:MATHLIB_FILES]
        yield from zip((f.path for f in chosen), read_files(git_dir, chosen), strict=True)


def without_imports(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("import "))


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory):
    """One start of Lean for everything: (files, messages, positions by path)."""
    own = {p: d for p, d in package_files().items() if p.startswith("Sample/")}
    files = {**own, **dict(mathlib_files())}
    folder = home() / "input"
    paths = {}
    for path, data in files.items():
        paths[path] = folder / path
        paths[path].parent.mkdir(parents=True, exist_ok=True)
        paths[path].write_bytes(data)
    sample = [without_imports(data.decode()) for data in own.values()]
    asked = [f'print_positions "{full}"' for full in paths.values()]
    text = "\n".join(["import Lean", PROGRAM, *asked, *sample])
    messages, lines = run_lean(text)
    found: dict[str, list[int]] = {}
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "@file":
            current = found.setdefault(rest, [])
        elif word == "@theorem":
            current.append(int(rest))
    return files, messages, {path: found.get(str(full), []) for path, full in paths.items()}


def test_sample_is_valid_lean(answer) -> None:
    _, messages, _ = answer
    assert [m["data"] for m in messages if m["severity"] == "error"] == []


def test_starts_agree_on_the_sample(answer) -> None:
    files, _, positions = answer
    for path, data in files.items():
        if path.startswith("Sample/"):
            assert [d.kw_start for d in extract(data, ["theorem"])] == positions[path], path


def test_starts_agree_on_mathlib(answer) -> None:
    files, _, positions = answer
    ours = {(p, d.kw_start) for p in files for d in extract(files[p], ["theorem"])}
    lean = {(p, start) for p in files for start in positions[p]}
    if len(files) < MATHLIB_FILES:
        pytest.skip("set TANGOBENCH_MATHLIB to a clone")
    print(f"ours {len(ours)}, Lean {len(lean)}, both {len(ours & lean)}")
    assert len(ours & lean) >= 0.999 * max(len(ours), len(lean))
