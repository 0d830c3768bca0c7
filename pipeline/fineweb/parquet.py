"""FineWeb-Edu rows out of Parquet: ranges of row groups in, checked record batches out.

- Only `id dump url text` (and `date` where there is one) are read, a thousand rows at a time, so a
  file that claims little and decodes to much stays within the memory of a batch.
- A unit is a range of row groups. Those with unwanted dumps only are read without text and URL:
  their documents are ignored, but still decided on.
- Whatever is wrong with a file is an `InputError` that names the file, the row group or row, what
  was expected and what was found. Nothing is repaired silently.

Usage: `info = inspect(file)`, then `read(file, [0, 1], ["text"])`.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tangobench.errors import InputError, TangobenchError
from tangobench.pipeline.core.hashing import RowsHasher, digest
from tangobench.pipeline.fineweb.sources import SourceFile, open_input
from tangobench.pipeline.fineweb.spec import dump_order

_REQUIRED: Final = ("id", "dump", "url", "text")
_BATCH: Final = 1024


@dataclass(frozen=True, slots=True)
class RowGroup:
    """What is known of a row group; `outside` if it holds documents of unwanted dumps only.

    `rows_sha256` is known where a file is read in part.
    """

    rows: int
    size: int
    outside: bool
    rows_sha256: str = ""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """An input file that can be read: identity, schema and row groups are known.

    `sha256` is that of its bytes, or of its row groups' hashes where it is read in part.
    """

    name: str
    url: str
    size: int
    sha256: str
    rows: int
    has_date: bool
    groups: tuple[RowGroup, ...]
    patience: float

    def identity(self) -> dict[str, Any]:
        """What the lock says of it."""
        if self.groups and self.groups[0].rows_sha256:
            return {"groups": [{"rows": g.rows, "rows_sha256": g.rows_sha256} for g in self.groups]}
        return {"sha256": self.sha256, "size": self.size, "rows": self.rows}


def inspect(file: SourceFile, *, last_train: int, validation: Sequence[int]) -> FileInfo:
    """Hash a file, unless it is afar and its hub claims a hash, and check its footer."""
    with _opened(file) as handle:
        sha256, size = file.sha256, file.size or 0
        if not file.groups and (sha256 is None or "://" not in file.url):
            sha256, size = _hash(handle)
            handle.seek(0)
            if sha256 != (file.sha256 or sha256):
                raise _not_claimed(file, sha256)
        metadata, schema = _footer(file.name, handle)
        _check_schema(file.name, schema)
        count = min(metadata.num_row_groups, file.groups or metadata.num_row_groups)
        outside = set[int]()
        if "://" not in file.url:  # from afar, a request per row group is too much to pay
            outside = _outside(file.name, handle, count, last_train, validation)
    groups = [metadata.row_group(n) for n in range(count)]
    has_date = "date" in schema.names
    rows = [group.num_rows for group in groups]
    hashes = _hash_groups(file, rows, has_date) if file.groups else [""] * count
    known = tuple(
        RowGroup(group.num_rows, group.total_byte_size, n in outside, hashes[n])
        for n, group in enumerate(groups)
    )
    name, url = file.name, file.url
    sha256 = digest(hashes) if file.groups else str(sha256)
    return FileInfo(name, url, size, sha256, sum(rows), has_date, known, file.patience)


def _hash_groups(file: SourceFile, rows: Sequence[int], has_date: bool) -> list[str]:
    """The hash of the rows of each of the first row groups, whatever batches they come in."""
    found, hasher, missing = [], RowsHasher(), list(rows)
    for table in read(file, range(len(rows)), [*_REQUIRED, *(["date"] if has_date else [])]):
        start = 0
        while start < table.num_rows:
            some = table.slice(start, missing[0])
            hasher.update(some)
            start += some.num_rows
            missing[0] -= some.num_rows
            if missing[0] == 0:
                found.append(hasher.hexdigest())
                hasher, missing = RowsHasher(), missing[1:]
    return found


def _not_claimed(file: SourceFile, found: str) -> InputError:
    """A file in the hub's cache rotted; without it, the next run downloads it again."""
    Path(file.url).resolve().unlink(missing_ok=True)
    Path(file.url).unlink(missing_ok=True)
    return InputError(
        f"{file.url} has sha256 {found}, the hub's index says {file.sha256}; it was removed",
        kind="source-changed",
        fix="run the same command again: it downloads the file again",
        file=file.name,
        found=found,
        expected=file.sha256,
    )


def hash_file(file: SourceFile) -> tuple[str, int]:
    """sha256 and size of a file's bytes, read from one end to the other."""
    with _opened(file) as handle:
        return _hash(handle)


def promised(file: SourceFile) -> tuple[int, int, int]:
    """How many rows, bytes of Parquet and bytes of text the footer promises."""
    with _opened(file) as handle:
        metadata = _footer(file.name, handle)[0]
    count = min(metadata.num_row_groups, file.groups or metadata.num_row_groups)
    groups = [metadata.row_group(number) for number in range(count)]
    columns = [group.column(at) for group in groups for at in range(group.num_columns)]
    size = sum(c.total_compressed_size for c in columns)
    text = sum(c.total_uncompressed_size for c in columns if c.path_in_schema == "text")
    return sum(group.num_rows for group in groups), size, text


