"""Digests of files, JSON values and table rows: the only place that decides what a hash covers.

- `RowsHasher` hashes the logical content of rows: neither the container (stream, file, Parquet),
  nor chunking, nor batch size, nor offsets reach the digest.
- A sealed object (a lock, checkpoint, result, unit record or log line) is JSON with a checksum of
  itself. It has one spelling per form, so a changed byte that changes no value is refused too.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

_PIECE: Final = 1 << 21  # of a sink: stays in the cache from being filled to being written
_LARGE: Final = 1 << 18  # what is not gathered: a copy of it costs more than a call


def canonical_json(value: Any, *, errors: str = "strict") -> bytes:
    """The one byte sequence of a JSON value; `errors` is for text that is no Unicode."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode(errors=errors)


def digest(value: Any, *, errors: str = "strict") -> str:
    return hashlib.sha256(canonical_json(value, errors=errors)).hexdigest()


def sha256_bytes(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Sink:
    """Bytes on their way to `send`, hashed and counted; a file, as far as Arrow is concerned."""

    closed: Final = False

    def __init__(self, send: Callable[[memoryview], None]) -> None:
        self._send = send
        self._hasher = hashlib.sha256()
        self._buffer = memoryview(bytearray(_PIECE))
        self._held = 0
        self.size = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._held + len(view) > _PIECE or len(view) > _LARGE:
            self.flush()
        if len(view) > _LARGE:
            self._pass(view)
        else:
            self._buffer[self._held : self._held + len(view)] = view
            self._held += len(view)
        self.size += len(view)
        return len(view)

    def flush(self) -> None:
        if self._held:
            self._pass(self._buffer[: self._held])
            self._held = 0

    def _pass(self, view: memoryview) -> None:
        self._hasher.update(view)
        self._send(view)

    def tell(self) -> int:
        return self.size

    def close(self) -> None:
        """Does nothing: Arrow closes its files, and this one is still needed."""

    def hexdigest(self) -> str:
        """sha256 (hex) of all bytes, which are sent first."""
        self.flush()
        return self._hasher.hexdigest()


class RowsHasher:
    """Hashes rows batch by batch; equal rows in equal order give an equal digest."""

    def __init__(self) -> None:
        self._types: dict[str, str] = {}
        self._parts: dict[str, Any] = {}
        self._seen: dict[str, int] = {}
        self.rows = 0

    def update(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Add the rows of a batch or table, after those already added."""
        self.rows += batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            kind = _logical_type(column.type)
            if self._types.setdefault(name, kind) != kind:
                raise TypeError(f"column {name!r}: {self._types[name]} before, {kind} now")
            self._update(name, column.chunks if isinstance(column, pa.ChunkedArray) else [column])

    def hexdigest(self) -> str:
        """Digest of all rows so far: column names in order, logical types, lengths and values."""
        parts = {name: part.hexdigest() for name, part in self._parts.items()}
        return digest({"rows": self.rows, "types": list(self._types.items()), "parts": parts})

    def _part(self, name: str) -> Any:
        return self._parts.setdefault(name, hashlib.sha256())

    def _update(self, path: str, chunks: Sequence[pa.Array]) -> None:
        for chunk in chunks:
            before = self._seen.get(path, 0)
            self._seen[path] = before + len(chunk)
            if chunk.null_count:
                nulls = np.flatnonzero(chunk.is_null().to_numpy(zero_copy_only=False))
                self._part(f"{path}/nulls").update((nulls + before).astype("<i8"))
        if not chunks:
            return
        kind = _logical_type(chunks[0].type)
        if kind.startswith("list<"):
            lengths = [list_lengths(chunk) for chunk in chunks]
            self._part(f"{path}/lengths").update(np.concatenate(lengths).astype("<i8"))
            self._update(f"{path}/items", [list_items(chunk) for chunk in chunks])
        elif kind == "string":
            for raw, offsets in map(utf8_and_offsets, chunks):
                self._part(f"{path}/lengths").update(np.diff(offsets).astype("<i8"))
                self._part(f"{path}/values").update(raw)
        else:
            values = self._part(f"{path}/values")
            for chunk in chunks:
                values.update(_little_endian(chunk))


def _little_endian(array: pa.Array) -> np.ndarray[Any, Any]:
    """The values of a plain array; a null is zero."""
    boolean = pa.types.is_boolean(array.type)
    dense = array.fill_null(False if boolean else 0) if array.null_count else array
    dtype = np.dtype(np.uint8 if boolean else array.type.to_pandas_dtype()).newbyteorder("<")
    return np.ascontiguousarray(dense.to_numpy(zero_copy_only=False), dtype)


def list_lengths(array: pa.Array) -> np.ndarray[Any, Any]:
    """How many items each list has; a null has none."""
    if array.null_count:
        return array.value_lengths().fill_null(0).to_numpy()  # type: ignore[no-any-return]
    if pa.types.is_fixed_size_list(array.type):
        return np.full(len(array), array.type.list_size, np.int64)
    return np.diff(array.offsets.to_numpy())


def list_items(array: pa.Array) -> pa.Array:
    """The items of all lists; without nulls no compute kernel, whose import takes 0.06 s."""
    if array.null_count:
        return array.flatten()
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        return array.values.slice(array.offset * size, len(array) * size)
    first, last = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
    return array.values.slice(first, last - first)


def utf8_and_offsets(texts: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The bytes of texts, without copying, and where each begins; a null is empty."""
    texts = texts.fill_null("") if texts.null_count else texts
    if pa.types.is_string_view(texts.type):
        texts = texts.cast(pa.large_string())
    width = np.int32 if pa.types.is_string(texts.type) else np.int64
    _, bounds, values = texts.buffers()
    offsets = np.zeros(1, np.int64)
    if len(texts):
        held = np.frombuffer(bounds, width)[texts.offset : texts.offset + len(texts) + 1]
        offsets = held.astype(np.int64, copy=False)
    raw = np.frombuffer(b"" if values is None else values, np.uint8)
    return raw[offsets[0] : offsets[-1]], offsets - offsets[0]


def rows_sha256(batches: pa.Table | Iterable[pa.RecordBatch]) -> str:
    """Digest of the logical content of a table, or of batches in order."""
    hasher = RowsHasher()
    for batch in [batches] if isinstance(batches, pa.Table) else batches:
        hasher.update(batch)
    return hasher.hexdigest()


@functools.lru_cache(maxsize=64)  # a tenth of the time of hashing small batches
def _logical_type(kind: pa.DataType) -> str:
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{_logical_type(kind.value_type)}>"
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "string"
    return str(kind)


class Broken(ValueError):
    """Bytes that are not a sealed object."""


@dataclass(frozen=True, slots=True)
class Form:
    """How an object is spelt, and how many hex digits its checksum has."""

    spell: Callable[[dict[str, Any]], bytes]
    digits: int = 64


def pretty_json(value: Any, indent: str = "") -> str:
    """Readable, diffable JSON: sorted keys, one per line, lists of scalars on one line."""
    deeper = indent + " "
    if isinstance(value, dict) and value:
        items = [
            f"{deeper}{json.dumps(key, ensure_ascii=False)}: {pretty_json(value[key], deeper)}"
            for key in sorted(value)
        ]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        items = [deeper + pretty_json(item, deeper) for item in value]
        return "[\n" + ",\n".join(items) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)


def case_json(report: dict[str, Any]) -> str:
    """A report of measurements, one line per case: items of each top-level value on own lines."""

    line = functools.partial(json.dumps, ensure_ascii=False)
    parts = []
    for key, value in report.items():
        text = line(value)
        if isinstance(value, list) and value:
            text = "[\n  " + ",\n  ".join(map(line, value)) + "\n ]"
        elif isinstance(value, dict) and value:
            cases = (f"{line(k)}: {line(v)}" for k, v in value.items())
            text = "{\n  " + ",\n  ".join(cases) + "\n }"
        parts.append(f"{line(key)}: {text}")
    return "{\n " + ",\n ".join(parts) + "\n}\n"


DOCUMENT: Final = Form(lambda value: f"{pretty_json(value)}\n".encode())
LINE: Final = Form(lambda value: json.dumps(value, allow_nan=False).encode() + b"\n", digits=16)
RECORD: Final = Form(canonical_json)
CASES: Final = Form(lambda value: case_json(value).encode())


def seal(body: dict[str, Any], form: Form = DOCUMENT) -> bytes:
    return form.spell({**body, "checksum": checksum(body, form)})


def checksum(body: dict[str, Any], form: Form = DOCUMENT) -> str:
    # Lines may hold generated text, whose bytes need not be UTF-8: lone surrogates.
    return digest(body, errors="surrogatepass" if form is LINE else "strict")[: form.digits]


def unseal(raw: bytes, form: Form = DOCUMENT) -> dict[str, Any]:
    """The object without its checksum; `Broken` if a byte of it was changed."""
    try:
        body = json.loads(raw)
        if not isinstance(body, dict) or not isinstance(body.get("checksum"), str):
            raise Broken("it is no JSON object with a checksum")
        stored = body.pop("checksum")
        found = checksum(body, form)
        if not hmac.compare_digest(stored.encode(), found.encode()):
            raise Broken(f"its checksum is {stored[:16]}…, its content has {found[:16]}…")
        if seal(body, form) != raw:
            raise Broken("its values are right but not its bytes")
    except RecursionError:
        raise Broken("it is nested too deeply") from None
    except Broken:
        raise
    except (ValueError, TypeError):
        raise Broken("it is not JSON, or holds values that JSON does not have") from None
    return body
