"""Where a commit comes from: a clone, a bare repository, a bundle or a URL.

- A full commit id is required, and found or refused: a branch or a short id can move.
- A URL is fetched shallow at exactly that commit, trees first and then only the wanted blobs, in
  batches, into a cache: a broken download goes on where it stopped.
- A bundle is unpacked into the cache once. A local repository is read where it is.
- One process at a time writes to a cached repository; what a killed one left locked is freed.

Usage: `git_dir = open_repository("https://github.com/…/mathlib4", commit, root="Mathlib/")`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tangobench.errors import InputError, ResourceError, UsageError
from tangobench.pipeline.files import exclusive, explain_os_errors
from tangobench.pipeline.lean_git import entries, git_output, refusal, run_git

_FULL_ID: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://|[^/]+@[^/]+:")
_BUNDLE: Final = b"# v"  # "# v2 git bundle"
_WAIT_SECONDS: Final = 3600.0  # for another build that fetches the same repository
_BATCH: Final = 1000  # blobs per request: a Mathlib file is 16 kB, so about 16 MB


def cache_folder() -> Path:
    """Where fetched repositories are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - never raises
    return Path(base) / "tangobench" / "git"


def is_url(source: str) -> bool:
    """Whether a source has to be fetched."""
    return _URL.match(source) is not None


def open_repository(source: str, commit: str, suffix: str = ".lean", root: str = "") -> Path:
    """The git directory that holds the commit: a clone, a bare repository, a bundle or a URL."""
    if not _FULL_ID.fullmatch(commit):
        raise UsageError(
            f"commit {commit!r} is not a full commit id",
            kind="commit-id",
            fix="give all 40 hexadecimal digits: a branch or a short id can move",
        )
    if is_url(source):
        return _fetch(source, commit, suffix, root)
    path = Path(source)
    if path.is_file():
        return _unbundle(path, commit)
    git_dir = _git_directory(path)
    if git_dir is None:
        raise InputError(
            f"{source} is not a git repository",
            kind="not-a-repository",
            fix="give a clone, a bare repository, a bundle or a git URL with --source",
            path=source,
        )
    _require_commit(git_dir, commit, source, f"git -C {source} fetch --depth 1 origin {commit}")
    return git_dir


def _require_commit(git_dir: Path, commit: str, source: str, fix: str) -> None:
    found = run_git(git_dir, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if found.stdout.decode().strip() == commit:
        return
    shallow = (git_dir / "shallow").exists()
    raise InputError(
        f"{source} does not hold commit {commit}" + (" (it is a shallow clone)" if shallow else ""),
        kind="commit-missing",
        fix=fix,
        commit=commit,
        shallow=shallow,
    )


def _git_directory(path: Path) -> Path | None:
    """The git directory of a clone or bare repository, found without asking git."""
    inner = path / ".git"
    if inner.is_file():  # a work tree or submodule: "gitdir: PATH"
        target = inner.read_text(encoding="utf-8", errors="replace").partition("gitdir:")[2]
        inner = (path / target.strip()).resolve()
    for candidate in (inner, path):
        if (candidate / "HEAD").exists() and (
            (candidate / "objects").is_dir() or (candidate / "commondir").exists()
        ):
            return candidate.absolute()
    return None


@contextlib.contextmanager
def _cached(name: str) -> Iterator[Path]:
    """An empty or already filled bare repository in the cache, for this process alone."""
    git_dir = cache_folder() / hashlib.sha256(os.fsencode(name)).hexdigest()[:24]
    with exclusive(git_dir.with_suffix(".lock"), wait_seconds=_WAIT_SECONDS):
        # We hold the repository, so these are of a process that was killed; git would stop at them.
        for stale in [*git_dir.glob("*.lock"), *git_dir.glob("objects/pack/tmp_*")]:
            with explain_os_errors(stale, 0):
                stale.unlink()
        if _git_directory(git_dir) is None:
            init_repository(git_dir)
        yield git_dir


def init_repository(git_dir: Path) -> None:
    """An empty bare repository."""
    done = run_git(git_dir, "init", "--quiet", "--bare", "--object-format=sha1")
    if done.returncode != 0:
        raise ResourceError(
            f"cannot make the cache {git_dir}: {done.stderr.decode(errors='replace').strip()}",
            kind="cache-unusable",
            fix="free space there, or set XDG_CACHE_HOME to a folder that you may write to",
            path=str(git_dir),
        )


def _unbundle(path: Path, commit: str) -> Path:
    try:
        with path.open("rb") as file:
            is_bundle = file.read(len(_BUNDLE)) == _BUNDLE
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {os.strerror(error.errno or 0)}",
            kind="source-unreadable",
            fix="make it readable",
        ) from None
    if not is_bundle:
        raise InputError(
            f"{path} is a file but not a git bundle",
            kind="not-a-repository",
            fix="make one with: git bundle create FILE --all",
        )
    found = path.stat()
    with _cached(f"bundle {path.resolve()} {found.st_size} {found.st_mtime_ns}") as git_dir:
        if not _holds(git_dir, commit):
            _fetched(git_dir, str(path.resolve()), ["+refs/*:refs/bundle/*"], commit)
        fix = "make the bundle of a branch or tag that holds it: git bundle create FILE NAME"
        _require_commit(git_dir, commit, str(path), fix)
        return git_dir


def _fetch(url: str, commit: str, suffix: str, root: str) -> Path:
    with _cached(f"url {url}") as git_dir:
        if not _holds(git_dir, commit):
            _fetched(git_dir, url, ["--depth=1", "--filter=blob:none", commit], commit)
        _require_commit(git_dir, commit, url, "check the address and the commit")
        listed = entries(git_dir, commit, root, sizes=False)
        wanted = {blob for mode, blob, _, raw in listed if refusal(mode, raw, suffix) is None}
        # Listing what is there asks for none of them, so git has no reason to download one.
        known = git_output(
            git_dir, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)"
        )
        missing = sorted(wanted - set(known.decode().split()))
        for start in range(0, len(missing), _BATCH):
            blobs = missing[start : start + _BATCH]
            _fetched(git_dir, url, ["--depth=1", "--filter=blob:none", *blobs], commit)
        return git_dir


def _fetched(git_dir: Path, url: str, what: Sequence[str], commit: str) -> None:
    # A promisor remote lets git accept a pack without the blobs.
    promise = ["-c", "remote.here.promisor=true", "-c", f"remote.here.url={url}"]
    options = ["--quiet", "--no-tags", "--no-write-fetch-head"]
    split = sum(word.startswith("-") for word in what)
    command = [*promise, "fetch", *options, *what[:split], "here", *what[split:]]
    done = run_git(git_dir, *command, fetching=True)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        # git names the cause first and ends with general advice.
        cause = [
            line for line in lines if line.startswith(("fatal:", "error:", "remote:"))
        ] or lines
        raise InputError(
            f"cannot fetch {commit} from {url}: {' '.join(cause[:1])}",
            kind="fetch-failed",
            fix="check the address, the commit and the network; run again to go on",
        )


def without_password(url: str) -> str:
    """An address that can be shown."""
    return re.sub(r"(?<=://)[^/@]*@", "", url)


def _holds(git_dir: Path, commit: str) -> bool:
    return run_git(git_dir, "cat-file", "-e", f"{commit}^{{tree}}").returncode == 0
