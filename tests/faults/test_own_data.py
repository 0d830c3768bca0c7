"""Hostile files for every reader of own data: a typed error in a second, in bounded memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import hostile
import pytest

from tangobench.errors import InputError
from tangobench.pipeline.fineweb.own import readers
from tangobench.pipeline.fineweb.own.convert import find_files

pytestmark = pytest.mark.faults


def outcomes(reader, folder, *cases):
    """The outcome of every case, in a process of their own; none if a case crashed it."""
    done = subprocess.run(
        [sys.executable, hostile.__file__, reader, str(folder), *map(str, cases)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    last = lines[-1] if lines else {}
    assert done.returncode == 0, f"crashed (code {done.returncode}) at {last}\n{done.stderr}"
    return [line for line in lines if "outcome" in line]


@pytest.mark.parametrize("reader", hostile.MAKERS)
def test_200_hostile_files_are_read_or_refused(reader, tmp_path, record_property):
    record_property("faults", hostile.COUNT)
    found = outcomes(reader, tmp_path)
    assert len(found) == hostile.COUNT
    assert not [one for one in found if one["outcome"].startswith("escape")]
    assert not [one for one in found if one["seconds"] >= 1]
    kinds = Counter(one["outcome"] for one in found)
    assert kinds["read"] < hostile.COUNT / 4 or reader in hostile.LENIENT, "the files do no harm"
    assert kinds["memory"] == 0, "a reader needs 768 MB for some kilobytes"
    assert {one["outcome"] for one in found[-hostile.VALID :]} == {"read"}


def test_a_line_without_an_end_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_LONGEST", 1 << 20)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * (5 << 20))
    with pytest.raises(InputError, match="bytes without an end"):
        list(readers.rows_of(path, {"text": "text"}))


def test_links_that_lead_in_circles_are_not_followed(tmp_path):
    """Two links to their own folder are 2^40 paths for a pattern that follows them."""
    here = tmp_path / "here"
    (here / ".hidden").mkdir(parents=True)
    for name in ("again", "and-again"):
        (here / name).symlink_to(".")
    (here / "self.jsonl").symlink_to("self.jsonl")
    for name in ("a.jsonl", ".hidden/b.jsonl"):
        (here / name).write_text("{}")
    first = here / "a.jsonl"
    for source in (here / "**" / "*.jsonl", here / "**.jsonl", tmp_path / "h*" / "*.jsonl"):
        assert find_files(str(source)) == [first], source
    assert find_files(str(here)) == [here / ".hidden" / "b.jsonl", first]
    assert find_files(str(tmp_path / "*" / ".*" / "*")) == [here / ".hidden" / "b.jsonl"]
    with pytest.raises(InputError, match="does not exist"):
        find_files(str(here / "self.jsonl"))


def test_the_limits_notice_a_reader_that_keeps_none(tmp_path, monkeypatch):
    def naive(path):
        if path.stat().st_size:
            raise KeyError(path)

    path = tmp_path / "a"
    path.write_bytes(b"x")
    assert hostile.outcome(naive, path)["outcome"].startswith("escape: KeyError")
