"""Arrays as bytes: packed for later stages of a build, or as the rows of a shard.

- One container holds what units of all datasets hand on. Layout: length of the header (8 bytes),
  header as JSON, arrays one after the other, each at a multiple of 8 bytes. Reading copies nothing.
- Texts (an Arrow array) are stored as their UTF-8 bytes and offsets; structured rows keep fields.
- An object may hold several such containers, its sections, so that a later stage reads its own
  part of every object with one range read each.
- A shard is an Arrow IPC stream whose bytes depend on its rows alone: uncompressed, no schema
  metadata, fixed batch rows, no validity bitmaps, and fresh arrays only, because equal tables that
  were sliced or chunked differently would give unequal bytes.
- `Rules` are for bytes that already match their hash: columns of the catalogue, no nulls, and
  values in their ranges. A fault is a `ValueError` that names the column.

Usage: `data = pack({"tokens": tokens})`, `unpack(store.read(address))["tokens"]`;
`data, bounds = pack_sections(parts)`, `read(Section(address, bounds[2], size), store)`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias, TypedDict

import numpy as np
import pyarrow as pa

from tangobench.catalogue import CATALOGUE
from tangobench.pipeline.core.hashing import (
    RowsHasher,
    Sink,
    list_items,
    list_lengths,
    utf8_and_offsets,
)
from tangobench.pipeline.core.store import Record, Store

NDArray = np.ndarray[Any, Any]
Packable: TypeAlias = NDArray | pa.Array


def pack(columns: Mapping[str, Packable]) -> bytes:
    arrays: dict[str, NDArray] = {}
    for name, column in columns.items():
        arrays |= {name: column} if isinstance(column, np.ndarray) else pack_texts(name, column)
    parts = [header([(name, array.dtype, len(array)) for name, array in arrays.items()])]
    for array in arrays.values():
        data = np.ascontiguousarray(array).tobytes()
        parts += [data, padding(len(data))]
    return b"".join(parts)


def header(entries: Iterable[tuple[str, Any, int]]) -> bytes:
    """What comes before the arrays (name, type, length), for those who write them in pieces."""
    places, position = [], 0
    for name, kind, count in entries:
        dtype = np.dtype(kind)
        places.append([name, dtype.descr if dtype.names else dtype.str, position, count])
        size = dtype.itemsize * count
        position += size + len(padding(size))
    text = json.dumps(places).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def padding(size: int) -> bytes:
    return bytes(-size % 8)


def unpack(data: Any) -> dict[str, NDArray]:
    view = memoryview(data)
    start = 8 + int.from_bytes(view[:8], "little")
    found = {}
    for name, kind, position, count in json.loads(bytes(view[8:start])):
        dtype = np.dtype(kind if isinstance(kind, str) else [tuple(field) for field in kind])
        found[name] = np.frombuffer(view, dtype, count, start + position)
    return found


class Sections(TypedDict):
    """The result of a unit whose object has sections: where each begins, and the end."""

    bounds: list[int]


class Section(NamedTuple):
    """Packed arrays inside an object: `length` bytes from `start`. As JSON it is a list."""

    address: str
    start: int
    length: int

    @classmethod
    def of(cls, record: Record[Sections], number: int, count: int = 1) -> Section:
        """Section `number` of an object, or `count` sections from there on."""
        bounds = record.result["bounds"]
        return cls(record.address, bounds[number], bounds[number + count] - bounds[number])


def pack_sections(sections: Iterable[Mapping[str, Packable]]) -> tuple[bytes, list[int]]:
    """Several containers as one object, and where each begins; the last bound is the end."""
    packed = [pack(section) for section in sections]
    return b"".join(packed), [0, *np.cumsum([len(data) for data in packed]).tolist()]


def pack_ranges(columns: Mapping[str, Packable], cuts: Iterable[int]) -> tuple[bytes, list[int]]:
    """A section per range of rows; `cuts` are where they begin, and the end."""
    return pack_sections(
        {name: column[low:high] for name, column in columns.items()} for low, high in pairwise(cuts)
    )


def read(section: Section, store: Store) -> dict[str, NDArray]:
    return unpack(store.read(*section))


def pack_texts(name: str, texts: Sequence[str] | pa.Array) -> dict[str, NDArray]:
    """Texts as two arrays, their UTF-8 bytes and offsets; a null becomes an empty text."""
    if not isinstance(texts, pa.Array):
        texts = pa.array(texts, pa.large_string())
    raw, offsets = utf8_and_offsets(texts)
    return {name: raw, f"{name}_offsets": offsets}


def unpack_texts(arrays: Mapping[str, NDArray], name: str) -> list[str]:
    found: list[str] = arrow_texts(arrays, name).to_pylist()
    return found


def arrow_texts(arrays: Mapping[str, NDArray], name: str) -> pa.Array:
    """The texts that `pack_texts` stored, as Arrow's large strings, without copying."""
    offsets = arrays[f"{name}_offsets"]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(arrays[name])]
    return pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)


