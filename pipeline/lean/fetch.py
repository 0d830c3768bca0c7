"""Where a commit comes from: a clone, a bare repository, a bundle, a URL or the packaged sample.

- `HEAD`, a tag or a branch is resolved to a commit id once, before anything is read.
- A URL is fetched shallow at exactly that commit, trees first and then only the wanted blobs, in
  batches, into a cache: a broken download continues where it stopped.
- A bundle is unpacked into the cache once. A local repository is read where it is.
- One process at a time writes to a cached repository; locks that a killed one left are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Final

import git

from tangobench.errors import (
    CorruptionError,
    InputError,
    ResourceError,
    UsageError,
    without_secrets,
)
from tangobench.pipeline.core.files import exclusive, explain_os_errors
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.lean import git as reading
from tangobench.pipeline.lean.git import ClosedGit, cache_folder, commit_of

SAMPLE_COMMIT: Final = "4d4efedcca66ef1564ccae7900d3cd6e098c3f11"
"""Of the packaged Lean files with a fixed author and date: a constant of the package."""
_AUTHOR: Final = b"tangobench <tangobench@example.org> 1700000000 +0000"

_FULL_ID: Final = re.compile(r"[0-9a-f]{40}")
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://|[^/]+@[^/]+:")
_BUNDLE: Final = b"# v"  # "# v2 git bundle"
_MOST_HEADER: Final = 1 << 26  # bytes before the empty line that ends a bundle's header
_WAIT_SECONDS: Final = 3600.0  # for another build that fetches the same repository
_FETCH_SECONDS: Final = 3600.0  # for one request; a slow connection that stalls ends after a minute
_LIST_SECONDS: Final = 120.0
_STALLED: Final = ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60")
_SHALLOW: Final = ("--depth=1", "--filter=blob:none")
_BATCH: Final = 1000  # blobs per request: a Mathlib file is 16 kB, so about 16 MB


def is_url(source: str) -> bool:
    return _URL.match(source) is not None


def without_password(url: str) -> str:
    return without_secrets(url).replace("…@", "").removesuffix("?…")


def open_repository(
    source: str, commit: str, root: str = "", reporter: Reporter | None = None
) -> Path:
    """The git directory that holds the commit."""
    if source == "sample":
        return sample_repository()
    if not _FULL_ID.fullmatch(commit):
        message = f"commit {commit!r} is not a full commit id"
        fix = "give all 40 hexadecimal digits, HEAD, a tag or a branch"
        raise UsageError(message, kind="commit-id", fix=fix)
    reporter = reporter or Reporter(quiet=True)
    if is_url(source):
        return _fetch(source, commit, root, reporter)
    if Path(source).is_file():
        git_dir = _unbundled(Path(source), commit, reporter)
        fix = "make the bundle of a branch or tag that holds it: git bundle create FILE NAME"
    else:
        git_dir = _git_directory(Path(source))
        other = f"git -C {source} fetch --depth 1 origin {commit}"
        fix = f"--commit HEAD takes what is there; or {other}"
    return _require_commit(git_dir, commit, source, fix)


def resolve_commit(source: str, name: str) -> str:
    """The id of the commit that `HEAD`, a tag, a branch or an id means in a source."""
    if _FULL_ID.fullmatch(name):
        return name
    if is_url(source):
        found = _listed(source, name)
    elif (bundle := Path(source)).is_file():
        _require_bundle(bundle)
        found = _listed(str(bundle.resolve()), name)
        # A bundle lists annotated tags without the commits that they mean.
        found = found and commit_of(_unbundled(bundle, found, Reporter(quiet=True)), found)
    else:
        found = commit_of(_git_directory(Path(source)), name)
    if found is None:
        shown = without_password(source)
        fix = "give HEAD, a tag, a branch or all 40 digits of a commit; to see the names: "
        message = f"{shown} has no commit, tag or branch {name!r}"
        fix += f"git ls-remote {shown}"
        raise InputError(message, kind="commit-missing", fix=fix, commit=name)
    return found


def _listed(source: str, name: str) -> str | None:
    """The id that a URL or bundle lists for a name; as in git, tags are tried before branches."""
    words = (*_STALLED, "ls-remote", "--quiet", "--", source)
    asked = ClosedGit(cache_folder(), fetching=True)
    code, output, error = asked.run(*words, seconds=_LIST_SECONDS)
    if code != 0:
        raise _failed(f"the names of {without_password(source)}", error.splitlines())
    lines = (line.split("\t") for line in output.decode(errors="replace").splitlines())
    ids = {ref: ident for ident, ref in lines}
    forms = (name, f"refs/tags/{name}^{{}}", f"refs/tags/{name}", f"refs/heads/{name}")
    return next((ids[form] for form in forms if form in ids), None)


def _require_commit(git_dir: Path, commit: str, source: str, fix: str) -> Path:
    if commit_of(git_dir, commit) == commit:
        return git_dir
    shallow = (git_dir / "shallow").exists()
    message = f"{source} does not hold commit {commit}{' (it is a shallow clone)' * shallow}"
    raise InputError(message, kind="commit-missing", fix=fix, commit=commit, shallow=shallow)


def _git_directory(path: Path) -> Path:
    """The git directory of a clone or bare repository, found without asking git."""
    inner = path / ".git"
    if inner.is_file():  # a work tree or submodule: "gitdir: PATH"
        target = os.fsdecode(reading.start_of(inner)).partition("gitdir:")[2]
        inner = path / target.strip()
    for found in (inner, path):
        with contextlib.suppress(OSError):  # a path that is too long
            holds = (found / "objects").is_dir() or (found / "commondir").exists()
            if holds and (found / "HEAD").exists():
                return found.resolve()
    raise reading.not_a_repository(path)


@contextlib.contextmanager
def _cached(name: str) -> Iterator[Path]:
    """An empty or already filled bare repository in the cache, for this process alone."""
    git_dir = cache_folder() / hashlib.sha256(os.fsencode(name)).hexdigest()[:24]
    with exclusive(git_dir.with_suffix(".lock"), wait_seconds=_WAIT_SECONDS):
        # We hold the repository, so these are of a process that was killed; git would stop at them.
        for stale in [*git_dir.glob("*.lock"), *git_dir.glob("objects/pack/tmp_*")]:
            with explain_os_errors(stale, 0):
                stale.unlink()
        if not (git_dir / "HEAD").exists():
            _init_repository(git_dir)
        yield git_dir


def _init_repository(git_dir: Path) -> None:
    with explain_os_errors(git_dir, 0):
        git_dir.mkdir(parents=True, exist_ok=True)
    _write(git_dir, "init", "--quiet", "--bare", "--object-format=sha1")


def _write(git_dir: Path, *words: str, **options: Any) -> None:
    code, _, error = ClosedGit(git_dir).run(*words, **options)
    if code != 0:
        message = f"cannot write {git_dir}: {error}"
        fix = "free space there, or set XDG_CACHE_HOME to a folder that you may write to"
        raise ResourceError(message, kind="cache-unusable", fix=fix, path=str(git_dir))


def _require_bundle(path: Path) -> None:
    """Refuse what git would read without end: it looks for the end of a line, however far."""
    try:
        with path.open("rb") as file:
            start = file.read(_MOST_HEADER)
    except OSError as error:
        message = f"{path} cannot be read: {os.strerror(error.errno or 0)}"
        raise InputError(message, kind="source-unreadable", fix="make it readable") from None
    if not start.startswith(_BUNDLE) or b"\n\n" not in start:
        message, fix = f"{path} is a file but not a git bundle", "git bundle create FILE --all"
        raise InputError(message, kind="not-a-repository", fix=f"make one with: {fix}")


def _unbundled(path: Path, commit: str, reporter: Reporter) -> Path:
    _require_bundle(path)
    found, where = path.stat(), str(path.resolve())
    with _cached(f"bundle {where} {found.st_size} {found.st_mtime_ns}") as git_dir:
        if not _has_tree(git_dir, commit):
            _fetched(git_dir, where, ["here", "+refs/*:refs/bundle/*"], commit, reporter)
        return git_dir


def _fetch(url: str, commit: str, root: str, reporter: Reporter) -> Path:
    with _cached(f"url {url}") as git_dir:
        if not _has_tree(git_dir, commit):
            _fetched(git_dir, url, [*_SHALLOW, "here", commit], commit, reporter)
        _require_commit(git_dir, commit, url, "check the address and the commit")
        wanted = reading.wanted_blobs(git_dir, commit, root)
        # Listing what is there asks for none of them, so git has no reason to download one.
        words = ("cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
        known = ClosedGit(git_dir).run(*words)[1]
        missing = sorted(wanted - set(known.decode().split()))
        for start in range(0, len(missing), _BATCH):
            some = missing[start : start + _BATCH]
            _fetched(git_dir, url, [*_SHALLOW, "here", *some], commit, reporter)
        return git_dir


class _Progress(git.RemoteProgress):
    """git's own progress of a fetch, shown as a stage of the build."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__()
        self._reporter, self._seen = reporter, 0.0

    def update(self, op_code: int, cur_count: Any, max_count: Any = 0, message: str = "") -> None:
        """One line of git's: receiving and resolving are worth showing, and counts are known."""
        name = {self.RECEIVING: "receive", self.RESOLVING: "resolve"}.get(op_code & self.OP_MASK)
        if name is None or not max_count:
            return
        if op_code & self.BEGIN:
            self._seen = 0.0
            count = float(max_count)
            self._reporter.start(f"lean-fetch {name}", int(count), count, noun="object")
        new = max(0.0, float(cur_count) - self._seen)
        self._seen += new
        self._reporter.advance(new, count=int(new), label=message)
        if op_code & self.END:
            self._reporter.finish()


