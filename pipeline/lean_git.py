"""Files of one commit, read from a git object database and never from a work tree.

- The commit asked for is the commit read: its id is checked against its own bytes, and so are
  every tree and every blob. Replacement refs and variables such as GIT_DIR have no effect.
- Reading runs and fetches nothing: a clone whose configuration names a command or a remote for
  objects that it lacks is refused, not obeyed.
- `--git-dir` is always given: a fetched git directory without a `config` file reads like any other.
- Only regular files count. Symlinks, submodules, odd modes, paths that are not UTF-8 or hold
  control characters and files that are too large are left out and counted.

Usage: `listing = list_files(git_dir, commit, "Mathlib/")`, `read_files(git_dir, listing.files)`.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tangobench.errors import CorruptionError, InputError

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ufeff\u2028\u2029]")
_MAX_DEPTH: Final = 1100  # Mathlib has 7; git itself stops between 2,000 and 5,000
_REGULAR: Final = (b"100644", b"100755")


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
    tree = _tree_of(git_dir, commit)
    _check_trees(git_dir, tree)
    rejected: Counter[str] = Counter()
    files = []
    for mode, blob, size, raw in entries(git_dir, commit, root, sizes=True):
        reason = refusal(mode, raw, suffix)
        if reason is None and size > max_bytes:
            reason = "too-large"
        if reason is None:
            files.append(File(raw.decode(), blob, size))
        elif reason:
            rejected[reason] += 1
    if not files:
        raise InputError(
            f"commit {commit} has no {suffix} files under {root or '/'!r}",
            kind="no-lean-files",
            fix="check --source and the spec's root",
            rejected=dict(rejected),
        )
    ordered = tuple(sorted(files, key=lambda file: file.path))
    return Listing(commit, tree, ordered, dict(sorted(rejected.items())))


def read_files(git_dir: Path, files: Sequence[File]) -> Iterator[bytes]:
    """The files' contents, in order, each checked against its id."""
    named = [(file.path, file.blob) for file in files]
    yield from _objects(git_dir, b"blob", named)


def _objects(git_dir: Path, kind: bytes, named: Sequence[tuple[str, str]]) -> Iterator[bytes]:
    """Objects of one kind by (path, id), each checked against its id."""
    request = "".join(f"{ident}\n" for _, ident in named).encode()
    answer = memoryview(git_output(git_dir, "cat-file", "--batch", "--buffer", stdin=request))
    position = 0
    for path, ident in named:
        end = _line_end(answer, position)
        header = bytes(answer[position:end]).split()
        if len(header) != 3 or header[1] != kind:
            raise _damaged(path, ident, "is missing from the object database")
        start, stop = end + 1, end + 1 + int(header[2])
        data = bytes(answer[start:stop])
        if object_id(kind, data, ident) != ident:
            raise _damaged(path, ident, "does not match its id")
        yield data
        position = stop + 1


