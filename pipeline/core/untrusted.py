"""The one door for files that somebody else may have put there.

- Only regular files are opened: a FIFO, device or socket is refused at once, never waited for.
- Inside a folder no link is followed, be it the file or a folder on the way to it; the folder
  itself may be a link. One exception: in the cache of a Hugging Face client, a link into the
  `blobs` of the same repository is how that cache stores its files.
- Input that a user names (`links=True`: Parquet, JSONL, specs) may be a link to a regular file.
- A file above its size limit is refused before it is read.

Usage: `read(folder / "run.json", limit=JSON_BYTES)`, `map_file(folder, "train-00000.arrow")`.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

JSON_BYTES: Final = 1 << 28
LOG_BYTES: Final = 1 << 30
FILE_BYTES: Final = 1 << 38
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link, which is not followed",
}


class Refused(OSError):
    """A file that is not opened; `strerror` says why."""

    def __init__(self, path: Path | str, why: str) -> None:
        super().__init__(errno.EPERM, why, str(path))


@contextlib.contextmanager
def opened(
    path: Path, *, folder: Path | None = None, limit: int = FILE_BYTES, links: bool = False
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


def read(
    path: Path, *, folder: Path | None = None, limit: int = JSON_BYTES, links: bool = False
) -> bytes:
    """All bytes of a regular file."""
    with (
        opened(path, folder=folder, limit=limit, links=links) as (descriptor, size),
        os.fdopen(descriptor, "rb", closefd=False) as file,
    ):
        return file.read(size)


def map_file(path: Path, *, folder: Path | None = None) -> mmap.mmap | bytes:
    """A regular file, memory-mapped; an empty one cannot be mapped."""
    with opened(path, folder=folder) as (descriptor, size):
        return mmap.mmap(descriptor, size, prot=mmap.PROT_READ) if size else b""


def check(path: Path, *, folder: Path | None = None) -> int:
    """The size of a file that the door would open."""
    with opened(path, folder=folder) as (_, size):
        return size


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
    """Where a link of a Hugging Face cache leads: REPO/snapshots/REVISION/… to REPO/blobs/…."""
    target = Path(os.path.realpath(path))
    here = Path(os.path.realpath(folder))
    for place in (here, *here.parents):
        if place.parent.name == "snapshots" and target.parent == place.parent.parent / "blobs":
            _require_regular(target.lstat().st_mode, path)
            return target
    raise Refused(path, f"it is {_KINDS[stat.S_IFLNK]}")