def _fetched(git_dir: Path, url: str, what: Sequence[str], commit: str, reporter: Reporter) -> None:
    # A promisor remote lets git accept a pack without the blobs.
    here = ("-c", "remote.here.promisor=true", "-c", f"remote.here.url={url}")
    flags = ("--progress", "--no-tags", "--no-write-fetch-head")
    progress = _Progress(reporter)
    process = ClosedGit(git_dir, fetching=True).execute(
        ["git", *here, *_STALLED, "fetch", *flags, *what],
        as_process=True,
        with_stdout=False,
        universal_newlines=True,
    )
    handler, limit = progress.new_message_handler(), _FETCH_SECONDS
    options: Any = {"decode_streams": False, "kill_after_timeout": limit}
    git.cmd.handle_process_output(process, None, handler, **options)
    try:
        process.wait()
    except git.GitCommandError as error:
        if "timed out" in str(error.stderr):
            raise reading.timed_out(f"git fetch of {without_password(url)}", limit) from None
        lines = [*progress.error_lines, *progress.other_lines]
        raise _failed(f"{commit} from {without_password(url)}", lines) from None


def _failed(what: str, lines: Sequence[str]) -> InputError:
    # git names the cause first and ends with general advice.
    marked = [line for line in lines if line.startswith(("fatal:", "error:", "remote:"))]
    cause = " ".join((marked or [*lines])[:1]).strip()
    fix = "check the address, the commit and the network; run again to continue"
    return InputError(f"cannot fetch {what}: {cause}", kind="fetch-failed", fix=fix)


