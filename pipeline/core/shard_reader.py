"""Published files, opened: memory-mapped, hashed whole, read and verified by the lock.

- A file is hashed when a process first opens it (about 1 GB/s); then its contents are checked.
- A dataset in an object store is read through a cache of verified files on this machine
  (`$XDG_CACHE_HOME/tangobench/shards/SHA256`), each hashed again when it is opened.
- `verify` checks every byte of a folder; the first fault is an error that says what it is.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tangobench.errors import CorruptionError
from tangobench.pipeline.core import lock as locks
from tangobench.pipeline.core.files import map_untrusted, open_untrusted, write_atomic
from tangobench.pipeline.core.hashing import (
    RowsHasher,
    list_items,
    list_lengths,
    rows_sha256,
    sha256_bytes,
)
from tangobench.pipeline.core.lock import LOCK_NAME, Lock, read_lock
from tangobench.pipeline.core.shards import Rules, check_table, rules_of
from tangobench.pipeline.core.store import Bucket, Place

NDArray = np.ndarray[Any, Any]

# What Arrow and numpy raise when bytes are no shard and no table.
_LIES: Final = (
    *(pa.ArrowException, OSError, EOFError),
    *(ValueError, TypeError, LookupError, ArithmeticError),
)
_SCHEMA_BYTES: Final = 1 << 16
_BATCH: Final = 1024


class Shard:
    """One open, verified, memory-mapped shard."""

    def __init__(self, folder: Place, entry: dict[str, Any], rules: Rules) -> None:
        self.entry = entry
        self._path = folder / entry["path"]
        self._buffer = map_checked(folder, entry)
        self._batches: dict[int, pa.RecordBatch] = {}
        with as_promised(self._path):
            self.schema = pa.ipc.open_stream(self._buffer).schema
            rules.check_schema(self.schema)
            rules.check(self._table())

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return map(self.batch, range(len(self.entry["batch_offsets"])))

    def _table(self) -> pa.Table:
        return pa.Table.from_batches(self, self.schema)

    @property
    def path(self) -> Path:
        """Its file on this machine; of a remote dataset, that in the cache."""
        place: Place = self._path
        return cache_folder() / self.entry["sha256"] if isinstance(place, Bucket) else place

    def batch(self, index: int) -> pa.RecordBatch:
        if index not in self._batches:
            with as_promised(self._path):
                self._batches[index] = self._read(index)
        return self._batches[index]

    def _read(self, index: int) -> pa.RecordBatch:
        start, step = self.entry["batch_offsets"][index], self.entry["batch_rows"]
        stop = [*self.entry["batch_offsets"], self.entry["bytes"]][index + 1]
        message = pa.ipc.read_message(self._buffer.slice(start, stop - start))
        batch = pa.ipc.read_record_batch(message, self.schema)
        batch.validate(full=True)  # offsets of lists and texts; values are not looked at
        rows = min(step, self.entry["rows"] - index * step)
        if batch.num_rows != rows:
            raise ValueError(f"batch {index} has {batch.num_rows} rows, the lock says {rows}")
        return batch

    def check_rows(self) -> None:
        """Refuse a shard whose rows are not those that the lock counts and hashes."""
        with as_promised(self._path):
            rows = self._table()
            tokens = sum(len(list_items(chunk)) for chunk in rows["tokens"].chunks)
            _require(self.entry, tokens=tokens, rows_sha256=rows_sha256(rows))

    def value(self, row: int, column: str) -> Any:
        index, place = divmod(row, self.entry["batch_rows"])
        return self.batch(index).column(column)[place].as_py()

    @functools.cached_property
    def token_places(self) -> tuple[NDArray, NDArray, NDArray]:
        """The file as tokens, and starts and lengths of rows in it: a row is one slice."""
        kind, starts, lengths = np.dtype(np.uint8), [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        with as_promised(self._path):
            for column in (batch.column("tokens") for batch in self):
                values, counts = list_items(column).to_numpy(), list_lengths(column)
                starts.append(np.cumsum(counts, dtype=np.int64) - counts + self._first(values))
                lengths.append(counts.astype(np.int32))
                kind = values.dtype
            flat = np.frombuffer(self._buffer, kind, self._buffer.size // kind.itemsize)
        return flat, np.concatenate(starts), np.concatenate(lengths)

    def _first(self, values: NDArray) -> int:
        """Where in the file an array of tokens begins; it must lie there, uncompressed, aligned."""
        if not len(values):
            return 0
        offset = values.ctypes.data - self._buffer.address
        if offset % values.itemsize or not 0 <= offset <= self._buffer.size - values.nbytes:
            raise ValueError("its tokens do not lie in the file as they are")
        return int(offset // values.itemsize)

    def tokens(self, row: int) -> NDArray:
        flat, starts, lengths = self.token_places
        start = starts[row]
        return flat[start : start + lengths[row]]


class SideTable:
    """A verified Parquet file beside the shards, such as decisions; a card has no rows."""

    def __init__(self, folder: Place, entry: dict[str, Any], dataset: str) -> None:
        self.entry = entry
        self._dataset = dataset
        self._path = folder / entry["path"]
        self._buffer = map_checked(folder, entry, entry["kind"])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Its rows, a thousand at a time: a small file may decode to much."""
        with as_promised(self._path, self.entry["kind"]):
            file = pq.ParquetFile(pa.BufferReader(self._buffer))
            check_table(self._dataset, self.entry["kind"], file.schema_arrow)
            if file.metadata.num_rows == 0:
                yield pa.RecordBatch.from_pylist([], file.schema_arrow.remove_metadata())
            yield from file.iter_batches(_BATCH, use_threads=False)

    def table(self) -> pa.Table:
        return pa.Table.from_batches(self.batches())

    def check_rows(self) -> None:
        """Refuse a table whose rows are not those that the lock counts and hashes."""
        if not self.entry["rows_sha256"]:
            return
        hasher = RowsHasher()
        for batch in self.batches():
            hasher.update(batch)
        with as_promised(self._path, self.entry["kind"]):
            _require(self.entry, rows=hasher.rows, rows_sha256=hasher.hexdigest())


