"""Files of one commit, read from a git object database with GitPython and never from a work tree.

- The commit asked for is the commit read: its id is checked against its own bytes, and so is every
  tree and every blob that is used.
- Paths are counted before they are listed: a repository of 100 kB may name 10¹⁰ of them.
- Only regular files count. Symlinks, submodules, paths that are not UTF-8 or hold control
  characters and files that are too large are left out and counted.

Usage: `listing = list_files(git_dir, commit, "Mathlib/")`, `read_files(git_dir, listing.files)`.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from git import Repo

from tangobench.errors import InputError, TangobenchError
from tangobench.pipeline.lean.repository import damaged, objects, opened, sizes, too_much

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ufeff\u2028\u2029]")
_MAX_DEPTH: Final = 1100  # folders; Mathlib has 7, git itself stops between 2,000 and 5,000
_MAX_ENTRIES: Final = 1_000_000  # files and folders under a root; Mathlib has 4,000
_MAX_PATH: Final = 4096  # bytes
_MAX_TREE: Final = 1 << 26  # bytes of one tree object
_MAX_BYTES: Final = 1 << 33  # of all wanted files together; Mathlib has 60 MB

_SHORT: Final = 1000  # bytes of `lean-toolchain`
_TOOLCHAIN: Final = "lean-toolchain"
_FOLDER: Final = 0o040000
_SYMLINK: Final = 0o120000
_REGULAR: Final = (0o100644, 0o100755)

Entry = tuple[int, bytes, str]  # mode as git normalises it, name or path, id
Trees = dict[str, list[Entry]]


@dataclass(frozen=True, slots=True)
class File:
    """A regular file of a commit."""

    path: str
    blob: str
    size: int


@dataclass(frozen=True, slots=True)
class Listing:
    """The wanted files of a commit, in path order, and why others were left out."""

    commit: str
    tree: str
    files: tuple[File, ...]
    rejected: dict[str, int]


def list_files(
    git_dir: Path, commit: str, root: str, *, suffix: str = ".lean", max_bytes: int = 1 << 62
) -> Listing:
    """The regular files under `root` with this suffix."""
    with opened(git_dir) as repo:
        tree, found = _entries(repo, git_dir, commit, root)
        rejected: Counter[str] = Counter()
        wanted = []
        for mode, path, blob in found:
            reason = refusal(mode, path, suffix)
            if reason is None:
                wanted.append((path.decode(), blob))
            elif reason:
                rejected[reason] += 1
        found_sizes = sizes(repo, wanted)
        elsewhere = [] if wanted else _entries(repo, git_dir, commit, "")[1]
    files = [File(*named, size) for named, size in zip(wanted, found_sizes, strict=True)]
    rejected["too-large"] = sum(file.size > max_bytes for file in files)
    files = [file for file in files if file.size <= max_bytes]
    if not files:
        paths = [
            path.decode() for mode, path, _ in elsewhere if refusal(mode, path, suffix) is None
        ]
        raise InputError(
            f"commit {commit} has no {suffix} files under {root or '/'!r}",
            kind="no-lean-files",
            fix=_where_else(paths),
            rejected=dict(+rejected),
        )
    if sum(file.size for file in files) > _MAX_BYTES:
        raise too_much(git_dir, f"{suffix} files of more than {_MAX_BYTES:,} bytes together")
    ordered = tuple(sorted(files, key=lambda file: file.path))
    return Listing(commit, tree, ordered, dict(sorted((+rejected).items())))


def _where_else(paths: Sequence[str]) -> str:
    folders = sorted({f"{path.partition('/')[0]}/" for path in paths if "/" in path})
    if not paths:
        return "check --source and --commit"
    return f"give --root {' or '.join([*folders[:5], repr('')])} ('' is everything)"


def wanted_blobs(git_dir: Path, commit: str, root: str, suffix: str) -> set[str]:
    """Ids of the regular files under `root` with this suffix, without reading any of them."""
    with opened(git_dir) as repo:
        found = _entries(repo, git_dir, commit, root)[1]
        blobs = {blob for mode, path, blob in found if refusal(mode, path, suffix) is None}
        return blobs | {blob for _, blob in _toolchain_file(repo, commit)}


def toolchain(git_dir: Path, commit: str) -> str | None:
    """What `lean-toolchain` at the top of the repository names, if it is there and readable."""
    with contextlib.suppress(TangobenchError, UnicodeDecodeError), opened(git_dir) as repo:
        for data in objects(repo, "blob", _toolchain_file(repo, commit), _SHORT):
            text = data.decode("ascii").strip()
            return text if text.isprintable() and text else None
    return None


def _toolchain_file(repo: Repo, commit: str) -> list[tuple[str, str]]:
    tree = _tree_of(repo, commit)
    (data,) = objects(repo, "tree", [("/", tree)], _MAX_TREE)
    name = _TOOLCHAIN.encode()
    return [(_TOOLCHAIN, e[2]) for e in _parsed(data, tree) if e[1] == name and e[0] in _REGULAR]


def _tree_of(repo: Repo, commit: str) -> str:
    (data,) = objects(repo, "commit", [(f"commit {commit}", commit)], _MAX_TREE)
    return data.split(b"\n", 1)[0].removeprefix(b"tree ").decode(errors="replace")


def read_files(git_dir: Path, files: Sequence[File]) -> list[bytes]:
    """The files' contents, in order, each checked against its id."""
    with opened(git_dir) as repo:
        return list(objects(repo, "blob", [(file.path, file.blob) for file in files]))


