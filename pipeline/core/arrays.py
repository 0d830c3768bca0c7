"""Named arrays: the one container for what units of all datasets hand to later stages.

- Layout: length of the header (8 bytes), header as JSON, arrays one after the other, each at a
  multiple of 8 bytes. Reading copies nothing.
- Texts (an Arrow array) are stored as their UTF-8 bytes and offsets; structured rows keep fields.
- An object may hold several such containers, its sections, so that a later stage reads its own
  part of every object with one range read each.

Usage: `data = pack({"tokens": tokens})`, `unpack(store.read(address))["tokens"]`;
`data, bounds = pack_sections(parts)`, `read(Section(address, bounds[2], size), store)`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, TypedDict

import numpy as np
import pyarrow as pa

from tangobench.pipeline.core.hashing import utf8_and_offsets
from tangobench.pipeline.core.store import Record, Store

NDArray = np.ndarray[Any, Any]
Column: TypeAlias = NDArray | pa.Array


def pack(columns: Mapping[str, Column]) -> bytes:
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


def pack_sections(sections: Iterable[Mapping[str, Column]]) -> tuple[bytes, list[int]]:
    """Several containers as one object, and where each begins; the last bound is the end."""
    packed = [pack(section) for section in sections]
    return b"".join(packed), [0, *np.cumsum([len(data) for data in packed]).tolist()]


def pack_ranges(columns: Mapping[str, Column], cuts: Iterable[int]) -> tuple[bytes, list[int]]:
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