def _has_tree(git_dir: Path, commit: str) -> bool:
    return ClosedGit(git_dir).run("cat-file", "-e", f"{commit}^{{tree}}")[0] == 0


def sample_repository() -> Path:
    """The git directory of the packaged sample, made in the cache; made again if it is damaged."""
    with _cached(f"sample {SAMPLE_COMMIT}") as git_dir:
        with contextlib.suppress(CorruptionError):
            reading.read_files(git_dir, reading.list_files(git_dir, SAMPLE_COMMIT, "").files)
            return git_dir
        shutil.rmtree(git_dir)
        commit = write_repository(git_dir, package_files())
        if commit != SAMPLE_COMMIT:
            message = f"the packaged sample gives commit {commit}, expected {SAMPLE_COMMIT}"
            raise CorruptionError(message, kind="sample-damaged", fix="install the package again")
        return git_dir


def package_files() -> dict[str, bytes]:
    """The packaged Lean files by path."""
    with as_file(files("tangobench.pipeline.lean") / "sample_project") as root:
        found = sorted((path.relative_to(root).as_posix(), path) for path in root.rglob("*.lean"))
        return {name: path.read_bytes() for name, path in found}


def write_repository(git_dir: Path, contents: dict[str, bytes]) -> str:
    """Make a bare repository with one commit of these files; the commit's id."""
    stream = [b"commit refs/heads/main\ncommitter ", _AUTHOR, b"\ndata 6\nsample\n"]
    for path, data in sorted(contents.items()):
        stream.append(b"M 100644 inline %s\ndata %d\n%s\n" % (path.encode(), len(data), data))
    _init_repository(git_dir)
    with tempfile.TemporaryFile(dir=git_dir) as given:
        given.write(b"".join(stream))
        given.seek(0)
        _write(git_dir, "fast-import", "--quiet", istream=given)
    commit = commit_of(git_dir, "refs/heads/main")
    assert commit is not None  # fast-import made it
    return commit
