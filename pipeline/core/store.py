"""Where bytes are: folders and object stores, and the unit store, which keeps finished work.

- A `Place` is a folder or file here, or one behind an fsspec URL. One PUT is atomic there, and so
  is an upload in parts: an object is there whole or not at all. Whatever a client raises is
  `store-unreachable` (exit 7).
- An object is bytes named by their sha256; a record (JSON) ties a unit's key to its object and is
  written after it. At a resume it counts only if its object is there and unchanged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa

from tangobench.errors import CorruptionError, ResourceError, UsageError
from tangobench.pipeline.core import files, hashing
from tangobench.pipeline.core.hashing import Sink, canonical_json, sha256_bytes

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Pair = tuple[Callable[[memoryview], None], Callable[[str], None]]
"""A way to send pieces of an object, and one to give it its name when it is whole."""

_ONE_PUT: Final = 1 << 26  # a larger object goes through a temporary file, in parts: memory
_PIECE: Final = 1 << 23  # of an object that is copied out of an object store
_SMALL: Final = 1 << 20  # below this a read beats mapping a file of many megabytes
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
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> Bucket:
        return replace(self, url=self.url.rpartition("/")[0])

    def read(self, start: int | None = None, end: int | None = None) -> bytes:
        """Its bytes, or those from `start` to `end`."""
        with self._client() as (fs, path):
            # By name: the second positional argument of s3fs is a version.
            return bytes(fs.cat_file(path, start=start, end=end))

    def write(self, data: Any, *, new: bool = False) -> None:
        """Put bytes or a local file there whole; if `new`, `FileExistsError` where something is."""
        with self._client() as (fs, path):
            if isinstance(data, Path):  # in parts; the object appears with the last
                fs.put_file(str(data), path, **(_PARTS if hasattr(fs, "s3") else {}))
                return
            if new and not hasattr(fs, "s3"):  # only S3's client sends If-None-Match
                if fs.exists(path):
                    raise FileExistsError(self.url)
                new = False
            try:
                fs.pipe_file(path, bytes(memoryview(data)), **({"mode": "create"} if new else {}))
            except FileNotFoundError as error:  # of the bucket: a PUT needs nothing else
                raise OSError(str(error)) from None

    def remove(self) -> None:
        with self._client() as (fs, path), contextlib.suppress(FileNotFoundError):
            fs.rm_file(path)

    def stat(self) -> tuple[int, str]:
        """Size and the store's own checksum, empty where the store has none."""
        with self._client() as (fs, path):
            info = fs.info(path)
            if info["type"] != "file":
                raise FileNotFoundError(self.url)
            found = next((str(info[name]) for name in _CHECKSUMS if info.get(name)), "")
            return int(info["size"]), found

    def files(self) -> list[str]:
        """Relative paths of all objects below it, sorted; for `verify`, readers never list."""
        with self._client() as (fs, path):
            return sorted(name[len(path) + 1 :] for name in fs.find(path))

    @contextlib.contextmanager
    def _client(self) -> Iterator[tuple[Any, str]]:
        """The client and the path in it; all errors but missing and existing become one."""
        try:
            yield _file_system(self.url)
        except (FileNotFoundError, FileExistsError):
            raise
        except Exception as error:
            why = f"the store at {self.url} failed: {type(error).__name__}: {error}"
            fix = "check its address and credentials; the same command resumes"
            raise ResourceError(why, kind="store-unreachable", fix=fix) from error


Place = Path | Bucket


def place_of(where: Path | str) -> Place:
    """The folder or file at a path or an fsspec URL; `file://` is a folder."""
    if isinstance(where, Path) or "://" not in where.removeprefix("file://"):
        return Path(str(where).removeprefix("file://"))
    url = where.rstrip("/")
    try:
        _file_system(url)
    except (ValueError, ImportError) as error:
        fix = "name a folder or an fsspec URL; pip install 'tangobench[hub]' brings s3://"
        why = f"no way to reach {where}: {error}"
        raise UsageError(why, kind="store-unknown", fix=fix) from None
    return Bucket(url)


@lru_cache(maxsize=64)
def _file_system(url: str) -> tuple[Any, str]:
    import fsspec

    # Others write there too: what a client remembers of a listing is not what is there now.
    fs, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    return fs, path


