"""The one door for files: written whole or not at all, and read with distrust.

- A written file appears under its final name complete and durable: temporary name, fsync, rename,
  fsync of the folder. A crash leaves at most a file whose name starts with `.partial-`.
- Of files that somebody else may have put there only regular ones are opened, and inside a folder
  no link is followed; input that a user names (`links=True`) may be a link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from tangobench.errors import BusyError, ResourceError, UsageError

PARTIAL: Final = ".partial-"
FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED: Final = (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError)
_DENIED_CODES: Final = {errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP}
LOG_BYTES: Final = 1 << 30
_JSON_BYTES: Final = 1 << 28
_FILE_BYTES: Final = 1 << 38
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link, which is not followed",
}


@dataclass(slots=True)
class Unnamed:
    """A file under a temporary name; `target` and `needed` (its size) are for messages."""

    descriptor: int
    path: Path
    target: Path
    needed: int
    kept: bool = False

    def write(self, data: Any) -> None:
        with explain_os_errors(self.target, self.needed):
            write_all(self.descriptor, data)

    def keep(self, path: Path) -> None:
        """Give it its name: the bytes are durable before it, and it before this returns."""
        with explain_os_errors(path, self.needed):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.fsync(self.descriptor)
            self.path.replace(path)
            self.kept = True
            os.close(self.descriptor)
            sync_folder(path.parent)


@contextlib.contextmanager
def unnamed_file(folder: Path, target: Path, needed: int) -> Iterator[Unnamed]:
    """A file in `folder` to write to, which is gone after the block unless it was kept."""
    temporary = _temporary(folder, target)
    with explain_os_errors(target, needed):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    file = Unnamed(descriptor, temporary, target, needed)
    try:
        yield file
    finally:
        if not file.kept:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def _temporary(folder: Path, target: Path) -> Path:
    """A name that is unique also between threads and between machines that share the folder."""
    return folder / f"{PARTIAL}{secrets.token_hex(8)}-{target.name[-40:]}"


@contextlib.contextmanager
def atomic_file(path: Path, *, needed: int = 0, scratch: Path | None = None) -> Iterator[Unnamed]:
    """A file that appears at `path` if the block succeeds; `scratch` is on its file system."""
    with (
        explain_os_errors(path, needed),
        unnamed_file(scratch or path.parent, path, needed) as file,
    ):
        yield file
        file.keep(path)


def write_atomic(path: Path, data: Any, *, scratch: Path | None = None) -> None:
    with atomic_file(path, needed=memoryview(data).nbytes, scratch=scratch) as file:
        file.write(data)


@contextlib.contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """A folder to fill; it appears at `target`, new or empty, only if the block succeeds."""
    folder = _temporary(target.absolute().parent, target.absolute())
    folder.mkdir(parents=True)
    try:
        yield folder
        folder.replace(target)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def link_atomic(source: Path, path: Path) -> bool:
    """Make `path` another name of `source`, a file never written again; False if that cannot be."""
    temporary = _temporary(path.parent, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(source, temporary)
        try:
            temporary.replace(path)
        finally:  # of two names of one file, `replace` leaves both
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError:
        return False
    return True


def write_all(descriptor: int, data: Any) -> None:
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def explain_os_errors(path: Path, needed: int) -> Iterator[None]:
    """Turn an OSError of writing `path` into an error that tells the user what to do."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        if isinstance(error, _DENIED) or error.errno in _DENIED_CODES:
            why = f"cannot write {path}: {reason}"
            fix = "choose an --out (and --store) that you may write to"
            raise UsageError(why, kind="not-writable", fix=fix, path=str(path)) from error
        kind, fix = "disk-error", "check that disk and the system's limits"
        if error.errno in FULL:
            kind, fix = "disk-full", "free space or choose another --out"
            reason += f" ({_room(path)})"
        why = f"cannot write {f'{needed:,} bytes to ' if needed else ''}{path}: {reason}"
        fix += "; the same command resumes"
        details = {"path": str(path), "bytes_needed": needed}
        raise ResourceError(why, kind=kind, fix=fix, **details) from error


def free_bytes(path: Path) -> int:
    """Free bytes on the file system that would hold `path`."""
    found = _file_system(path)
    return found.f_bavail * found.f_frsize if found else 0


def _file_system(path: Path) -> os.statvfs_result | None:
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):
            return os.statvfs(place)
    return None


def _room(path: Path) -> str:
    """What is left for `path`: a disk is full when either its bytes or its file entries are."""
    found = _file_system(path)
    if found and found.f_files and not found.f_favail:
        return "no file entries free"
    return f"{free_bytes(path):,} bytes free"


