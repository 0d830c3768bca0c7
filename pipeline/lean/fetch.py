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

from tangobench.errors import CorruptionError, InputError, ResourceError, UsageError
from tangobench.pipeline.core.files import exclusive, explain_os_errors
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.lean.git import list_files, read_files, wanted_blobs
from tangobench.pipeline.lean.repository import ClosedGit, commit_of, not_a_repository, timed_out

SAMPLE_COMMIT: Final = "4d4efedcca66ef1564ccae7900d3cd6e098c3f11"
"""Of the packaged Lean files with a fixed author and date: a constant of the package."""
_AUTHOR: Final = b"tangobench <tangobench@example.org> 1700000000 +0000"

_FULL_ID: Final = re.compile(r"[0-9a-f]{40}")
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://|[^/]+@[^/]+:")
_BUNDLE: Final = b"# v"  # "# v2 git bundle"
_WAIT_SECONDS: Final = 3600.0  # for another build that fetches the same repository
_FETCH_SECONDS: Final = 3600.0  # for one request; a slow connection that stalls ends after a minute
_LIST_SECONDS: Final = 120.0
_STALLED: Final = {"http.lowSpeedLimit": "1000", "http.lowSpeedTime": "60"}
_BATCH: Final = 1000  # blobs per request: a Mathlib file is 16 kB, so about 16 MB


def cache_folder() -> Path:
    """Where fetched repositories are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - never raises
    return Path(base) / "tangobench" / "git"


def is_url(source: str) -> bool:
    """Whether a source has to be fetched."""
    return _URL.match(source) is not None


def open_repository(
    source: str, commit: str, root: str = "", reporter: Reporter | None = None
) -> Path:
    """The git directory that holds the commit."""
    if source == "sample":
        return sample_repository()
    if not _FULL_ID.fullmatch(commit):
        raise UsageError(
            f"commit {commit!r} is not a full commit id",
            kind="commit-id",
            fix="give all 40 hexadecimal digits, HEAD, a tag or a branch",
        )
    reporter = reporter or Reporter(quiet=True)
    if is_url(source):
        return _fetch(source, commit, root, reporter)
    if Path(source).is_file():
        git_dir = _unbundled(Path(source), commit, reporter)
        fix = "make the bundle of a branch or tag that holds it: git bundle create FILE NAME"
    else:
        git_dir = _git_directory(Path(source))
        fix = (
            f"--commit HEAD takes what is there; or git -C {source} fetch --depth 1 origin {commit}"
        )
    return _require_commit(git_dir, commit, source, fix)


def resolve_commit(source: str, name: str) -> str:
    """The id of the commit that `HEAD`, a tag, a branch or an id means in a source."""
    if _FULL_ID.fullmatch(name):
        return name
    if is_url(source):
        found = _listed(source, name)
    elif (bundle := Path(source)).is_file():
        found = _listed(str(bundle.resolve()), name)
        # A bundle lists annotated tags without the commits that they mean.
        found = found and commit_of(_unbundled(bundle, found, Reporter(quiet=True)), found)
    else:
        found = commit_of(_git_directory(Path(source)), name)
    if found is None:
        raise InputError(
            f"{without_password(source)} has no commit, tag or branch {name!r}",
            kind="commit-missing",
            fix="give HEAD, a tag, a branch or all 40 digits of a commit; to see the names: "
            f"git ls-remote {without_password(source)}",
            commit=name,
        )
    return found


def _listed(source: str, name: str) -> str | None:
    """What a name means in a URL or bundle: like git, a tag comes before a branch."""
    code, output, error = ClosedGit(cache_folder(), fetching=True).run(
        *_options(_STALLED), "ls-remote", "--quiet", "--", source, seconds=_LIST_SECONDS
    )
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
    raise InputError(
        f"{source} does not hold commit {commit}" + (" (it is a shallow clone)" if shallow else ""),
        kind="commit-missing",
        fix=fix,
        commit=commit,
        shallow=shallow,
    )


def _git_directory(path: Path) -> Path:
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
    raise not_a_repository(path)


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
        raise ResourceError(
            f"cannot write {git_dir}: {error}",
            kind="cache-unusable",
            fix="free space there, or set XDG_CACHE_HOME to a folder that you may write to",
            path=str(git_dir),
        )


def _unbundled(path: Path, commit: str, reporter: Reporter) -> Path:
    try:
        with path.open("rb") as file:
            is_bundle = file.read(len(_BUNDLE)) == _BUNDLE
    except OSError as error:
        message = f"{path} cannot be read: {os.strerror(error.errno or 0)}"
        raise InputError(message, kind="source-unreadable", fix="make it readable") from None
    if not is_bundle:
        fix = "make one with: git bundle create FILE --all"
        message = f"{path} is a file but not a git bundle"
        raise InputError(message, kind="not-a-repository", fix=fix)
    found, where = path.stat(), str(path.resolve())
    with _cached(f"bundle {where} {found.st_size} {found.st_mtime_ns}") as git_dir:
        if not _has_tree(git_dir, commit):
            _fetched(git_dir, where, ["+refs/*:refs/bundle/*"], commit, reporter)
        return git_dir


def _fetch(url: str, commit: str, root: str, reporter: Reporter) -> Path:
    with _cached(f"url {url}") as git_dir:
        shallow = ["--depth=1", "--filter=blob:none"]
        if not _has_tree(git_dir, commit):
            _fetched(git_dir, url, [*shallow, commit], commit, reporter)
        _require_commit(git_dir, commit, url, "check the address and the commit")
        wanted = wanted_blobs(git_dir, commit, root)
        # Listing what is there asks for none of them, so git has no reason to download one.
        words = ("cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
        known = ClosedGit(git_dir).run(*words)[1]
        missing = sorted(wanted - set(known.decode().split()))
        for start in range(0, len(missing), _BATCH):
            _fetched(git_dir, url, [*shallow, *missing[start : start + _BATCH]], commit, reporter)
        return git_dir


class _Progress(git.RemoteProgress):
    """git's own progress of a fetch, shown as a stage of the build."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__()
        self._reporter = reporter
        self._seen = 0.0

    def update(
        self, op_code: int, cur_count: Any, max_count: Any = None, message: str = ""
    ) -> None:
        """One line of git's: receiving and resolving are worth showing, and counts are known."""
        kind = op_code & self.OP_MASK
        if kind not in (self.RECEIVING, self.RESOLVING) or not max_count:
            return
        name = "receive" if kind == self.RECEIVING else "resolve"
        if op_code & self.BEGIN:
            self._seen = 0.0
            self._reporter.start(f"lean-fetch {name}", int(max_count), float(max_count))
        new = max(0.0, float(cur_count) - self._seen)
        self._seen += new
        self._reporter.advance(new, count=int(new), label=message)
        if op_code & self.END:
            self._reporter.finish()