def check_schemas(folder: Place, entries: list[dict[str, Any]], rules: Rules) -> None:
    """Refuse local shards with other columns before any is hashed; remote ones when opened."""
    if isinstance(folder, Bucket):
        return
    for entry in entries:
        path = folder / entry["path"]
        # A file that cannot be read is the error of its own opening.
        with contextlib.suppress(OSError), open_untrusted(path, folder=folder) as (file, size):
            if size == entry["bytes"]:
                head = os.pread(file, _SCHEMA_BYTES, 0)
                with as_promised(path):
                    rules.check_schema(pa.ipc.open_stream(head).schema)


@contextlib.contextmanager
def as_promised(path: Place, what: str = "shard") -> Iterator[None]:
    """Bytes that match the lock's hash but are not the file it describes: the lock is wrong."""
    try:
        yield
    except _LIES as error:
        raise broken(path, "corrupt", f"it is not what the lock says: {error}", what) from None


def _require(entry: dict[str, Any], **values: Any) -> None:
    for name, found in values.items():
        if found != entry[name]:
            raise ValueError(f"{name} is {found}, the lock says {entry[name]}")


def shard_rules(lock: Lock, config: str) -> Rules:
    """The rules for rows of a config; a lock that contradicts the catalogue is corrupt."""
    try:
        return rules_of(lock, config)
    except ValueError as error:
        why = f"the lock of {lock.name} is wrong: {error}"
        fix = "restore it, or run the build again"
        raise CorruptionError(why, kind="lock-corrupt", fix=fix) from None


def map_checked(folder: Place, entry: dict[str, Any], what: str = "shard") -> pa.Buffer:
    """The bytes of a shard or side file, memory-mapped and equal to what the lock says."""
    path = folder / entry["path"]
    if isinstance(path, Bucket):
        return _fetched(path, entry, what)
    assert isinstance(folder, Path)  # a bucket has buckets in it
    try:
        buffer = pa.py_buffer(map_untrusted(path, folder=folder))
    except (FileNotFoundError, NotADirectoryError):
        raise broken(path, "missing", "it is not there", what) from None
    except OSError as error:
        raise broken(path, "unreadable", str(error.strerror), what) from None
    _require_bytes(path, buffer, entry, what)
    return buffer


