"""A git repository opened with GitPython, whatever its configuration says.

The configuration is never read: git sees objects and refs through a directory of ours. So it cannot
name a command to run, a remote to ask, a file to include or another work tree. Replacement refs and
`GIT_*` variables of the caller have no effect; every call of git has a time limit.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # a missing git is our error, at first use
import git

from tangobench.errors import InputError, ResourceError
from tangobench.pipeline.core.files import explain_os_errors

SECONDS: Final = 600.0  # for a call of git, or one pass over a list of objects
_SECONDS_FOR_REFS: Final = 60.0
_SMALL: Final = 4096  # bytes of HEAD or commondir
_HEAD: Final = re.compile(rb"(?:ref: refs/[!-~]+|[0-9a-f]{40})\n?")
_ENVIRONMENT: Final = threading.RLock()


class ClosedGit(git.Git):
    """GitPython's git for one git directory, without the caller's `GIT_*` variables.

    Unless it is `fetching`, it reads and asks nothing outside.
    """

    def __init__(self, git_dir: Path, *, fetching: bool = False) -> None:
        super().__init__(str(git_dir))
        closed = {
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ALLOW_PROTOCOL": "",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        self.update_environment(
            GIT_DIR=str(git_dir),
            GIT_NO_REPLACE_OBJECTS="1",
            GIT_TERMINAL_PROMPT="0",
            **({} if fetching else closed),
        )

    def execute(self, command: Any, *args: Any, **options: Any) -> Any:
        """Run a command; GitPython hands on the environment of this process."""
        with _no_git_variables():
            try:
                return super().execute(command, *args, **options)
            except git.GitCommandNotFound:
                raise InputError(
                    "git is not installed", kind="git-missing", fix="install git"
                ) from None

    def run(self, *words: str, seconds: float = SECONDS, **options: Any) -> tuple[int, bytes, str]:
        """Exit code, output and error text of a command."""
        code, output, error = self.execute(
            ["git", *words],
            with_extended_output=True,
            with_exceptions=False,
            stdout_as_string=False,
            strip_newline_in_stdout=False,
            kill_after_timeout=seconds,
            **options,
        )
        text = error.decode(errors="replace") if isinstance(error, bytes) else str(error)
        if text.startswith("Timeout:"):
            raise timed_out(f"git {words[0]}", seconds)
        return code, output, text.strip()


@contextlib.contextmanager
def _no_git_variables() -> Iterator[None]:
    with _ENVIRONMENT:
        kept = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith("GIT_")}
        try:
            yield
        finally:
            os.environ.update(kept)


@contextlib.contextmanager
def opened(git_dir: Path) -> Iterator[git.Repo]:
    """A repository, seen through a directory with its objects and refs but not its config."""
    with tempfile.TemporaryDirectory(prefix="tangobench-git-") as made:
        folder = Path(made)
        with explain_os_errors(folder, 0):
            _link(git_dir, folder)
        with _no_git_variables():
            try:
                repo = git.Repo(folder, expand_vars=False)
            except git.InvalidGitRepositoryError:
                raise not_a_repository(git_dir) from None
        repo.git = ClosedGit(folder)
        with repo:
            yield repo


def _link(git_dir: Path, folder: Path) -> None:
    # A linked work tree names the directory that it belongs to.
    common = git_dir / os.fsdecode(_small(git_dir / "commondir").strip())
    head = _small(git_dir / "HEAD")
    (folder / "HEAD").write_bytes(head if _HEAD.fullmatch(head) else b"ref: refs/heads/none\n")
    (folder / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = true\n")
    (folder / "objects").symlink_to((common / "objects").resolve())
    if (common / "refs").is_dir():
        (folder / "refs").symlink_to((common / "refs").resolve())
    else:
        (folder / "refs").mkdir()
    if (common / "packed-refs").is_file():
        (folder / "packed-refs").symlink_to((common / "packed-refs").resolve())


def _small(path: Path) -> bytes:
    """The start of a regular file; nothing for anything else."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(_SMALL)


def commit_of(git_dir: Path, name: str) -> str | None:
    """The commit that a name (`HEAD`, a tag, a branch, an id) means here, if there is one."""
    with opened(git_dir) as repo:
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        code, found, _ = repo.git.run(*words, seconds=_SECONDS_FOR_REFS)
    return found.decode().strip() if code == 0 else None


def timed_out(what: str, seconds: float) -> ResourceError:
    """git gave no answer."""
    fix = "check the disk or network of the repository; the same command resumes"
    return ResourceError(f"{what} gave no answer in {seconds:.0f} s", kind="git-timeout", fix=fix)


def not_a_repository(source: Path | str) -> InputError:
    """The source is neither a clone nor a git directory."""
    fix = "give a clone, a bare repository, a bundle or a git URL with --source"
    message = f"{source} is not a git repository"
    return InputError(message, kind="not-a-repository", fix=fix, path=str(source))