@dataclass(frozen=True, kw_only=True, slots=True)
class Record(Generic[R_co]):
    """What is remembered of a finished unit; `result` is a `TypedDict` of its stage."""

    key: str
    address: str
    size: int
    result: R_co
    mark: str = ""
    """The checksum that an object store itself gave the object, if it gives any."""

    def to_bytes(self) -> bytes:
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if not self.mark:
            del plain["mark"]
        return hashing.seal(plain, hashing.RECORD)

    @classmethod
    def from_bytes(cls, data: bytes) -> Record[Any] | None:
        """The record, or None if it is damaged."""
        try:
            return cls(**hashing.unseal(data, hashing.RECORD))
        except (hashing.Broken, TypeError):
            return None


class Store(ABC):
    """Objects and records; the two subclasses decide where bytes live."""

    def put(self, key: str, data: Any, result: R) -> Record[R]:
        address = sha256_bytes(data)
        self._write(_object_name(address), data)
        return self._remember(key, address, memoryview(data).nbytes, result)

    def put_streamed(self, key: str, write: Callable[[Sink], R], expected: int) -> Record[R]:
        """`put` of an object that is written piece by piece; `write` returns its result."""
        with self._unnamed(expected) as (send, keep):
            sink = Sink(send)
            result = write(sink)
            address = sink.hexdigest()
            keep(_object_name(address))
        return self._remember(key, address, sink.size, result)

    def _remember(self, key: str, address: str, size: int, result: R) -> Record[R]:
        # As it will be read back: tuples become lists, keys strings, and then sorted. A build that
        # resumes must see exactly what the build that was killed saw.
        result = json.loads(canonical_json(json.loads(json.dumps(result))))
        mark = self._mark(address)
        record = Record(key=key, address=address, size=size, result=result, mark=mark)
        self._write(_record_name(key), record.to_bytes())
        return record

    def get(self, key: str) -> Record[Any] | None:
        """The record of a finished unit whose object is there, whole and unchanged."""
        try:
            record = Record.from_bytes(bytes(self._read(_record_name(key))))
            whole = record is not None and record.key == key and self._intact(record)
        except FileNotFoundError:
            return None
        return record if whole else None

    def _intact(self, record: Record[Any]) -> bool:
        return sha256_bytes(self._read(_object_name(record.address))) == record.address

    def _mark(self, address: str) -> str:
        return ""

    def read(self, address: str, start: int = 0, length: int | None = None) -> pa.Buffer:
        """An object, or a part of it."""
        try:
            return self._read(_object_name(address), start, length)
        except FileNotFoundError:
            raise _missing(address) from None

    def place(self, address: str, path: Place) -> None:
        """Put an object at `path`, whole or not at all."""
        data = self.read(address)
        path.write(data) if isinstance(path, Bucket) else files.write_atomic(path, data)

    def spill_folder(self) -> Path | None:
        """Where a unit may put temporary files: beside the store, or None for the system's."""
        return None

    def clear_scratch(self) -> None:  # noqa: B027 - object stores have nothing to clear
        """Remove temporary files of this build's dead writers."""

    @abstractmethod
    def _write(self, name: str, data: Any) -> None: ...

    @abstractmethod
    def _unnamed(self, expected: int) -> AbstractContextManager[Pair]: ...

    @abstractmethod
    def _read(self, name: str, start: int = 0, length: int | None = None) -> pa.Buffer: ...