def _check_trees(git_dir: Path, root: str) -> None:
    """Check every tree of a commit, level by level: git believes what a pack says of them."""
    level, seen = [("/", root)], {root}
    for _ in range(_MAX_DEPTH):
        if not level:
            return
        below = []
        for (path, _), data in zip(level, _objects(git_dir, b"tree", level), strict=True):
            for name, ident in _folders(data, len(root) // 2):
                if ident not in seen:
                    seen.add(ident)
                    below.append((f"{path}{name}/"[-200:], ident))
        level = below
    raise InputError(
        f"{git_dir}: folders are nested more than {_MAX_DEPTH} deep",
        kind="too-deep",
        fix="this is no repository that people work with: check --source",
    )


def _folders(tree: bytes, width: int) -> Iterator[tuple[str, str]]:
    """Names and ids of the folders in a tree object: `MODE NAME\\0` and the id's bytes."""
    position = 0
    while (end := tree.find(b"\0", position)) >= 0:
        mode, _, name = tree[position:end].partition(b" ")
        position = end + 1 + width
        if mode.lstrip(b"0") == b"40000":
            yield name.decode(errors="replace"), tree[end + 1 : position].hex()


def object_id(kind: bytes, data: bytes, like: str) -> str:
    """git's id of an object, with the hash function that `like` was made with."""
    algorithm = hashlib.sha1 if len(like) == 40 else hashlib.sha256
    hasher = algorithm(b"%s %d\0" % (kind, len(data)))
    hasher.update(data)
    return hasher.hexdigest()


def refusal(mode: bytes, raw: bytes, suffix: str) -> str | None:
    """Why an entry is left out; empty for one that nobody asked for."""
    if mode == b"160000":
        return "submodule"
    if not raw.endswith(suffix.encode()):
        return ""
    if mode not in _REGULAR:
        return "symlink" if mode == b"120000" else "odd-mode"
    try:
        path = raw.decode()
    except UnicodeDecodeError:
        return "path-not-utf8"
    odd = _CONTROL.search(path) or "\\" in path or {"", ".", ".."} & set(path.split("/"))
    return "path-characters" if odd else None


def entries(
    git_dir: Path, commit: str, root: str, *, sizes: bool
) -> Iterator[tuple[bytes, str, int, bytes]]:
    """Mode, id, size and path of everything under `root`."""
    options = ["-r", "-z", "--full-tree", *(["-l"] if sizes else [])]
    where = [f"{root.rstrip('/')}/"] if root.strip("/") else []
    for entry in git_output(git_dir, "ls-tree", *options, commit, "--", *where).split(b"\0")[:-1]:
        head, _, path = entry.partition(b"\t")
        fields = head.split()
        size = int(fields[3]) if sizes and fields[3].isdigit() else 0
        yield fields[0], fields[2].decode(), size, path


def _tree_of(git_dir: Path, commit: str) -> str:
    data = git_output(git_dir, "cat-file", "commit", commit)
    if object_id(b"commit", data, commit) != commit:
        raise CorruptionError(
            f"{git_dir}: commit {commit} does not match its id",
            kind="commit-damaged",
            fix="clone the repository again",
        )
    return data.split(b"\n", 1)[0].removeprefix(b"tree ").decode()


def environment() -> dict[str, str]:
    """The environment without git's own variables, for quiet and literal answers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {"GIT_NO_REPLACE_OBJECTS": "1", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def run_git(
    git_dir: Path, *words: str, stdin: bytes = b"", fetching: bool = False
) -> subprocess.CompletedProcess[bytes]:
    """Run git on this git directory; unless it is `fetching`, no object is got from elsewhere."""
    # A clone may name a remote, and the command to reach it, for objects that it lacks: asking for
    # one of them would run that command. GIT_ALLOW_PROTOCOL also stops a git without NO_LAZY_FETCH.
    closed = {
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    try:
        return subprocess.run(
            ["git", f"--git-dir={git_dir}", *words],
            input=stdin,
            capture_output=True,
            check=False,
            env=environment() | ({} if fetching else closed),
        )
    except FileNotFoundError:
        raise InputError("git is not installed", kind="git-missing", fix="install git") from None


def git_output(git_dir: Path, *words: str, stdin: bytes = b"") -> bytes:
    """What a git command prints; it must succeed."""
    done = run_git(git_dir, *words, stdin=stdin)
    if done.returncode != 0:
        raise CorruptionError(
            f"git {words[0]} failed in {git_dir}: {done.stderr.decode(errors='replace').strip()}",
            kind="repository-damaged",
            fix=f"git --git-dir={git_dir} fsck",
        )
    return done.stdout


def _line_end(answer: memoryview, start: int) -> int:
    window = bytes(answer[start : start + 200])
    return start + window.find(b"\n")


def _damaged(path: str, ident: str, how: str) -> CorruptionError:
    return CorruptionError(
        f"{path}: object {ident} {how}",
        kind="blob-damaged",
        fix="clone the repository again",
        path=path,
    )