def _fetched(path: Bucket, entry: dict[str, Any], what: str) -> pa.Buffer:
    """An object's bytes; through this machine's cache of verified files where that is allowed."""
    kept = cache_folder() / entry["sha256"]
    here = {**entry, "path": kept.name}
    if path.cached and kept.is_file():
        try:
            return map_checked(kept.parent, here, what)
        except CorruptionError:
            kept.unlink(missing_ok=True)
    try:
        data = path.read()
    except FileNotFoundError:
        raise broken(path, "missing", "it is not there", what) from None
    _require_bytes(path, data, entry, what)
    if not path.cached:
        return pa.py_buffer(data)
    write_atomic(kept, data)
    return map_checked(kept.parent, here, what)


def cache_folder() -> Path:
    """Where verified files of remote datasets are kept, under their sha256."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "tangobench" / "shards"


def _require_bytes(path: Place, data: Any, entry: dict[str, Any], what: str) -> None:
    found, wanted = memoryview(data).nbytes, entry["bytes"]
    if found != wanted:
        how = "truncated" if found < wanted else "corrupt"
        raise broken(path, how, f"it has {found:,} bytes instead of {wanted:,}", what)
    digest = sha256_bytes(data)
    if digest != entry["sha256"]:
        why = f"sha256 {digest[:16]}…, expected {entry['sha256'][:16]}…"
        raise broken(path, "corrupt", why, what)


def broken(path: Place, how: str, why: str, what: str = "shard") -> CorruptionError:
    fix = "run the same build again: it restores what is damaged"
    why = f"{what} {path} is {how}: {why}"
    return CorruptionError(why, kind=f"{what}-{how}", fix=fix, path=str(path))


_THREADS: Final = 4


def verify(folder: Place) -> Lock:
    """Check every byte of a dataset folder against its lock; the first fault is an error."""
    lock = read_lock(folder)
    entries = lock.shards + lock.side_files
    extra = list(extra_files(folder, {entry["path"] for entry in entries}))
    in_threads(lambda entry: _verify_shard(folder, entry, lock, extra), lock.shards)
    for entry in lock.side_files:
        SideTable(folder, entry, lock.name).check_rows()
    for path in extra:
        kind = "shard" if path.name.endswith(".arrow") else "file"
        raise broken(path, "extra", "the lock does not know it", kind)
    locks.require_committed_content(lock, str(folder))
    return lock


def _verify_shard(folder: Place, entry: dict[str, Any], lock: Lock, extra: list[Place]) -> None:
    path = folder / entry["path"]
    try:
        Shard(folder, entry, shard_rules(lock, entry["config"])).check_rows()
    except CorruptionError as error:
        found = "" if error.kind == "shard-unreadable" else _sha256_at(path)
        for other in lock.shards:
            if other["sha256"] == found and found != entry["sha256"]:
                raise broken(path, "swapped", f"it holds {other['path']}") from None
        for other_path in extra:
            if found is None and holds(other_path, entry):
                raise broken(path, "renamed", f"{other_path.name} holds its bytes") from None
        raise


def extra_files(folder: Place, known: set[str]) -> Iterator[Place]:
    """Files in the folder that are not known by their relative path."""
    known = known | {LOCK_NAME, locks.RUN_NAME}
    if isinstance(folder, Bucket):
        yield from (folder / name for name in folder.files() if name not in known)
        return
    for path in sorted(folder.rglob("*")):
        is_file = path.is_symlink() or not path.is_dir()
        if is_file and path.relative_to(folder).as_posix() not in known:
            yield path


def holds(path: Place, entry: dict[str, Any]) -> bool:
    try:
        size = path.stat()[0] if isinstance(path, Bucket) else path.lstat().st_size
    except OSError:
        return False
    return bool(size == entry["bytes"]) and _sha256_at(path) == entry["sha256"]


def _sha256_at(path: Place) -> str | None:
    """sha256 of the file, None if there is none; a link is none."""
    try:
        return sha256_bytes(path.read() if isinstance(path, Bucket) else map_untrusted(path))
    except OSError:
        return None


def in_threads(act: Callable[[Any], None], items: Iterable[Any]) -> None:
    """Act on each, a few at a time: hashing and waiting for the disk overlap."""
    with ThreadPoolExecutor(_THREADS) as pool:
        collections.deque(pool.map(act, items), maxlen=0)  # an error cancels what has not begun
