"""The one place that writes files: whole or not at all.

- A file appears under its final name complete and durable: temporary name, fsync, rename, fsync of
  the folder. A crash leaves at most a file whose name starts with `.partial-`.
- A full disk, a quota or a size limit is a `ResourceError` that says how many bytes were needed;
  no error of the operating system reaches the user as a traceback.

Usage: `write_atomic(Path("a.json"), b"{}")`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tangobench.errors import BusyError, ResourceError, UsageError

PARTIAL: Final = ".partial-"
FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED: Final = {
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.ELOOP,
}


@dataclass(slots=True)
class Unnamed:
    """A file under a temporary name; `target` and `needed` are for messages."""

    descriptor: int
    path: Path
    target: Path
    needed: int
    is_open: bool = True
    kept: bool = False

    def write(self, data: Any) -> None:
        """Write every byte of `data` (buffer protocol)."""
        with explain_os_errors(self.target, self.needed):
            write_all(self.descriptor, data)

    def keep(self, path: Path) -> None:
        """Give it its name: the bytes are durable before it, and it before this returns."""
        with explain_os_errors(path, self.needed):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.fsync(self.descriptor)
            self.close()
            self.path.replace(path)
            self.kept = True
            sync_folder(path.parent)

    def close(self) -> None:
        """Close the descriptor, once."""
        if self.is_open:
            self.is_open = False
            os.close(self.descriptor)


@contextlib.contextmanager
def unnamed_file(folder: Path, target: Path, needed: int) -> Iterator[Unnamed]:
    """A file in `folder` to write to, which is gone after the block unless it was kept.

    `target` is what messages call it, `needed` its size, for the message of a full disk.
    """
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
                file.close()
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def _temporary(folder: Path, target: Path) -> Path:
    """A name that is unique also between threads and between machines that share the folder."""
    return folder / f"{PARTIAL}{secrets.token_hex(8)}-{target.name[-40:]}"


@contextlib.contextmanager
def atomic_file(path: Path, *, needed: int = 0, scratch: Path | None = None) -> Iterator[int]:
    """A descriptor to write to; the file appears at `path` only if the block succeeds.

    `needed` is the size if known; `scratch` is a folder on the same file system for the temporary
    name.
    """
    with (
        explain_os_errors(path, needed),
        unnamed_file(scratch or path.parent, path, needed) as file,
    ):
        yield file.descriptor
        file.keep(path)


def write_atomic(path: Path, data: Any, *, scratch: Path | None = None) -> None:
    """Write `data` (buffer protocol) to `path`, whole or not at all."""
    with atomic_file(path, needed=memoryview(data).nbytes, scratch=scratch) as descriptor:
        write_all(descriptor, data)


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
    """Make `path` another name of `source`, a file that is never written again.

    False if that cannot be: another file system, one without links, no permission. A copy then
    either works or says why not.
    """
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
    """Write every byte, however many calls it takes."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
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
        if error.errno in FULL:
            raise ResourceError(
                f"cannot write {needed:,} bytes to {path}: {reason} ({_room(path)})",
                kind="disk-full",
                fix="free that much space or choose another --out; the same command resumes",
                path=str(path),
                bytes_needed=needed,
            ) from error
        if error.errno in _DENIED:
            raise UsageError(
                f"cannot write {path}: {reason}",
                kind="not-writable",
                fix="choose an --out (and --store) that you may write to",
                path=str(path),
            ) from error
        raise ResourceError(
            f"cannot write {needed:,} bytes to {path}: {reason}",
            kind="disk-error",
            fix="check that disk and the system's limits; the same command resumes",
            path=str(path),
            bytes_needed=needed,
        ) from error


def free_bytes(path: Path) -> int:
    """Free bytes on the file system that would hold `path`."""
    try:
        return shutil.disk_usage(_nearest(path)).free
    except OSError:
        return 0


def _nearest(path: Path) -> Path:
    while not os.path.exists(path) and path != path.parent:  # noqa: PTH110 - never raises
        path = path.parent
    return path


def _room(path: Path) -> str:
    """What is left for `path`: a disk is full when either its bytes or its file entries are."""
    with contextlib.suppress(OSError):
        found = os.statvfs(_nearest(path))
        if found.f_files and not found.f_favail:
            return "no file entries free"
    return f"{free_bytes(path):,} bytes free"


@contextlib.contextmanager
def exclusive(
    path: Path, *, wait_seconds: float = 0.0, say: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold `path` as a lock; the kernel releases it when the process dies, so none goes stale.

    A wait is announced once through `say`.
    """
    with explain_os_errors(path, 0):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        _take(path, descriptor, time.monotonic() + wait_seconds, say)
        with contextlib.suppress(OSError):  # who holds it is a courtesy; a full disk has no room
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _take(path: Path, descriptor: int, deadline: float, say: Callable[[str], None] | None) -> None:
    with explain_os_errors(path, 0):
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise _busy(path, descriptor) from None
                if say is not None:
                    say(f"waiting: {_busy(path, descriptor).message}")
                    say = None
            time.sleep(0.1)


def _busy(path: Path, descriptor: int) -> BusyError:
    holder = os.pread(descriptor, 32, 0).decode("ascii", "replace") or "unknown"
    return BusyError(
        f"process {holder} is at work on this target (lock {path})",
        kind="busy",
        fix="wait for it (a build does with --wait SECONDS), or choose another --out",
        holder=holder,
    )