def batches(files: Sequence[File], batch_bytes: int) -> list[list[File]]:
    """Consecutive files in batches of about this size."""
    cut: list[list[File]] = []
    room = 0
    for file in files:
        if room <= 0:
            cut.append([])
            room = batch_bytes
        cut[-1].append(file)
        room -= file.size
    return cut


def _entries(repo: Repo, git_dir: Path, commit: str, root: str) -> tuple[str, list[Entry]]:
    """The commit's tree, and mode, path and id of everything under `root` that is no folder."""
    tree = _tree_of(repo, commit)
    start, prefix = tree, b""
    for name in root.strip("/").encode().split(b"/") if root.strip("/") else []:
        (data,) = objects(repo, "tree", [(f"/{prefix.decode()}", start)], _MAX_TREE)
        folders = {entry[1]: entry[2] for entry in _parsed(data, start) if entry[0] == _FOLDER}
        if name not in folders:
            return tree, []
        start, prefix = folders[name], prefix + name + b"/"
    trees = _read_trees(repo, git_dir, start)
    return tree, list(_expanded(trees, start, prefix))


def _read_trees(repo: Repo, git_dir: Path, root: str) -> Trees:
    """Every tree below one, by id, after their paths are counted: a small repository may name 10¹⁰.

    A level holds the distinct trees of one depth and how many paths lead to each.
    """
    trees: Trees = {}
    level, total = Counter({root: 1}), 0
    for _ in range(_MAX_DEPTH):
        new = [("/", ident) for ident in level if ident not in trees]
        for (_, ident), data in zip(new, objects(repo, "tree", new, _MAX_TREE), strict=True):
            trees[ident] = list(_parsed(data, ident))
        below: Counter[str] = Counter()
        for ident, paths in level.items():
            total += paths * len(trees[ident])
            for mode, _, inner in trees[ident]:
                if mode == _FOLDER:
                    below[inner] += paths
        if total > _MAX_ENTRIES:
            raise too_much(git_dir, f"more than {_MAX_ENTRIES:,} paths")
        if not below:
            return trees
        level = below
    raise too_much(git_dir, f"folders nested more than {_MAX_DEPTH} deep")


def _expanded(trees: Trees, root: str, prefix: bytes) -> Iterator[Entry]:
    waiting = [(root, prefix)]
    while waiting:
        ident, folder = waiting.pop()
        for mode, name, inner in trees[ident]:
            path = folder + (name if b"/" not in name else b"//" + name)  # an empty part is refused
            if mode != _FOLDER:
                yield mode, path, inner
            elif len(path) < _MAX_PATH:
                waiting.append((inner, path + b"/"))
            else:
                raise too_much(path[:80].decode(errors="replace"), "a path that is too long")


def _parsed(tree: bytes, ident: str) -> Iterator[Entry]:
    """A tree object: `MODE NAME\\0` and the id's 20 bytes, again and again."""
    position = 0
    while position < len(tree):
        end = tree.find(b"\0", position)
        mode, _, name = tree[position:end].partition(b" ")
        position = end + 21
        if end < 0 or not name or position > len(tree) or mode.strip(b"01234567") or not mode:
            raise damaged("/", ident, "is not a tree")
        kind = int(mode, 8) & 0o170000
        if kind == 0o100000:
            kind |= 0o755 if int(mode, 8) & 0o100 else 0o644
        yield kind, name, tree[end + 1 : position].hex()


def refusal(mode: int, raw: bytes, suffix: str) -> str | None:
    """Why an entry is left out; empty for one that nobody asked for."""
    if mode not in (*_REGULAR, _SYMLINK):
        return "submodule"  # or a mode that git takes for one
    if not raw.endswith(suffix.encode()):
        return ""
    if mode == _SYMLINK:
        return "symlink"
    try:
        path = raw.decode()
    except UnicodeDecodeError:
        return "path-not-utf8"
    odd = _CONTROL.search(path) or "\\" in path or {"", ".", ".."} & set(path.split("/"))
    return "path-characters" if odd or len(raw) > _MAX_PATH else None
