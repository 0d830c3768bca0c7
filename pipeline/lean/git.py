"""Files of one commit, read with GitPython from a git object database, never from a work tree.

- A repository's configuration is never read: git sees objects and refs through a directory of ours.
  So it cannot name a command to run, a remote to ask, a file to include or another work tree.
  Replacement refs and `GIT_*` variables of the caller have no effect; git has a time limit.
- The commit asked for is the commit read: its id is checked against its own bytes, and so is every
  tree and every blob that is used.
- Listed paths have a limit: a repository of 100 kB may name 10¹⁰ of them.
- Only regular files count; links, submodules, odd paths and large files are left out and counted.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # a missing git is our error, at first use
import git

from tangobench.errors import CorruptionError, InputError, ResourceError, TangobenchError
from tangobench.pipeline.core.files import explain_os_errors

SECONDS: Final = 600.0  # for a call of git, or one pass over a list of objects
_SECONDS_FOR_REFS: Final = 60.0
_MAX_SMALL: Final = 4096  # bytes of HEAD, commondir or a work tree's .git
_MAX_PATHS: Final = 1 << 27  # bytes of all listed paths with their entries; Mathlib has 0.5 MB
_ENTRY: Final = 100  # bytes of an entry beside its path
_MAX_PATH: Final = 4096  # bytes
_MAX_TREE: Final = 1 << 26  # bytes of one tree object, or of all packed refs
_MAX_BYTES: Final = 1 << 33  # of all wanted files together; Mathlib has 60 MB
_MOST_MEMORY: Final = "1g"  # in one piece: git reads a sparse terabyte of alternates otherwise
_MAX_TOOLCHAIN: Final = 1000  # bytes of `lean-toolchain`

_HEAD: Final = re.compile(rb"(?:ref: refs/[!-~]+|[0-9a-f]{40})\n?")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ufeff\u2028\u2029]")
_TOOLCHAIN: Final = b"lean-toolchain"
_FOLDER: Final = 0o040000
_SYMLINK: Final = 0o120000
_REGULAR: Final = (0o100644, 0o100755)
_ENVIRONMENT: Final = threading.RLock()

Entry = tuple[int, bytes, str]  # mode as git normalises it, name or path, id


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - never raises
    return Path(base) / "tangobench" / "git"


def scratch_folder() -> str:
    """The system's temporary folder; the cache where no such folder can be written to."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        folder = cache_folder()
        with explain_os_errors(folder, 0):
            folder.mkdir(parents=True, exist_ok=True)
        return str(folder)


