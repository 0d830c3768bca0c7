"""Shards: Arrow IPC streams whose bytes depend on their rows alone.

- Uncompressed stream format, no schema metadata, fixed batch rows, no validity bitmaps, and fresh
  arrays only: equal tables that were sliced or chunked differently would give unequal bytes.
- `batch_offsets` make every record batch reachable in a memory-mapped file without reading others.
- Arrow does not notice a flipped bit, so a shard's sha256 is checked whenever a process opens it.

Usage: `info = write({"tokens": lists(values, offsets)}, sink, batch_rows=256)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tangobench.pipeline.core.hashing import RowsHasher, Sink

NDArray = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column that can give any range of its rows as a fresh array; `bytes` holds all of them."""

    rows: int
    type: pa.DataType
    part: Callable[[int, int], pa.Array]
    bytes: int


def fixed(values: NDArray) -> Column:
    """Rows of equal length from a two-dimensional array."""
    count, width = values.shape
    return gathered(count, width, values.dtype, lambda a, b: np.array(values[a:b]).reshape(-1))


def gathered(rows: int, width: int, dtype: Any, part: Callable[[int, int], NDArray]) -> Column:
    """Rows of equal length that are fetched when they are written, never all at once.

    `part` gives a range of them as one flat, fresh array.
    """
    kind = pa.list_(pa.from_numpy_dtype(dtype), width)

    def array(start: int, stop: int) -> pa.Array:
        return pa.FixedSizeListArray.from_arrays(pa.array(part(start, stop)), type=kind)

    return Column(rows, kind, array, rows * width * np.dtype(dtype).itemsize)


def lists(values: NDArray, offsets: NDArray) -> Column:
    """Rows of any length: row i is `values[offsets[i]:offsets[i + 1]]`."""
    kind = pa.list_(pa.from_numpy_dtype(values.dtype))

    def part(start: int, stop: int) -> pa.Array:
        bounds = np.asarray(offsets[start : stop + 1], np.int64)
        flat = pa.array(np.array(values[bounds[0] : bounds[-1]]))
        return pa.ListArray.from_arrays(
            pa.array((bounds - bounds[0]).astype(np.int32)), flat, type=kind
        )

    size = int(offsets[-1] - offsets[0]) * values.itemsize + 4 * len(offsets)
    return Column(len(offsets) - 1, kind, part, size)


def scalars(values: NDArray) -> Column:
    """One number per row."""
    kind = pa.from_numpy_dtype(values.dtype)
    return Column(len(values), kind, lambda a, b: pa.array(np.array(values[a:b])), values.nbytes)


def strings(values: Sequence[str]) -> Column:
    """One text per row."""
    size = sum(len(value.encode()) for value in values) + 4 * (len(values) + 1)
    return Column(len(values), pa.string(), lambda a, b: pa.array(values[a:b], pa.string()), size)


def shard_name(split: str, index: int, total: int) -> str:
    """File name of a shard, zero-padded so that listings sort."""
    return f"{split}-{index:05d}-of-{total:05d}.arrow"


def write(columns: dict[str, Column], sink: Sink, *, batch_rows: int) -> dict[str, Any]:
    """Write a shard, the first thing in its sink; returns what the lock records of it."""
    schema = pa.schema([pa.field(name, column.type) for name, column in columns.items()])
    rows = {column.rows for column in columns.values()}
    if len(rows) != 1:
        raise ValueError(f"columns of unequal length: { {n: c.rows for n, c in columns.items()} }")
    hasher = RowsHasher()
    offsets: list[int] = []
    tokens = 0
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), schema) as writer:
        for start, stop in _ranges(rows.pop(), batch_rows):
            arrays = [column.part(start, stop) for column in columns.values()]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            # The writer puts the schema before the first batch, not when it is opened.
            offsets.append(sink.size or schema.serialize().size)
            writer.write_batch(batch)
            hasher.update(batch)
            if "tokens" in columns:
                tokens += len(batch.column("tokens").flatten())
    return {
        "rows": next(iter(columns.values())).rows,
        "tokens": tokens,
        "bytes": sink.size,
        "sha256": sink.hexdigest(),
        "rows_sha256": hasher.hexdigest(),
        "batch_rows": batch_rows,
        "batch_offsets": offsets,
    }


def encode(columns: dict[str, Column], *, batch_rows: int) -> tuple[pa.Buffer, dict[str, Any]]:
    """A shard's bytes in memory and what the lock records of them."""
    pieces: list[bytes] = []
    info = write(columns, Sink(lambda view: pieces.append(bytes(view))), batch_rows=batch_rows)
    return pa.py_buffer(b"".join(pieces)), info


def room(columns: dict[str, Column], *, batch_rows: int) -> int:
    """More bytes than the shard will have."""
    batches = -(-next(iter(columns.values())).rows // batch_rows) + 2
    return sum(column.bytes for column in columns.values()) + batches * len(columns) * 2048


def _ranges(total: int, step: int) -> Iterator[tuple[int, int]]:
    for start in range(0, total, step):
        yield start, min(start + step, total)
