"""The committed lock of all of Mathlib, rebuilt where a clone is at hand."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tangobench.pipeline import api
from tangobench.pipeline.core.spec import manifest_file
from tangobench.pipeline.lean.fetch import open_repository
from tangobench.pipeline.lean.git import list_files, read_files
from tangobench.pipeline.lean.proofs import extract

VARIABLE = "TANGOBENCH_MATHLIB"
LOCK = json.loads(manifest_file("lean.paper.lock.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def mathlib() -> str:
    source = os.environ.get(VARIABLE)
    if not source:
        pytest.skip(f"set {VARIABLE} to a repository that holds {LOCK['source']['commit']}")
    return source


def test_lock_is_of_the_whole_commit() -> None:
    assert LOCK["source"]["commit"] == "cf8e23a62939ed7cc530fbb68e83539730f32f86"
    assert (LOCK["source"]["files"], LOCK["source"]["bytes"]) == (3759, 60_094_008)
    assert sum(LOCK["counts"][split]["declarations"] for split in LOCK["counts"]) == 107_741


@pytest.mark.slow
def test_rebuild_gives_the_committed_root(mathlib: str, tmp_path: Path) -> None:
    built = api.build("lean", "paper", workers=2, out=str(tmp_path), source=mathlib)
    assert built.lock.root == LOCK["root"]


@pytest.mark.slow
def test_counts_by_style(mathlib: str) -> None:
    commit = LOCK["source"]["commit"]
    git_dir = open_repository(mathlib, commit)
    listing = list_files(git_dir, commit, "Mathlib/")
    found = [d for data in read_files(git_dir, listing.files) for d in extract(data)]
    styles = {style: sum(d.style == style for d in found) for style in ("by", "term", "|", "where")}
    assert styles == {"by": 44_664, "term": 61_291, "|": 1_584, "where": 202}
