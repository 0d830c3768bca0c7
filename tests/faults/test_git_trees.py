"""Hostile git repositories, their objects written byte by byte."""

from __future__ import annotations

import os
import subprocess
import time
import zlib
from pathlib import Path

import pytest

from tangobench.errors import CorruptionError, InputError, ResourceError, TangobenchError
from tangobench.pipeline.lean import git
from tangobench.pipeline.lean.export import export
from tangobench.pipeline.lean.git import list_files, object_id, read_files

pytestmark = pytest.mark.faults


class Objects:
    """A bare repository whose objects are written byte by byte: git itself refuses such trees."""

    def __init__(self, folder: Path) -> None:
        subprocess.run(["git", "init", "--quiet", "--bare", str(folder)], check=True)
        self.folder = folder

    def write(self, kind: bytes, data: bytes, name: str | None = None) -> str:
        name = name or object_id(kind, data)
        path = self.folder / "objects" / name[:2] / name[2:]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(zlib.compress(b"%s %d\0" % (kind, len(data)) + data))
        return name

    def tree(self, entries: list[tuple[bytes, bytes, str]], name: str | None = None) -> str:
        data = b"".join(m + b" " + n + b"\0" + bytes.fromhex(i) for m, n, i in entries)
        return self.write(b"tree", data, name)

    def commit(self, tree: str) -> str:
        who = b"a <a@b.c> 1700000000 +0000"
        head = b"tree " + tree.encode() + b"\nauthor " + who + b"\ncommitter " + who
        return self.write(b"commit", head + b"\n\nx\n")


@pytest.fixture
def objects(tmp_path):
    return Objects(tmp_path / "hostile.git")


GOOD = b"theorem a : P := h\n"
HOSTILE = [
    b"..", b".", b".git", b"../../etc/x.lean", b"/etc/passwd.lean", b"a/../../b.lean",
    b"x\\..\\y.lean",
    b"new\nline.lean", b"\xff.lean", b"c:\\x.lean", b"a\x1b[31m.lean", b"\xe2\x80\xa8.lean",
]  # fmt: skip


def test_names_in_a_git_tree_lead_nowhere(objects):
    blob = objects.write(b"blob", GOOD)
    entries = [(b"100644", name, blob) for name in sorted({*HOSTILE, b"Good.lean", b"good.lean"})]
    commit = objects.commit(objects.tree(entries))
    listing = list_files(objects.folder, commit, "")
    paths = [file.path for file in listing.files]
    assert {"Good.lean", "good.lean"} <= set(paths)  # twins by case stay two files
    for path in paths:
        parts = path.split("/")
        assert not {"", ".", ".."} & set(parts) and path.isprintable(), path
    assert sum(listing.rejected.values()) >= 6


@pytest.mark.parametrize("mode", [b"120000", b"160000", b"777777"])
def test_links_submodules_and_odd_modes_are_no_files(objects, mode):
    blob = objects.write(b"blob", b"/etc/passwd")
    good = objects.write(b"blob", GOOD)
    entries = [(b"100644", b"A.lean", good), (mode, b"B.lean", blob)]
    listing = list_files(objects.folder, objects.commit(objects.tree(entries)), "")
    assert [file.path for file in listing.files] == ["A.lean"]


def test_a_tree_that_does_not_match_its_id_is_refused(objects):
    """The commit is right and so is every blob: only the tree between them says something else."""
    honest, other = objects.write(b"blob", GOOD), objects.write(b"blob", b"axiom evil : False\n")
    tree = objects.tree([(b"100644", b"A.lean", honest)])
    commit = objects.commit(tree)
    assert [*read_files(objects.folder, list_files(objects.folder, commit, "").files)] == [GOOD]
    objects.tree([(b"100644", b"A.lean", other)], name=tree)
    with pytest.raises(CorruptionError, match=r"does not match its id|failed"):
        list_files(objects.folder, commit, "")


def test_trees_nested_a_thousand_deep(objects):
    below = objects.tree([(b"100644", b"A.lean", objects.write(b"blob", GOOD))])
    for _ in range(1000):
        below = objects.tree([(b"40000", b"d", below)])
    commit = objects.commit(below)
    try:
        assert len(list_files(objects.folder, commit, "").files) == 1
    except TangobenchError as error:
        assert error.fix


def test_a_blob_that_decodes_to_much_is_left_out(objects):
    bomb = objects.write(b"blob", b" " * 300_000_000)
    path = objects.folder / "objects" / bomb[:2] / bomb[2:]
    assert path.stat().st_size < 500_000
    entries = [(b"100644", b"A.lean", objects.write(b"blob", GOOD)), (b"100644", b"B.lean", bomb)]
    commit = objects.commit(objects.tree(entries))
    listing = list_files(objects.folder, commit, "", max_bytes=1_000_000)
    assert [file.path for file in listing.files] == ["A.lean"]
    assert listing.rejected == {"too-large": 1}


