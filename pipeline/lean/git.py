"""Files of one commit, read from a git object database with GitPython, never from a work tree.

- The commit asked for is the commit read: its id is checked against its own bytes, and so is every
  tree and every blob that is used.
- Paths are counted before they are listed: a repository of 100 kB may name 10¹⁰ of them.
- Only regular files count; links, submodules, odd paths and large files are left out and counted.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from git import Repo

from tangobench.errors import CorruptionError, InputError, TangobenchError
from tangobench.pipeline.lean import repository
from tangobench.pipeline.lean.repository import opened, timed_out

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ufeff\u2028\u2029]")
_MAX_DEPTH: Final = 1100  # folders; Mathlib has 7, git itself stops between 2,000 and 5,000
_MAX_ENTRIES: Final = 1_000_000  # files and folders under a root; Mathlib has 4,000
_MAX_PATH: Final = 4096  # bytes
_MAX_TREE: Final = 1 << 26  # bytes of one tree object
_MAX_BYTES: Final = 1 << 33  # of all wanted files together; Mathlib has 60 MB
_MAX_TOOLCHAIN: Final = 1000  # bytes of `lean-toolchain`

_TOOLCHAIN: Final = b"lean-toolchain"
_FOLDER: Final = 0o040000
_SYMLINK: Final = 0o120000
_REGULAR: Final = (0o100644, 0o100755)

Entry = tuple[int, bytes, str]  # mode as git normalises it, name or path, id


def _objects(
    repo: Repo, kind: str, named: Sequence[tuple[str, str]], most: int | None = None
) -> Iterator[bytes]:
    """Objects of one kind by (path, id), of `most` bytes each, each checked against its id."""
    with _in_time(repo):
        for path, ident in named:
            size = 0 if most is None else _answer(repo.git.get_object_header, path, ident)[2]
            if size > (most or 0):
                raise _too_much(path, f"a {kind} of {size:,} bytes")
            data: bytes = _answer(repo.git.get_object_data, path, ident)[3]
            if object_id(kind.encode(), data) != ident:  # the kind is part of the id
                raise _damaged(path, ident, "does not match its id")
            yield data


def _answer(ask: Callable[[str], Any], path: str, ident: str) -> Any:
    try:
        return ask(ident)
    except (ValueError, OSError):
        raise _damaged(path, ident, "is missing from the object database") from None


@contextlib.contextmanager
def _in_time(repo: Repo) -> Iterator[None]:
    """Kill GitPython's persistent git if the block takes longer: a FIFO would block it for ever."""
    late, seconds = threading.Event(), repository.SECONDS

    def kill() -> None:
        late.set()
        for process in (repo.git.cat_file_all, repo.git.cat_file_header):
            if process is not None and process.proc is not None:
                process.proc.kill()

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    except CorruptionError:
        if late.is_set():
            raise timed_out("git cat-file", seconds) from None
        raise
    finally:
        timer.cancel()


def object_id(kind: bytes, data: bytes) -> str:
    """git's id of an object."""
    hasher = hashlib.sha1(b"%s %d\0" % (kind, len(data)), usedforsecurity=False)
    hasher.update(data)
    return hasher.hexdigest()


class File(NamedTuple):
    """A regular file of a commit."""

    path: str
    blob: str
    size: int = 0


class Listing(NamedTuple):
    """The wanted files of a commit, in path order, and why others were left out."""

    commit: str
    tree: str
    files: tuple[File, ...]
    rejected: dict[str, int]
    toolchain: list[str]


def list_files(git_dir: Path, commit: str, root: str, *, max_bytes: int = 1 << 62) -> Listing:
    """The regular `.lean` files under `root`."""
    with opened(git_dir) as repo:
        tree, found = _entries(repo, git_dir, commit, root)
        reasons = [refusal(mode, path) for mode, path, _ in found]
        wanted = [
            (path.decode(), blob)
            for (_, path, blob), reason in zip(found, reasons, strict=True)
            if reason is None
        ]
        with _in_time(repo):
            header = repo.git.get_object_header
            files = [File(*named, _answer(header, *named)[2]) for named in wanted]
        others = [] if wanted else _entries(repo, git_dir, commit, "")[1]
    rejected = Counter(reason for reason in reasons if reason)
    rejected["too-large"] = sum(file.size > max_bytes for file in files)
    files = [file for file in files if file.size <= max_bytes]
    if not files:
        raise InputError(
            f"commit {commit} has no .lean files under {root or '/'!r}",
            kind="no-lean-files",
            fix=_where_else([p.decode() for mode, p, _ in others if refusal(mode, p) is None]),
            rejected=dict(+rejected),
        )
    if sum(file.size for file in files) > _MAX_BYTES:
        raise _too_much(git_dir, f".lean files of more than {_MAX_BYTES:,} bytes together")
    ordered = tuple(sorted(files, key=lambda file: file.path))
    named = [blob for _, path, blob in found if path == _TOOLCHAIN]
    return Listing(commit, tree, ordered, dict(sorted((+rejected).items())), named[:1])


def _where_else(paths: Sequence[str]) -> str:
    folders = sorted({f"{path.partition('/')[0]}/" for path in paths if "/" in path})
    if not paths:
        return "check --source and --commit"
    return f"give --root {' or '.join([*folders[:5], repr('')])} ('' is everything)"