@contextlib.contextmanager
def _opened(file: SourceFile) -> Iterator[Any]:
    try:
        with open_input(file.url, file.patience) as handle:
            yield handle
    except TangobenchError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and "://" not in file.url:
            raise  # clients of hubs and object stores have errors of their own, files have not
        raise InputError(
            f"{file.name} cannot be read: {type(error).__name__}: {_short(error)}",
            kind="source-unreadable",
            fix="check permissions and the connection, then run the same command again",
            file=file.name,
        ) from error


def _hash(handle: Any) -> tuple[str, int]:
    hasher, size = hashlib.sha256(), 0
    while chunk := handle.read(1 << 22):
        hasher.update(chunk)
        size += len(chunk)
    return hasher.hexdigest(), size


def _footer(name: str, handle: Any) -> tuple[Any, pa.Schema]:
    try:
        opened = pq.ParquetFile(handle)
        return opened.metadata, opened.schema_arrow
    except (pa.ArrowException, ValueError, OSError) as error:
        raise _corrupt(name, "its footer", error) from error


def _corrupt(name: str, where: str, error: BaseException) -> InputError:
    return InputError(
        f"{name} is not a whole Parquet file: {where} cannot be read ({_short(error)})",
        kind="parquet-corrupt",
        fix="get the file again and compare its sha256 with the source's",
        file=name,
    )


def _short(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _check_schema(name: str, schema: pa.Schema) -> None:
    for column in (*_REQUIRED, "date"):
        if column in _REQUIRED and column not in schema.names:
            raise InputError(
                f"{name} has no column {column!r} (it has: {', '.join(schema.names)})",
                kind="column-missing",
                fix="FineWeb-Edu files have text, id, dump and url; convert the file first",
                file=name,
                column=column,
            )
        if schema.names.count(column) > 1:
            raise InputError(
                f"{name} has {schema.names.count(column)} columns {column!r}, expected one",
                kind="column-twice",
                fix="keep one of them and write the file again",
                file=name,
                column=column,
            )
    for column in (*_REQUIRED, "date"):
        kind = schema.field(column).type if column in schema.names else pa.string()
        dated = column == "date" and (pa.types.is_timestamp(kind) or pa.types.is_date(kind))
        if not _is_text(kind) and not dated:
            raise InputError(
                f"{name}: column {column!r} is {kind}, expected string",
                kind="column-type",
                fix="convert the column to UTF-8 strings",
                file=name,
                column=column,
            )


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    kinds = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_null,
    )
    return any(is_kind(kind) for is_kind in kinds)


def _outside(
    name: str, handle: Any, groups: int, last_train: int, validation: Sequence[int]
) -> set[int]:
    """Row groups without a training or validation document, by their dump column.

    Read, not asked of the statistics: those may lie, and pyarrow's metadata objects end the whole
    process (an exception that nobody catches in C++) at some damaged footers. Readers do not.
    """
    found = set()
    try:
        file = pq.ParquetFile(handle)
        for number in range(groups):
            dumps: set[Any] = set()
            for batch in file.iter_batches(row_groups=[number], columns=["dump"]):
                try:
                    dumps |= set(batch.column(0).unique().to_pylist())
                except UnicodeDecodeError:
                    dumps.add(None)  # read with the rest, where the row can be named
            orders = [dump_order(dump) if dump else None for dump in dumps]
            if all(order and order > last_train and order not in validation for order in orders):
                found.add(number)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise _corrupt(name, "the column dump", error) from error
    return found


def read(file: SourceFile, groups: Sequence[int], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Rows of some row groups, every column a string, null where it was not asked for."""
    afar = "://" in file.url
    with _opened(file) as handle:
        try:
            # Ranges are fetched together from afar; here that would only hold them all in memory.
            table = pq.ParquetFile(handle, page_checksum_verification=True, pre_buffer=afar)
            # A batch across two groups would be a copy; from afar, groups are fetched together.
            runs = [list(groups)] if afar else [[group] for group in groups]
            for run in runs:
                for batch in table.iter_batches(  # one core per worker: units are the parallelism
                    _BATCH, row_groups=run, columns=list(columns), use_threads=False
                ):
                    yield _uniform(batch)
        except MemoryError:
            raise  # Arrow's is one of its exceptions too, but says nothing about the file
        except (pa.ArrowException, ValueError, OSError) as error:
            where = f"row groups {groups[0]} to {groups[-1]}"
            raise _corrupt(file.name, where, error) from error


def _uniform(batch: pa.RecordBatch) -> pa.Table:
    """The five columns as strings; texts are not copied, and not yet checked for UTF-8."""
    arrays = {}
    for column in ("id", "dump", "url", "text", "date"):
        if column not in batch.schema.names:
            arrays[column] = pa.nulls(batch.num_rows, pa.large_string())
            continue
        array = batch.column(column)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
            array = _to_text(array)
        arrays[column] = array
    return pa.table(arrays)


def _to_text(array: pa.Array) -> pa.Array:
    """Views (their bytes not yet checked), dates, and columns that are all null."""
    if pa.types.is_string_view(array.type):
        return array.view(pa.binary_view()).cast(pa.large_binary()).view(pa.large_string())
    return array.cast(pa.large_string())


def whole(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; `combine_chunks` alone copies even a single chunk."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def widen(array: pa.Array) -> pa.Array:
    """Strings with wide offsets whatever the file had, so that units agree; bytes unchecked."""
    if pa.types.is_large_string(array.type):
        return array
    return array.view(pa.binary()).cast(pa.large_binary()).view(pa.large_string())
