"""Named arrays as one object of the unit store, read back without copying.

- Layout: length of the header (8 bytes), header as JSON, arrays one after the other, each at a
  multiple of 8 bytes.
- Texts are stored as their UTF-8 bytes and offsets.

Usage: `data = pack({"tokens": tokens})`, `unpack(store.read(address))["tokens"]`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

NDArray = np.ndarray[Any, Any]


def pack(arrays: Mapping[str, NDArray]) -> bytes:
    """One-dimensional arrays as bytes."""
    entries, parts, position = [], [], 0
    for name, array in arrays.items():
        data = np.ascontiguousarray(array).tobytes()
        entries.append([name, array.dtype.str, position, len(array)])
        padded = data + bytes(-len(data) % 8)
        parts.append(padded)
        position += len(padded)
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    return b"".join((len(header).to_bytes(8, "little"), header, *parts))


def unpack(data: Any) -> dict[str, NDArray]:
    """Views of the arrays in a buffer."""
    view = memoryview(data)
    start = 8 + int.from_bytes(view[:8], "little")
    return {
        name: np.frombuffer(view, np.dtype(kind), count, start + position)
        for name, kind, position, count in json.loads(bytes(view[8:start]))
    }


def pack_texts(name: str, texts: Sequence[str]) -> dict[str, NDArray]:
    """Texts as two arrays."""
    encoded = [text.encode() for text in texts]
    return {
        name: np.frombuffer(b"".join(encoded), np.uint8),
        f"{name}_offsets": offsets_of([len(text) for text in encoded]),
    }


def unpack_texts(arrays: Mapping[str, NDArray], name: str) -> list[str]:
    """The texts that `pack_texts` stored."""
    data = arrays[name].tobytes()
    bounds = arrays[f"{name}_offsets"].tolist()
    return [data[a:b].decode() for a, b in pairwise(bounds)]


def offsets_of(lengths: Sequence[int] | NDArray) -> NDArray:
    """Running sums of lengths, from 0."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
