"""Reading a dataset folder: any row of any split, from memory-mapped and checked shards.

- Nothing is read before the lock is valid; a shard is hashed whole when a process first opens it
  (about 1 GB/s), in a thread ahead of the reader where there is one, and refused on any difference.
- Verdicts are not remembered between processes: a cache by size and mtime would pass a flipped bit
  that keeps both.

Usage: `rows = open_dataset(folder).rows("default", "train"); rows.tokens(7)`.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import hashlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tangobench.errors import CorruptionError, UsageError
from tangobench.pipeline.hashing import RowsHasher
from tangobench.pipeline.manifest import Lock, read_lock

NDArray = np.ndarray[Any, Any]

# What Arrow and numpy raise when bytes are no shard.
_LIES: Final = (
    *(pa.ArrowException, OSError, EOFError),
    *(ValueError, TypeError, LookupError, ArithmeticError),
)


class TokenPlaces(NamedTuple):
    """A shard's bytes as tokens, and where in them each row is."""

    flat: NDArray
    starts: NDArray
    lengths: NDArray


class Shard:
    """One open, verified, memory-mapped shard."""

    def __init__(self, folder: Path, entry: dict[str, Any]) -> None:
        self.entry = entry
        self._path = folder / entry["path"]
        self._buffer = map_checked(folder, entry)
        with self._as_promised():
            self._schema = pa.ipc.open_stream(self._buffer).schema
            _check_tokens(self._schema)
        self._batches: dict[int, pa.RecordBatch] = {}

    def batch(self, index: int) -> pa.RecordBatch:
        """Record batch `index`, without touching the others."""
        if index not in self._batches:
            with self._as_promised():
                self._batches[index] = self._read(index)
        return self._batches[index]

    def _read(self, index: int) -> pa.RecordBatch:
        start, step = self.entry["batch_offsets"][index], self.entry["batch_rows"]
        message = pa.ipc.read_message(self._buffer.slice(start))
        batch = pa.ipc.read_record_batch(message, self._schema)
        batch.validate(full=True)  # offsets of lists and texts; values are not looked at
        rows = min(step, self.entry["rows"] - index * step)
        if batch.num_rows != rows:
            raise ValueError(f"batch {index} has {batch.num_rows} rows, the lock says {rows}")
        return batch

    def check_rows(self) -> None:
        """Refuse a shard whose rows are not those that the lock counts and hashes."""
        hasher, tokens = RowsHasher(), 0
        with self._as_promised():
            for index in range(len(self.entry["batch_offsets"])):
                batch = self._read(index)
                hasher.update(batch)
                tokens += len(batch.column("tokens").flatten())
            for name, found in (("tokens", tokens), ("rows_sha256", hasher.hexdigest())):
                if found != self.entry[name]:
                    raise ValueError(f"{name} is {found}, the lock says {self.entry[name]}")

    @contextlib.contextmanager
    def _as_promised(self) -> Iterator[None]:
        """A shard with the right hash that is no such shard: the lock itself does not tell true."""
        try:
            yield
        except _LIES as error:
            raise broken(self._path, "corrupt", f"it is not what the lock says: {error}") from None

    def locate(self, row: int) -> tuple[pa.RecordBatch, int]:
        """The batch of a row of this shard and the row's place in it."""
        index, place = divmod(row, self.entry["batch_rows"])
        return self.batch(index), place

    @functools.cached_property
    def token_views(self) -> list[tuple[NDArray, NDArray | int]]:
        """Per batch the flat token values and the row bounds (or the fixed row length)."""
        views: list[tuple[NDArray, NDArray | int]] = []
        for index in range(len(self.entry["batch_offsets"])):
            column = self.batch(index).column("tokens")
            values = column.values.to_numpy(zero_copy_only=True)
            fixed = pa.types.is_fixed_size_list(column.type)
            views.append((values, column.type.list_size if fixed else column.offsets.to_numpy()))
        return views

    @functools.cached_property
    def token_places(self) -> TokenPlaces:
        """Where each row's tokens are: 12 bytes per row, so that a row is one slice of the file."""
        with self._as_promised():
            kind = np.dtype(self.token_views[0][0].dtype if self.token_views else np.uint8)
            flat = np.frombuffer(self._buffer, kind, self._buffer.size // kind.itemsize)
            count, row = self.entry["rows"], 0
            starts, lengths = np.empty(count, np.int64), np.empty(count, np.int32)
            for values, view in self.token_views:
                bounds = np.arange(0, len(values) + 1, view) if isinstance(view, int) else view
                rows = slice(row, row := row + len(bounds) - 1)
                starts[rows] = bounds[:-1] + np.int64(self._first(values))
                lengths[rows] = bounds[1:] - bounds[:-1]
            if row != count:
                raise ValueError(f"it has tokens of {row} rows, the lock says {count}")
        return TokenPlaces(flat, starts, lengths)

    def _first(self, values: NDArray) -> int:
        """Where in the file an array of tokens begins; it must lie there, uncompressed, aligned."""
        if not len(values):
            return 0
        offset = values.ctypes.data - self._buffer.address
        if offset % values.itemsize or not 0 <= offset <= self._buffer.size - values.nbytes:
            raise ValueError("its tokens do not lie in the file as they are")
        return int(offset // values.itemsize)

    def tokens(self, row: int) -> NDArray:
        """The tokens of a row, as a view into the mapped file."""
        flat, starts, lengths = self.token_places
        start = starts[row]
        return flat[start : start + lengths[row]]


class Rows:
    """All rows of one config and split, in order; shards open when first needed."""

    def __init__(self, folder: Path, shards: list[dict[str, Any]]) -> None:
        self._folder = folder
        self._entries = shards
        self._ends = list(itertools.accumulate(shard["rows"] for shard in shards))
        self._open: dict[int, Shard] = {}

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, row: int) -> dict[str, Any]:
        shard, place = self._locate(row)
        batch, inner = shard.locate(place)
        found = {
            name: batch.column(name)[inner].as_py()
            for name in batch.schema.names
            if name != "tokens"
        }
        return {"tokens": shard.tokens(place), **found}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    def tokens(self, row: int) -> NDArray:
        """The tokens of a row, as a view into the mapped file."""
        shard, place = self._locate(row)
        return shard.tokens(place)

    def value(self, row: int, column: str) -> Any:
        """One value of a row."""
        shard, place = self._locate(row)
        batch, inner = shard.locate(place)
        return batch.column(column)[inner].as_py()

    def column(self, name: str) -> NDArray:
        """A whole scalar column as one array."""
        parts = [
            self.shard(index).batch(batch).column(name).to_numpy(zero_copy_only=False)
            for index, entry in enumerate(self._entries)
            for batch in range(len(entry["batch_offsets"]))
        ]
        return np.concatenate(parts) if parts else np.zeros(0)

    def open_all(self) -> None:
        """Verify every shard now."""
        for index in range(len(self._entries)):
            self.shard(index)

    def shard(self, index: int) -> Shard:
        """Shard `index`, verified when first asked for."""
        if index not in self._open:
            self._open[index] = Shard(self._folder, self._entries[index])
        return self._open[index]

    def _locate(self, row: int) -> tuple[Shard, int]:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        index = bisect.bisect_right(self._ends, row)
        return self.shard(index), row - (self._ends[index - 1] if index else 0)


class Dataset:
    """A dataset folder with a valid lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock: Lock = read_lock(folder)

    def rows(self, config: str, split: str) -> Rows:
        """The rows of one config and split."""
        shards = self.lock.shards_of(config, split)
        if not shards:
            have = sorted({f"{s['config']}/{s['split']}" for s in self.lock.shards})
            raise UsageError(
                f"{self.folder} has no {config}/{split}; it has {', '.join(have)}",
                kind="no-such-split",
                fix=f"choose one of {', '.join(have)}",
            )
        return Rows(self.folder, shards)


def open_dataset(folder: Path | str) -> Dataset:
    """A dataset folder, ready to read."""
    return Dataset(Path(folder))


def _check_tokens(schema: pa.Schema) -> None:
    kind = schema.field("tokens").type if "tokens" in schema.names else pa.null()
    lists = pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)
    if not lists or not pa.types.is_unsigned_integer(kind.value_type):
        raise ValueError(f"its column 'tokens' is {kind}, not a list of token ids")


def map_checked(folder: Path, entry: dict[str, Any], what: str = "shard") -> pa.Buffer:
    """The bytes of a shard or side file, memory-mapped and equal to what the lock says."""
    path = folder / entry["path"]
    try:
        found = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise broken(path, "missing", "it is not there", what) from None
    except OSError as error:
        raise broken(path, "unreadable", os.strerror(error.errno or 0), what) from None
    if found < entry["bytes"]:
        raise broken(path, "truncated", f"it has {found:,} bytes of {entry['bytes']:,}", what)
    if found > entry["bytes"]:
        why = f"it has {found:,} bytes instead of {entry['bytes']:,}"
        raise broken(path, "corrupt", why, what)
    if found == 0:
        return pa.py_buffer(b"")
    try:
        with pa.memory_map(os.fsencode(path)) as file:
            buffer = file.read_buffer()
    except OSError as error:
        raise broken(path, "unreadable", str(error), what) from None
    digest = hashlib.sha256(buffer).hexdigest()
    if digest != entry["sha256"]:
        why = f"sha256 {digest[:16]}…, expected {entry['sha256'][:16]}…"
        raise broken(path, "corrupt", why, what)
    return buffer


def broken(path: Path, how: str, why: str, what: str = "shard") -> CorruptionError:
    """The error for a file that is not what the lock says."""
    return CorruptionError(
        f"{what} {path} is {how}: {why}",
        kind=f"{what}-{how}",
        fix="run the same build again: it restores what is damaged",
        path=str(path),
    )