def refusal(mode: int, raw: bytes) -> str | None:
    """Why an entry is left out; empty for one that is no `.lean` file."""
    if mode not in (*_REGULAR, _SYMLINK):
        return "submodule"  # or a mode that git takes for one
    if not raw.endswith(b".lean"):
        return ""
    if mode == _SYMLINK:
        return "symlink"
    try:
        path = raw.decode()
    except UnicodeDecodeError:
        return "path-not-utf8"
    odd = _CONTROL.search(path) or "\\" in path or {"", ".", ".."} & set(path.split("/"))
    return "path-characters" if odd or len(raw) > _MAX_PATH else None


def wanted_blobs(git_dir: Path, commit: str, root: str) -> set[str]:
    """Ids of what a build reads: `.lean` files under `root` and `lean-toolchain`."""
    with opened(git_dir) as repo:
        found = _entries(repo, git_dir, commit, root)[1]
    return {i for mode, path, i in found if path == _TOOLCHAIN or refusal(mode, path) is None}


def toolchain(git_dir: Path, listing: Listing) -> str | None:
    """What `lean-toolchain` at the top of the repository names, if it is there and readable."""
    named = [("lean-toolchain", ident) for ident in listing.toolchain]
    with contextlib.suppress(TangobenchError, UnicodeDecodeError), opened(git_dir) as repo:
        for data in _objects(repo, "blob", named, _MAX_TOOLCHAIN):
            text = data.decode("ascii").strip()
            return text if text.isprintable() and text else None
    return None


def read_files(git_dir: Path, files: Sequence[File]) -> list[bytes]:
    """The files' contents, in order, each checked against its id."""
    with opened(git_dir) as repo:
        return list(_objects(repo, "blob", [(file.path, file.blob) for file in files]))


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
    """The commit's tree; mode, path and id of `lean-toolchain` and of all files under `root`."""
    (data,) = _objects(repo, "commit", [(f"commit {commit}", commit)], _MAX_TREE)
    tree = start = data.split(b"\n", 1)[0].removeprefix(b"tree ").decode(errors="replace")
    top = [entry for entry in _tree(repo, "/", tree) if entry[1] == _TOOLCHAIN]
    prefix = b""
    for name in filter(None, root.encode().split(b"/")):
        inside = _tree(repo, f"/{prefix.decode()}", start)
        folders = {entry[1]: entry[2] for entry in inside if entry[0] == _FOLDER}
        if name not in folders:
            return tree, []
        start, prefix = folders[name], prefix + name + b"/"
    trees = _read_trees(repo, git_dir, start)
    return tree, [*(e for e in top if e[0] in _REGULAR), *_expanded(trees, start, prefix)]


def _read_trees(repo: Repo, git_dir: Path, root: str) -> dict[str, list[Entry]]:
    """Every tree below one, by id, if their paths are not too many.

    A level holds the distinct trees of one depth and how many paths lead to each.
    """
    trees: dict[str, list[Entry]] = {}
    level, total = Counter({root: 1}), 0
    for _ in range(_MAX_DEPTH):
        below: Counter[str] = Counter()
        for ident, paths in level.items():
            if ident not in trees:
                trees[ident] = _tree(repo, "/", ident)
            total += paths * len(trees[ident])
            for mode, _, inner in trees[ident]:
                if mode == _FOLDER:
                    below[inner] += paths
        if total > _MAX_ENTRIES:
            raise _too_much(git_dir, f"more than {_MAX_ENTRIES:,} paths")
        if not below:
            return trees
        level = below
    raise _too_much(git_dir, f"folders nested more than {_MAX_DEPTH} deep")


def _expanded(trees: dict[str, list[Entry]], root: str, prefix: bytes) -> Iterator[Entry]:
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
                raise _too_much(path[:80].decode(errors="replace"), "a path that is too long")


def _tree(repo: Repo, path: str, ident: str) -> list[Entry]:
    """The entries of a tree object: `MODE NAME\\0` and the id's 20 bytes, again and again."""
    (tree,) = _objects(repo, "tree", [(path, ident)], _MAX_TREE)
    entries, position = [], 0
    while position < len(tree):
        end = tree.find(b"\0", position)
        mode, _, name = tree[position:end].partition(b" ")
        position = end + 21
        if end < 0 or not name or position > len(tree) or mode.strip(b"01234567") or not mode:
            raise _damaged("/", ident, "is not a tree")
        kind = int(mode, 8) & 0o170000
        if kind == 0o100000:
            kind |= 0o755 if int(mode, 8) & 0o100 else 0o644
        entries.append((kind, name, tree[end + 1 : position].hex()))
    return entries


def _too_much(where: Path | str, what: str) -> InputError:
    """A repository made to exhaust its reader."""
    fix = "no Lean project is like that: check --source and --root"
    return InputError(f"{where}: {what}", kind="repository-too-large", fix=fix)


def _damaged(path: str, ident: str, how: str) -> CorruptionError:
    message, fix = f"{path}: object {ident} {how}", "clone the repository again"
    return CorruptionError(message, kind="blob-damaged", fix=fix, path=path)
