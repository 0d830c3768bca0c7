"""The sample: a small Lean package written for this project, as a git repository.

- The packaged files become one commit with a fixed date, so its id is a constant of the package.
- The repository is made once in the cache, under a temporary name and then renamed.

Usage: `git_dir = sample_repository()`, then read SAMPLE_COMMIT from it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from tangobench.errors import CorruptionError
from tangobench.pipeline.lean_fetch import cache_folder
from tangobench.pipeline.lean_git import environment, run_git

SAMPLE_COMMIT: Final = "4d4efedcca66ef1564ccae7900d3cd6e098c3f11"
_AUTHOR: Final = b"tangobench <tangobench@example.org> 1700000000 +0000"


def sample_repository() -> Path:
    """The git directory that holds SAMPLE_COMMIT."""
    git_dir = cache_folder() / f"sample-{SAMPLE_COMMIT[:24]}"
    if run_git(git_dir, "cat-file", "-e", f"{SAMPLE_COMMIT}^{{tree}}").returncode != 0:
        git_dir.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="sample-", dir=git_dir.parent))
        commit = write_repository(made, package_files())
        if commit != SAMPLE_COMMIT:
            shutil.rmtree(made)
            raise CorruptionError(
                f"the packaged sample gives commit {commit}, expected {SAMPLE_COMMIT}",
                kind="sample-damaged",
                fix="install the package again",
            )
        try:
            made.rename(git_dir)
        except OSError:  # another process was faster, with the same bytes
            shutil.rmtree(made)
    return git_dir


def package_files() -> dict[str, bytes]:
    """The packaged Lean files by path."""
    root = files("tangobench.pipeline") / "data" / "lean_sample"
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
    for words, stdin in (
        (("init", "--quiet", "--bare", "--object-format=sha1"), b""),
        (("fast-import", "--quiet"), b"".join(stream)),
    ):
        subprocess.run(
            ["git", f"--git-dir={git_dir}", *words],
            input=stdin,
            check=True,
            capture_output=True,
            env=environment() | {"HOME": os.devnull},
        )
    return run_git(git_dir, "rev-parse", "refs/heads/main").stdout.decode().strip()
