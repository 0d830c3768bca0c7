"""Hostile git repositories, their objects written byte by byte."""

from __future__ import annotations

import subprocess
import zlib
from pathlib import Path

import pytest

from tangobench.errors import CorruptionError, TangobenchError
from tangobench.pipeline.lean_git import list_files, object_id, read_files

pytestmark = pytest.mark.faults


class Objects:
    """A bare repository whose objects are written byte by byte: git itself refuses such trees."""

    def __init__(self, folder: Path) -> None:
        subprocess.run(["git", "init", "--quiet", "--bare", str(folder)], check=True)
        self.folder = folder

    def write(self, kind: bytes, data: bytes, name: str | None = None) -> str:
        name = name or object_id(kind, data, "0" * 40)
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