def offsets_of(lengths: Sequence[int] | NDArray) -> NDArray:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


_TOKENS: Final = (pa.uint8(), pa.uint16(), pa.uint32())
_INTEGERS: Final = [getattr(pa, f"{u}int{n}")() for u in ("u", "") for n in (8, 16, 32, 64)]
_PLAIN: Final = {str(kind): kind for kind in (*_INTEGERS, pa.bool_(), pa.string())}
_TYPES: Final = {**_PLAIN, **{f"list<{name}>": pa.list_(kind) for name, kind in _PLAIN.items()}}


@dataclass(frozen=True, slots=True)
class Column:
    """A column that can give any range of its rows as a fresh array; `bytes` is the size of all."""

    rows: int
    type: pa.DataType
    part: Callable[[int, int], pa.Array]
    bytes: int


def fixed(values: NDArray) -> Column:
    rows, width = values.shape
    return gathered(rows, width, values.dtype, lambda a, b: np.array(values[a:b]).reshape(-1))


def gathered(rows: int, width: int, dtype: Any, part: Callable[[int, int], NDArray]) -> Column:
    """Rows of equal length, fetched when they are written; `part` gives a range, flat and fresh."""
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
    kind = pa.from_numpy_dtype(values.dtype)
    return Column(len(values), kind, lambda a, b: pa.array(np.array(values[a:b])), values.nbytes)


def strings(values: Sequence[str]) -> Column:
    size = len("".join(values).encode()) + 4 * (len(values) + 1)
    return Column(len(values), pa.string(), lambda a, b: pa.array(values[a:b], pa.string()), size)


def shard_name(split: str, index: int, total: int) -> str:
    """File name of a shard, zero-padded so that listings sort."""
    return f"{split}-{index:05d}-of-{total:05d}.arrow"


class ShardInfo(TypedDict):
    """What the lock records of a shard."""

    rows: int
    tokens: int
    bytes: int
    sha256: str
    rows_sha256: str
    batch_rows: int
    batch_offsets: list[int]


def write_shard(columns: dict[str, Column], sink: Sink, *, batch_rows: int) -> ShardInfo:
    """Write a shard, the first thing in its sink; returns what the lock records of it."""
    schema = pa.schema([pa.field(name, column.type) for name, column in columns.items()])
    count, *others = {column.rows for column in columns.values()}
    if others:
        raise ValueError(f"columns of unequal length: { {n: c.rows for n, c in columns.items()} }")
    hasher, tokens = RowsHasher(), 0
    offsets: list[int] = []
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), schema) as writer:
        for start in range(0, count, batch_rows):
            stop = min(start + batch_rows, count)
            arrays = [column.part(start, stop) for column in columns.values()]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            # The writer puts the schema before the first batch, not when it is opened.
            offsets.append(sink.size or schema.serialize().size)
            writer.write_batch(batch)
            hasher.update(batch)
            if "tokens" in columns:
                tokens += len(list_items(batch.column("tokens")))
    return {
        "rows": count,
        "tokens": tokens,
        "bytes": sink.size,
        "sha256": sink.hexdigest(),
        "rows_sha256": hasher.hexdigest(),
        "batch_rows": batch_rows,
        "batch_offsets": offsets,
    }


def encode_shard(columns: dict[str, Column], *, batch_rows: int) -> tuple[pa.Buffer, ShardInfo]:
    pieces: list[bytes] = []
    info = write_shard(
        columns, Sink(lambda view: pieces.append(bytes(view))), batch_rows=batch_rows
    )
    return pa.py_buffer(b"".join(pieces)), info