def folder_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_small_repository_with_ten_billion_paths(objects):
    below = objects.tree([(b"100644", b"A.lean", objects.write(b"blob", GOOD))])
    for _ in range(10):
        below = objects.tree([(b"40000", b"%d" % n, below) for n in range(10)])
    commit = objects.commit(below)
    assert folder_size(objects.folder) < 104_000
    began = time.monotonic()
    with pytest.raises(InputError) as caught:
        list_files(objects.folder, commit, "")
    assert caught.value.kind == "repository-too-large"
    assert time.monotonic() - began < 10
    # A folder of it that is small enough can be read.
    assert len(list_files(objects.folder, commit, "/".join("1" * 8)).files) == 100


def test_a_tree_that_decodes_to_much_is_refused(objects, monkeypatch):
    monkeypatch.setattr(git, "_MAX_TREE", 1_000_000)
    blob = objects.write(b"blob", GOOD)
    commit = objects.commit(
        objects.tree([(b"100644", b"%d.lean" % n, blob) for n in range(40_000)])
    )
    with pytest.raises(InputError) as caught:
        list_files(objects.folder, commit, "")
    assert caught.value.kind == "repository-too-large"


def test_many_paths_to_one_large_file_are_refused(objects, monkeypatch):
    blob = objects.write(b"blob", b"x" * 1_000_000)
    tree = objects.tree([(b"100644", b"%d.lean" % n, blob) for n in range(1000)])
    commit = objects.commit(tree)
    assert folder_size(objects.folder) < 104_000
    assert len(list_files(objects.folder, commit, "").files) == 1000
    monkeypatch.setattr(git, "_MAX_BYTES", 999_999_999)
    with pytest.raises(InputError) as caught:
        list_files(objects.folder, commit, "")
    assert caught.value.kind == "repository-too-large"


def test_extracting_reads_some_megabytes_at_a_time(objects, tmp_path, monkeypatch):
    text = b"theorem a : P := h\n" + b"-- x\n" * 200_000
    blob, large = objects.write(b"blob", text), objects.write(b"blob", b" " * 9_000_000)
    entries = [(b"100644", b"%02d.lean" % n, blob) for n in range(40)]
    commit = objects.commit(objects.tree([*entries, (b"100644", b"L.lean", large)]))
    read = []
    really = git.read_files

    def counted(git_dir, files):
        read.append(sum(file.size for file in files))
        return really(git_dir, files)

    monkeypatch.setattr("tangobench.pipeline.lean.export.read_files", counted)
    done = export(str(objects.folder), commit, str(tmp_path / "out.jsonl"))
    assert (done["declarations"], done["rejected"]) == (40, {"too-large": 1})
    assert sum(read) == 40 * len(text) and max(read) < 6_000_000
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 40


@pytest.mark.parametrize("what", ["commit", "tree", "blob"])
def test_an_object_that_is_a_fifo_ends_in_time(objects, monkeypatch, what):
    monkeypatch.setattr(git, "SECONDS", 1.0)
    ids = {"blob": objects.write(b"blob", GOOD)}
    ids["tree"] = objects.tree([(b"100644", b"A.lean", ids["blob"])])
    ids["commit"] = objects.commit(ids["tree"])
    path = objects.folder / "objects" / ids[what][:2] / ids[what][2:]
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ResourceError) as caught:
        read_files(objects.folder, list_files(objects.folder, ids["commit"], "").files)
    assert caught.value.kind == "git-timeout"


def test_a_ref_that_is_a_fifo_ends_in_time(objects, monkeypatch):
    monkeypatch.setattr(git, "_SECONDS_FOR_REFS", 1.0)
    os.mkfifo(objects.folder / "refs" / "heads" / "main")
    with pytest.raises(ResourceError) as caught:
        git.commit_of(objects.folder, "main")
    assert caught.value.kind == "git-timeout"


@pytest.mark.parametrize(
    "data",
    [b"100644 A.lean", b"100644 A.lean\0short", b" A\0" + bytes(20), b"9 A\0" + bytes(20),
     b"100644 \0" + bytes(20), b"\0" * 30],
    ids=repr,
)  # fmt: skip
def test_bytes_that_are_no_tree(objects, data):
    commit = objects.commit(objects.write(b"tree", data))
    with pytest.raises(CorruptionError):
        list_files(objects.folder, commit, "")