def _fetched(git_dir: Path, url: str, what: Sequence[str], commit: str, reporter: Reporter) -> None:
    # A promisor remote lets git accept a pack without the blobs.
    own = {"remote.here.promisor": "true", "remote.here.url": url, **_STALLED}
    split = sum(word.startswith("-") for word in what)
    flags = ["--progress", "--no-tags", "--no-write-fetch-head", *what[:split]]
    words = [*_options(own), "fetch", *flags, "here", *what[split:]]
    progress = _Progress(reporter)
    process = ClosedGit(git_dir, fetching=True).execute(
        ["git", *words], as_process=True, with_stdout=False, universal_newlines=True
    )
    handler, limit = progress.new_message_handler(), _FETCH_SECONDS
    git.cmd.handle_process_output(
        process, None, handler, decode_streams=False, kill_after_timeout=limit
    )
    try:
        process.wait()
    except git.GitCommandError as error:
        if "timed out" in str(error.stderr):
            raise timed_out(f"git fetch of {without_password(url)}", _FETCH_SECONDS) from None
        lines = [*progress.error_lines, *progress.other_lines]
        raise _failed(f"{commit} from {url}", lines) from None


def _failed(what: str, lines: Sequence[str]) -> InputError:
    # git names the cause first and ends with general advice.
    marked = [line for line in lines if line.startswith(("fatal:", "error:", "remote:"))]
    return InputError(
        f"cannot fetch {what}: {' '.join((marked or [*lines])[:1]).strip()}",
        kind="fetch-failed",
        fix="check the address, the commit and the network; run again to continue",
    )


def _options(settings: dict[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]


def _has_tree(git_dir: Path, commit: str) -> bool:
    return ClosedGit(git_dir).run("cat-file", "-e", f"{commit}^{{tree}}")[0] == 0


def without_password(url: str) -> str:
    """An address that can be shown."""
    return re.sub(r"(?<=://)[^/@]*@", "", url)


def sample_repository() -> Path:
    """The git directory of the packaged sample, made once in the cache."""
    git_dir = cache_folder() / f"sample-{SAMPLE_COMMIT[:24]}"
    if not _whole(git_dir):
        with exclusive(git_dir.with_suffix(".lock"), wait_seconds=_WAIT_SECONDS):
            if not _whole(git_dir):  # nobody was faster
                _make_sample(git_dir)
    return git_dir


def _whole(git_dir: Path) -> bool:
    """Whether every object of the sample is there and is what its id says."""
    try:
        read_files(git_dir, list_files(git_dir, SAMPLE_COMMIT, "").files)
    except (CorruptionError, InputError):
        return False
    return True


def _make_sample(git_dir: Path) -> None:
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
    with as_file(files("tangobench.pipeline.lean") / "sample_project") as root:
        found = sorted((path.relative_to(root).as_posix(), path) for path in root.rglob("*.lean"))
        return {name: path.read_bytes() for name, path in found}


def write_repository(git_dir: Path, contents: dict[str, bytes]) -> str:
    """Make a bare repository with one commit of these files; the commit's id."""
    stream = [b"commit refs/heads/main\ncommitter ", _AUTHOR, b"\ndata 6\nsample\n"]
    for path, data in sorted(contents.items()):
        stream.append(b"M 100644 inline %s\ndata %d\n%s\n" % (path.encode(), len(data), data))
    _init_repository(git_dir)
    with tempfile.TemporaryFile() as given:
        given.write(b"".join(stream))
        given.seek(0)
        _write(git_dir, "fast-import", "--quiet", istream=given)
    commit = commit_of(git_dir, "refs/heads/main")
    assert commit is not None  # fast-import made it
    return commit
