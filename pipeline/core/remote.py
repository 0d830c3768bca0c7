"""Object stores through fsspec: one address, few verbs, typed errors.

- One PUT is atomic, and so is an upload in parts: an object is there whole or not at all.
  `new=True` sends If-None-Match, so of two writers one gets an error.
- A missing object is a `FileNotFoundError`; everything else that a store's client raises is a
  `ResourceError` of kind `store-unreachable`.
- Nothing here lists, except `files`, which `verify` uses to find what a lock does not name.

Usage: `folder = place_of("s3://bucket/out"); (folder / "manifest.lock.json").read()`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tangobench.errors import ResourceError, UsageError

# How S3's client sends a large file: a part at a time is in memory.
_PARTS: Final = {"chunksize": 1 << 24, "max_concurrency": 2}
# What clients call the checksum that the store itself keeps of an object: S3, GCS, Azure.
_CHECKSUMS: Final = ("ETag", "etag", "md5Hash", "content_md5", "crc32c")


@dataclass(frozen=True, slots=True)
class Bucket:
    """A folder or file in an object store, with the part of `Path` that datasets need."""

    url: str
    cached: bool = False
    """Readers keep verified copies of what they read on this machine."""

    def __truediv__(self, name: str) -> Bucket:
        return replace(self, url=f"{self.url}/{name}")

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> Bucket:
        """The folder around it."""
        return replace(self, url=self.url.rpartition("/")[0])

    def read(self, start: int | None = None, end: int | None = None) -> bytes:
        """Its bytes, or those from `start` to `end`."""
        with explained(self.url):
            fs, path = file_system(self.url)
            # By name: the second positional argument of s3fs is a version.
            return bytes(fs.cat_file(path, start=start, end=end))

    def write(self, data: Any, *, new: bool = False) -> None:
        """Put bytes or a local file there whole; if `new`, `FileExistsError` where something is."""
        with explained(self.url):
            fs, path = file_system(self.url)
            if isinstance(data, Path):  # in parts; the object appears with the last
                fs.put_file(str(data), path, **(_PARTS if hasattr(fs, "s3") else {}))
                return
            if new and not hasattr(fs, "s3"):  # only S3's client sends a condition
                if fs.exists(path):
                    raise FileExistsError(self.url)
                new = False
            try:
                fs.pipe_file(path, bytes(memoryview(data)), **({"mode": "create"} if new else {}))
            except FileNotFoundError as error:  # of the bucket: a PUT needs nothing else
                raise OSError(str(error)) from None

    def remove(self) -> None:
        """Remove it if it is there."""
        with explained(self.url), contextlib.suppress(FileNotFoundError):
            fs, path = file_system(self.url)
            fs.rm_file(path)

    def stat(self) -> tuple[int, str]:
        """Size and the store's own checksum, empty where the store has none."""
        with explained(self.url):
            fs, path = file_system(self.url)
            fs.invalidate_cache(path)
            info = fs.info(path)
            if info["type"] != "file":
                raise FileNotFoundError(self.url)
            found = next((str(info[name]) for name in _CHECKSUMS if info.get(name)), "")
            return int(info["size"]), found

    def files(self) -> list[str]:
        """Relative paths of all objects below it, sorted."""
        with explained(self.url):
            fs, path = file_system(self.url)
            fs.invalidate_cache(path)
            return sorted(name[len(path) + 1 :] for name in fs.find(path))


Place = Path | Bucket


def is_remote(where: str) -> bool:
    """Whether an address is behind fsspec; `file://` is a folder."""
    return "://" in where.removeprefix("file://")


def place_of(where: Path | str) -> Place:
    """The folder or file at a path or an fsspec URL."""
    if isinstance(where, Path) or not is_remote(where):
        return Path(str(where).removeprefix("file://"))
    url = where.rstrip("/")
    try:
        file_system(url)
    except (ValueError, ImportError) as error:
        raise UsageError(
            f"no way to reach {where}: {error}",
            kind="store-unknown",
            fix="name a folder or an fsspec URL such as s3://bucket/units "
            "(pip install 'tangobench[hub]' brings S3)",
        ) from None
    return Bucket(url)


@contextlib.contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn the many errors of remote stores into one; missing and existing objects stay."""
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except Exception as error:
        raise ResourceError(
            f"the store at {url} failed: {type(error).__name__}: {error}",
            kind="store-unreachable",
            fix="check its address and credentials; the same command resumes",
        ) from error


@functools.lru_cache(maxsize=64)
def file_system(url: str) -> tuple[Any, str]:
    """The client of a URL and the path in it."""
    import fsspec

    fs, path = fsspec.core.url_to_fs(url)
    return fs, path