def shard_size(columns: dict[str, Column], *, batch_rows: int) -> int:
    """More bytes than the shard will have."""
    batches = -(-next(iter(columns.values())).rows // batch_rows) + 2
    return sum(column.bytes for column in columns.values()) + batches * len(columns) * 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What a config's rows must be."""

    columns: Mapping[str, str] | None
    """Column to type, in order; None for a dataset that the catalogue does not know."""
    context: int
    vocabulary: int
    combinations: int

    def check_schema(self, schema: pa.Schema) -> None:
        if schema.metadata or any(field.metadata for field in schema):
            raise ValueError("its schema carries metadata")
        if self.columns is not None and schema.names != list(self.columns):
            raise ValueError(f"its columns are {schema.names}, expected {list(self.columns)}")
        if "tokens" not in schema.names or len(set(schema.names)) != len(schema.names):
            raise ValueError(f"its columns are {schema.names}, one of them must be 'tokens'")
        for field in schema:
            wanted = (self.columns or {}).get(field.name)
            if field.name == "tokens":
                self._check_tokens(field.type, wanted)
            elif field.type not in ([_TYPES[wanted]] if wanted else _TYPES.values()):
                raise ValueError(f"its column {field.name!r} is {field.type}, expected {wanted}")

    def _check_tokens(self, kind: pa.DataType, wanted: str | None) -> None:
        fixed = pa.types.is_fixed_size_list(kind)
        is_list = fixed or pa.types.is_list(kind)
        if not is_list or kind.value_type not in _TOKENS or wanted == ("list" if fixed else "rows"):
            raise ValueError(f"its column 'tokens' is {kind}, not a list of token ids")
        if fixed and kind.list_size != self.context:
            raise ValueError(f"its column 'tokens' is {kind}, the context is {self.context}")

    def check(self, rows: pa.Table) -> None:
        """All rows at once: column by column costs a tenth of batch by batch."""
        if not rows.num_rows:
            return
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        for name, column in columns.items():
            inner = [chunk.values for chunk in column.chunks if hasattr(chunk, "values")]
            if column.null_count or any(chunk.null_count for chunk in inner):
                raise ValueError(f"its column {name!r} has nulls")
        tokens = columns["tokens"].chunks
        lengths = np.concatenate([list_lengths(chunk) for chunk in tokens])
        _require("tokens", "a length", lengths, 1, self.context)
        for chunk in tokens:
            _require("tokens", "an id", list_items(chunk).to_numpy(), 0, self.vocabulary - 1)
        if "target_start" in columns:
            first = columns["target_start"].to_numpy()
            _require("target_start", "a value", first, 1, self.context)
            if len(late := np.flatnonzero(first >= lengths)):
                where = f"is {first[late[0]]} in a row of {lengths[late[0]]} tokens"
                raise ValueError(f"its column 'target_start' {where}")
        if "combination" in columns and self.combinations:
            found = columns["combination"].to_numpy()
            _require("combination", "a value", found, 0, self.combinations - 1)
        if "doc_start" in columns:
            spans = ("doc_index", "doc_start", "doc_offset")
            _check_spans({n: columns[n].combine_chunks() for n in spans if n in columns}, lengths)


def rules_of(lock: Any, config: str) -> Rules:
    """The rules for a config of a lock; refuses configs that the dataset does not have."""
    known, conventions = CATALOGUE.get(lock.name), lock.configs[config]
    columns = known.columns if known else {}
    if columns and config not in columns:
        raise ValueError(f"config {config!r} is none of {', '.join(columns)}")
    names = lock.notes.get("combinations", [])
    if "combination" in columns.get(config, ()) and not names:
        raise ValueError("the lock's notes have no 'combinations', which rows refer to")
    return Rules(
        columns=columns.get(config),
        context=conventions["context"],
        vocabulary=conventions["vocabulary"],
        combinations=len(names),
    )


def check_table(name: str, kind: str, schema: pa.Schema) -> None:
    """Refuse a side table whose columns are not those of its kind."""
    known = CATALOGUE[name].tables if name in CATALOGUE else {}
    if name in CATALOGUE and kind not in known:
        raise ValueError(f"{name} has no table of kind {kind!r}")
    wide = pa.types.is_large_string
    found = {field.name: "string" if wide(field.type) else str(field.type) for field in schema}
    if known and found != dict(known[kind]):
        raise ValueError(f"its columns are {found}, expected {dict(known[kind])}")


def _require(name: str, what: str, values: NDArray, low: int, high: int) -> None:
    if not len(values):
        return
    least, most = int(values.min()) if low else 0, int(values.max())
    if least < low or most > high:
        wrong = least if least < low else most
        raise ValueError(f"its column {name!r} has {what} of {wrong}, expected {low} to {high}")


def _check_spans(columns: dict[str, pa.Array], lengths: NDArray) -> None:
    """Every row begins with a span, and each span begins after the one before, inside the row."""
    bounds = columns["doc_start"].offsets.to_numpy()
    for name in ("doc_index", "doc_offset"):
        if name not in columns or not np.array_equal(list_lengths(columns[name]), np.diff(bounds)):
            raise ValueError(f"its column {name!r} has not one value for each of 'doc_start'")
    _require("doc_start", "a number of spans", np.diff(bounds), 1, int(lengths.max()))
    starts = list_items(columns["doc_start"]).to_numpy().astype(np.int64)
    heads = np.zeros(len(starts), np.bool_)
    heads[bounds[:-1] - bounds[0]] = True
    inside = np.append(True, np.diff(starts) > 0) | heads
    if starts[heads].any() or not inside.all() or starts.max() >= lengths.max():
        raise ValueError("its column 'doc_start' does not increase from 0 inside a row")