class ClosedGit(git.Git):
    """GitPython's git for one git directory, without the caller's `GIT_*` variables.

    Unless it is `fetching`, it reads and asks nothing outside.
    """

    def __init__(self, git_dir: Path, *, fetching: bool = False) -> None:
        super().__init__(str(git_dir))
        own = {"GIT_DIR": str(git_dir), "GIT_NO_REPLACE_OBJECTS": "1", "GIT_TERMINAL_PROMPT": "0"}
        if not fetching:
            own |= {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": ""}
            own |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
            own |= {"GIT_ALLOC_LIMIT": _MOST_MEMORY}
        self.update_environment(**own)

    def execute(self, command: Any, *args: Any, **options: Any) -> Any:
        with _no_git_variables():  # GitPython hands on the environment of this process
            try:
                return super().execute(command, *args, **options)
            except git.GitCommandNotFound:
                missing = InputError("git is not installed", kind="git-missing", fix="install git")
                raise missing from None

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
    with tempfile.TemporaryDirectory(prefix="tangobench-git-", dir=scratch_folder()) as made:
        folder = Path(made)
        # A linked work tree names the directory that it belongs to.
        common = git_dir / os.fsdecode(start_of(git_dir / "commondir").strip())
        packed = common / "packed-refs"
        if packed.is_file() and packed.stat().st_size > _MAX_TREE:
            raise _too_much(git_dir, f"a packed-refs of {packed.stat().st_size:,} bytes")
        head = start_of(git_dir / "HEAD")
        head = head if _HEAD.fullmatch(head) else b"ref: refs/heads/none\n"
        with explain_os_errors(folder, 0):
            (folder / "HEAD").write_bytes(head)
            (folder / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = true\n")
            wanted = {"objects": Path.is_dir, "refs": Path.is_dir, "packed-refs": Path.is_file}
            for name in (name for name, fits in wanted.items() if fits(common / name)):
                (folder / name).symlink_to((common / name).resolve())
            (folder / "refs").mkdir(exist_ok=True)
        with _no_git_variables():
            try:
                repo = git.Repo(folder, expand_vars=False)
            except git.InvalidGitRepositoryError:
                raise not_a_repository(git_dir) from None
        repo.git = ClosedGit(folder)
        with repo, _in_time(repo.git):
            yield repo


@contextlib.contextmanager
def _in_time(asked: ClosedGit) -> Iterator[None]:
    """Kill the git that reads objects after `SECONDS`: a FIFO would block it for ever."""
    late, seconds = threading.Event(), SECONDS

    def kill() -> None:
        late.set()
        for process in (asked.cat_file_all, asked.cat_file_header):
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


def start_of(path: Path) -> bytes:
    """The start of a regular file; nothing for anything else."""
    with path.open("rb") if path.is_file() else io.BytesIO() as file:
        return file.read(_MAX_SMALL)


def commit_of(git_dir: Path, name: str) -> str | None:
    """The commit that a name (`HEAD`, a tag, a branch, an id) means here, if there is one."""
    with opened(git_dir) as repo:
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        code, found, _ = repo.git.run(*words, seconds=_SECONDS_FOR_REFS)
    return found.decode().strip() if code == 0 else None


def _object(repo: git.Repo, kind: str, path: str, ident: str, most: int) -> bytes:
    """An object of at most so many bytes, checked against its id."""
    try:
        size = repo.git.get_object_header(ident)[2]
        if size > most:
            raise _too_much(path, f"a {kind} of {size:,} bytes")
        data: bytes = repo.git.get_object_data(ident)[3]
    except (ValueError, OSError):
        raise _missing(path, ident) from None
    return _checked(kind, path, ident, data)


def _checked(kind: str, path: str, ident: str, data: bytes) -> bytes:
    if object_id(kind.encode(), data) != ident:  # the kind is part of the id
        raise _damaged(path, ident, "does not match its id")
    return data


def _ask_for(repo: git.Repo, what: str, idents: Iterable[str]) -> bytes:
    """One answer of `git cat-file` about many objects: a request for each takes twice as long."""
    with tempfile.TemporaryFile(dir=repo.git_dir) as asked:
        asked.write("".join(f"{ident}\n" for ident in idents).encode())
        asked.seek(0)
        answer: bytes = repo.git.run("cat-file", what, seconds=SECONDS, istream=asked)[1]
        return answer


def object_id(kind: bytes, data: bytes) -> str:
    return hashlib.sha1(b"%s %d\0%s" % (kind, len(data), data), usedforsecurity=False).hexdigest()


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
    toolchain: str | None
    """What `lean-toolchain` at the top of the repository names, if it is there and readable."""


def list_files(git_dir: Path, commit: str, root: str, *, max_bytes: int = 1 << 62) -> Listing:
    """The regular `.lean` files under `root`."""
    with opened(git_dir) as repo:
        tree, found = _entries(repo, git_dir, commit, root)
        judged = [(refusal(mode, path), path, ident) for mode, path, ident in found]
        wanted = [(path.decode(), ident) for reason, path, ident in judged if reason is None]
        every = _sized(repo, wanted)
        others = [] if wanted else _entries(repo, git_dir, commit, "")[1]
        toolchain = _toolchain(repo, found)
    rejected = Counter(reason for reason, _, _ in judged if reason)
    files = sorted(file for file in every if file.size <= max_bytes)
    rejected["too-large"] = len(every) - len(files)
    if not files:
        paths = [path.decode() for mode, path, _ in others if refusal(mode, path) is None]
        folders = sorted({f"{path.partition('/')[0]}/" for path in paths if "/" in path})
        roots = f"give --root {' or '.join([*folders[:5], repr('')])} ('' is everything)"
        fix = roots if paths else "check --source and --commit"
        message = f"commit {commit} has no .lean files under {root or '/'!r}"
        raise InputError(message, kind="no-lean-files", fix=fix, rejected=dict(+rejected))
    if sum(file.size for file in files) > _MAX_BYTES:
        raise _too_much(git_dir, f".lean files of more than {_MAX_BYTES:,} bytes together")
    return Listing(commit, tree, tuple(files), dict(sorted((+rejected).items())), toolchain)


def _sized(repo: git.Repo, wanted: Sequence[tuple[str, str]]) -> list[File]:
    lines = _ask_for(repo, "--batch-check", (ident for _, ident in wanted)).decode().splitlines()
    found = {line.partition(" ")[0]: line.rpartition(" ")[2] for line in lines}
    for path, ident in wanted:
        if not found.get(ident, "").isdecimal():  # "ID missing", or no answer at all
            raise _missing(path, ident)
    return [File(path, ident, int(found[ident])) for path, ident in wanted]


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


def _toolchain(repo: git.Repo, found: Sequence[Entry]) -> str | None:
    named = [i for mode, path, i in found if path == _TOOLCHAIN and mode in _REGULAR]
    with contextlib.suppress(TangobenchError, UnicodeDecodeError, IndexError):
        data = _object(repo, "blob", "lean-toolchain", named[0], _MAX_TOOLCHAIN)
        text = data.decode("ascii").strip()
        return text if text.isprintable() and text else None
    return None


def read_files(git_dir: Path, files: Sequence[File]) -> list[bytes]:
    """The files' contents, in order, each checked against its id."""
    with opened(git_dir) as repo:
        answer = _ask_for(repo, "--batch", (file.blob for file in files))
    contents, place = [], 0
    for path, ident, _ in files:  # "ID blob SIZE", the content and a newline; or "ID missing"
        start = answer.find(b"\n", place) + 1
        size = answer[place:start].rpartition(b" ")[2].strip()
        if not size.isdigit():
            raise _missing(path, ident)
        place = start + int(size) + 1
        contents.append(_checked("blob", path, ident, answer[start : place - 1]))
    return contents


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


def _entries(repo: git.Repo, git_dir: Path, commit: str, root: str) -> tuple[str, list[Entry]]:
    """The commit's tree; mode, path and id of all files under `root` and of `lean-toolchain`."""
    data = _object(repo, "commit", f"commit {commit}", commit, _MAX_TREE)
    top = data.split(b"\n", 1)[0].removeprefix(b"tree ").decode(errors="replace")
    under, room = "".join(f"{part}/" for part in root.split("/") if part).encode(), _MAX_PATHS
    trees: dict[str, list[Entry]] = {}
    found, waiting = [], [(top, b"")]
    while waiting:
        ident, folder = waiting.pop()
        if ident not in trees:
            trees[ident] = _tree(repo, "/", ident)
        for mode, name, inner in trees[ident]:
            path = folder + (name if b"/" not in name else b"//" + name)  # an empty part is refused
            room -= len(path) + _ENTRY
            if mode == _FOLDER and (path + b"/").startswith(under[: len(path) + 1]):
                waiting.append((inner, path + b"/"))
            elif mode != _FOLDER and (path.startswith(under) or path == _TOOLCHAIN):
                found.append((mode, path, inner))
        if room < 0:
            raise _too_much(git_dir, f"paths of more than {_MAX_PATHS:,} bytes together")
    return top, found


def _tree(repo: git.Repo, path: str, ident: str) -> list[Entry]:
    """The entries of a tree object: `MODE NAME\\0` and the id's 20 bytes, again and again."""
    tree = _object(repo, "tree", path, ident, _MAX_TREE)
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


def _missing(path: str, ident: str) -> CorruptionError:
    return _damaged(path, ident, "is missing from the object database")


def timed_out(what: str, seconds: float) -> ResourceError:
    fix = "check the disk or network of the repository; the same command resumes"
    return ResourceError(f"{what} gave no answer in {seconds:.0f} s", kind="git-timeout", fix=fix)


def not_a_repository(source: Path | str) -> InputError:
    fix = "give a clone, a bare repository, a bundle or a git URL with --source"
    message = f"{source} is not a git repository"
    return InputError(message, kind="not-a-repository", fix=fix, path=str(source))
