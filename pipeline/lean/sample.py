"""The sample: a small Lean package written for this project, as a git repository.

- The packaged files become one commit with a fixed date, so its id is a constant of the package.
- The repository is made once in the cache, under a temporary name and then renamed.

Usage: `git_dir = sample_repository()`, then read SAMPLE_COMMIT from it.
"""

from __future__ import annotations

import shutil
import tempfile
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from tangobench.errors import CorruptionError, InputError
from tangobench.pipeline.core.files import exclusive, explain_os_errors
from tangobench.pipeline.lean.fetch import cache_folder, cache_unusable, init_repository
from tangobench.pipeline.lean.git import list_files, read_files
from tangobench.pipeline.lean.repository import closed_git, commit_of

SAMPLE_COMMIT: Final = "4d4efedcca66ef1564ccae7900d3cd6e098c3f11"
_WAIT_SECONDS: Final = 600.0  # for another build that makes the sample
_AUTHOR: Final = b"tangobench <tangobench@example.org> 1700000000 +0000"


def sample_repository() -> Path:
    """The git directory that holds SAMPLE_COMMIT."""
    git_dir = cache_folder() / f"sample-{SAMPLE_COMMIT[:24]}"
    if not _whole(git_dir):
        with exclusive(git_dir.with_suffix(".lock"), wait_seconds=_WAIT_SECONDS):
            if not _whole(git_dir):  # nobody was faster
                _make(git_dir)
    return git_dir


def _whole(git_dir: Path) -> bool:
    """Whether every object of the sample is there and is what its id says."""
    try:
        read_files(git_dir, list_files(git_dir, SAMPLE_COMMIT, "").files)
    except (CorruptionError, InputError):
        return False
    return True


def _make(git_dir: Path) -> None:
    made = git_dir.with_suffix(".partial")
    with explain_os_errors(git_dir, 0):
        for left in (made, git_dir):  # of a process that was killed, or damaged
            if left.exists():
                shutil.rmtree(left)
        commit = write_repository(made, package_files())
        if commit != SAMPLE_COMMIT:
            shutil.rmtree(made)
            raise CorruptionError(
                f"the packaged sample gives commit {commit}, expected {SAMPLE_COMMIT}",
                kind="sample-damaged",
                fix="install the package again",
            )
        made.rename(git_dir)


def package_files() -> dict[str, bytes]:
    """The packaged Lean files by path."""
    root = files("tangobench.pipeline.lean") / "sample_project"
    return dict(sorted(_walk(root, "")))


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            found += _walk(entry, f"{name}/")
        elif name.endswith(".lean"):
            found.append((name, entry.read_bytes()))
    return found


def write_repository(git_dir: Path, contents: dict[str, bytes]) -> str:
    """Make a bare repository with one commit of these files; the commit's id."""
    stream = [b"commit refs/heads/main\ncommitter ", _AUTHOR, b"\ndata 6\nsample\n"]
    for path, data in sorted(contents.items()):
        stream.append(b"M 100644 inline %s\ndata %d\n%s\n" % (path.encode(), len(data), data))
    init_repository(git_dir)
    with tempfile.TemporaryFile() as given:
        given.write(b"".join(stream))
        given.seek(0)
        code, _, error = closed_git(git_dir).run("fast-import", "--quiet", istream=given)
    if code != 0:
        raise cache_unusable(git_dir, error)
    commit = commit_of(git_dir, "refs/heads/main")
    assert commit is not None  # fast-import made it
    return commit