@dataclass(frozen=True, slots=True)
class LocalStore(Store):
    """A store in a folder; `scratch` separates the temporary files of concurrent builds."""

    root: Path
    scratch: str

    def _write(self, name: str, data: Any) -> None:
        files.write_atomic(self.root / name, data, scratch=self._scratch)

    @contextlib.contextmanager
    def _unnamed(self, expected: int) -> Iterator[Pair]:
        with files.unnamed_file(self._scratch, self.root / "objects", expected) as file:
            yield file.write, lambda name: file.keep(self.root / name)

    @property
    def _scratch(self) -> Path:
        return self.root / "tmp" / self.scratch

    def _read(self, name: str, start: int = 0, length: int | None = None) -> pa.Buffer:
        path = self.root / name
        try:
            if length is not None and length <= _SMALL:
                with path.open("rb", buffering=0) as raw:
                    return pa.py_buffer(os.pread(raw.fileno(), length, start))
            if path.stat().st_size == 0:
                return pa.py_buffer(b"")
            with pa.memory_map(os.fsencode(path)) as file:
                return file.read_buffer().slice(start, length)
        except FileNotFoundError:
            raise
        except OSError as error:
            why = f"cannot read {path}: {os.strerror(error.errno or 0)}"
            fix = "make the unit store readable, or choose another --store"
            raise ResourceError(why, kind="store-unreadable", fix=fix, path=str(path)) from error

    def place(self, address: str, path: Place) -> None:
        """Give an object the name `path` too: no second copy where the file system has links."""
        if isinstance(path, Bucket):
            path.write(self.root / _object_name(address))
        elif not files.link_atomic(self.root / _object_name(address), path):
            files.write_atomic(path, self.read(address))

    def spill_folder(self) -> Path:
        self._scratch.mkdir(parents=True, exist_ok=True)
        return self._scratch

    def clear_scratch(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class RemoteStore(Store):
    """A store behind an fsspec URL; at a resume it trusts the size and the store's checksum."""

    root: Bucket

    def _write(self, name: str, data: Any) -> None:
        (self.root / name).write(data)

    @contextlib.contextmanager
    def _unnamed(self, expected: int) -> Iterator[Pair]:
        if expected <= _ONE_PUT:
            whole = bytearray()  # one PUT is atomic, so it must have all of it
            yield whole.extend, lambda name: self._write(name, whole)
            return
        with tempfile.NamedTemporaryFile(prefix="tangobench-", buffering=0) as file:
            path = Path(file.name)

            def send(piece: memoryview) -> None:
                with files.explain_os_errors(path, expected):
                    files.write_all(file.fileno(), piece)

            yield send, lambda name: self._write(name, path)

    def _read(self, name: str, start: int = 0, length: int | None = None) -> pa.Buffer:
        if length is None:
            return pa.py_buffer((self.root / name).read())
        # Object stores refuse an empty range.
        data = (self.root / name).read(start, start + length) if length else b""
        return pa.py_buffer(data)

    def _mark(self, address: str) -> str:
        return (self.root / _object_name(address)).stat()[1]

    def _intact(self, record: Record[Any]) -> bool:
        size, mark = (self.root / _object_name(record.address)).stat()
        if mark:
            return (size, mark) == (record.size, record.mark)
        return Store._intact(self, record)  # a store without checksums

    def read(self, address: str, start: int = 0, length: int | None = None) -> pa.Buffer:
        """A whole object with other bytes is removed, so that the next run makes it again."""
        data = Store.read(self, address, start, length)
        if length is None:
            self._require(address, sha256_bytes(data))
        return data

    def _require(self, address: str, found: str) -> None:
        if found != address:
            (self.root / _object_name(address)).remove()
            why = f"object {address} in the unit store {self.root} holds other bytes"
            fix = "run the same command again: the unit is redone"
            raise CorruptionError(why, kind="unit-corrupt", fix=fix)

    def place(self, address: str, path: Place) -> None:
        """A piece at a time is in memory: the driver places several shards at once."""
        try:
            size = (self.root / _object_name(address)).stat()[0]
        except FileNotFoundError:
            raise _missing(address) from None
        if isinstance(path, Bucket):
            with tempfile.NamedTemporaryFile(prefix="tangobench-", buffering=0) as file:
                self._copy(address, size, partial(files.write_all, file.fileno()))
                path.write(Path(file.name))
        else:
            with files.atomic_file(path, needed=size) as target:
                self._copy(address, size, target.write)

    def _copy(self, address: str, size: int, send: Callable[[memoryview], None]) -> None:
        sink = Sink(send)
        for start in range(0, size, _PIECE):
            sink.write(self.read(address, start, min(_PIECE, size - start)))
        self._require(address, sink.hexdigest())


def open_store(where: str, *, scratch: str = "default") -> Store:
    place = place_of(where)
    return LocalStore(place.absolute(), scratch) if isinstance(place, Path) else RemoteStore(place)


def require_shared(store: Store) -> None:
    """Refuse a store that lives in the memory of one process, for a build in several."""
    if isinstance(store, RemoteStore) and store.root.url.startswith("memory://"):
        why = f"the store {store.root} is memory of this process: its workers cannot see it"
        fix = "use --workers 1, or name a folder or an s3:// address as --store"
        raise UsageError(why, kind="store-not-shared", fix=fix)


def _missing(address: str) -> CorruptionError:
    why = f"object {address} disappeared from the unit store during the build"
    fix = "run the same command again: the missing unit is redone"
    return CorruptionError(why, kind="unit-missing", fix=fix)


def _object_name(address: str) -> str:
    return f"objects/{address[:2]}/{address[2:]}"


def _record_name(key: str) -> str:
    return f"records/{key[:2]}/{key[2:]}.json"