@contextlib.contextmanager
def exclusive(
    path: Path, *, wait_seconds: float = 0.0, say: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold `path` as a lock, which the kernel releases; a wait is announced once through `say`."""
    with explain_os_errors(path, 0):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        deadline = time.monotonic() + wait_seconds
        while True:
            with explain_os_errors(path, 0), contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace") or "unknown"
            busy = f"process {holder} is at work on this target (lock {path})"
            if time.monotonic() >= deadline:
                fix = "wait for it (a build does with --wait SECONDS), or choose another --out"
                raise BusyError(busy, kind="busy", fix=fix, holder=holder)
            if say is not None:
                say(f"waiting: {busy}")
                say = None
            time.sleep(0.1)
        with contextlib.suppress(OSError):  # who holds it is a courtesy; a full disk has no room
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


class Refused(OSError):
    """A file that is not opened; `strerror` says why."""

    def __init__(self, path: Path | str, why: str) -> None:
        super().__init__(errno.EPERM, why, str(path))


@contextlib.contextmanager
def open_untrusted(
    path: Path, *, folder: Path | None = None, limit: int = _FILE_BYTES, links: bool = False
) -> Iterator[tuple[int, int]]:
    """Descriptor and size of a regular file; `folder` (default: its own) is where links end."""
    descriptor = os.open(path, _FLAGS) if links else _inside(folder or path.parent, path)
    try:
        found = os.fstat(descriptor)
        _require_regular(found.st_mode, path)
        if found.st_size > limit:
            raise Refused(path, f"it has {found.st_size:,} bytes, at most {limit:,} are read")
        yield descriptor, found.st_size
    finally:
        os.close(descriptor)


def read_untrusted(
    path: Path, *, folder: Path | None = None, limit: int = _JSON_BYTES, links: bool = False
) -> bytes:
    """All bytes of a regular file; one above the limit is refused before it is read."""
    with (
        open_untrusted(path, folder=folder, limit=limit, links=links) as (descriptor, size),
        os.fdopen(descriptor, "rb", closefd=False) as file,
    ):
        return file.read(size)


def map_untrusted(path: Path, *, folder: Path | None = None) -> mmap.mmap | bytes:
    """A regular file, memory-mapped; an empty one cannot be mapped."""
    with open_untrusted(path, folder=folder) as (descriptor, size):
        return mmap.mmap(descriptor, size, prot=mmap.PROT_READ) if size else b""


def size_untrusted(path: Path, *, folder: Path | None = None) -> int:
    with open_untrusted(path, folder=folder) as (_, size):
        return size


def write_untrusted(path: Path, mode: str) -> IO[bytes]:
    """`path` opened for writing unless it is a link or no regular file: where a log belongs."""

    def opener(name: str, flags: int) -> int:
        flags &= ~os.O_TRUNC
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            _require_regular(os.fstat(descriptor).st_mode, path)
            if "w" in mode:
                os.ftruncate(descriptor, 0)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    with explain_os_errors(path, 0):
        return open(path, mode, opener=opener)


def _require_regular(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise Refused(path, f"it is {_KINDS.get(stat.S_IFMT(mode), 'no file')}")


def _inside(folder: Path, path: Path) -> int:
    """Open a file below a folder step by step, so that no link is followed on the way."""
    *steps, name = path.relative_to(folder).parts
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in steps:
            if stat.S_ISLNK(os.stat(step, dir_fd=place, follow_symlinks=False).st_mode):
                raise Refused(path, f"its folder {step} is a link, which is not followed")
            deeper = os.open(step, _FLAGS | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
            os.close(place)
            place = deeper
        mode = os.stat(name, dir_fd=place, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            return os.open(_blob(folder, path), _FLAGS | os.O_NOFOLLOW)
        _require_regular(mode, path)  # before it is opened: a device may act on that
        return os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=place)
    finally:
        os.close(place)


def _blob(folder: Path, path: Path) -> Path:
    """Where a link of a Hugging Face cache leads (REPO/snapshots/REVISION/… to REPO/blobs/…)."""
    target = Path(os.path.realpath(path))
    here = Path(os.path.realpath(folder))
    for place in (here, *here.parents):
        if place.parent.name == "snapshots" and target.parent == place.parent.parent / "blobs":
            _require_regular(target.lstat().st_mode, path)
            return target
    raise Refused(path, f"it is {_KINDS[stat.S_IFLNK]}")
