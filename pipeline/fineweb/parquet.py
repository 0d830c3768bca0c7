"""FineWeb-Edu rows out of Parquet: ranges of row groups in, checked record batches out.

- Only `id dump url text` (and `date` where there is one) are read, a thousand rows at a time, so a
  file that claims little and decodes to much stays within the memory of a batch.
- A unit is a range of row groups, or of the embedded sample.
- Whatever is wrong with a file is an `InputError` that names the file, the row group or row, what
  was expected and what was found. Nothing is repaired silently.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tangobench.errors import InputError
from tangobench.pipeline.core.build import Arguments
from tangobench.pipeline.core.hashing import RowsHasher, digest
from tangobench.pipeline.fineweb.sources import SourceFile, open_input

COLUMNS: Final = ("id", "dump", "url", "text", "date")
_BATCH: Final = 1024
SAMPLE_ROWS: Final = 4708
SAMPLE_TEXT: Final = 7_922_391  # bytes
SAMPLE_VERSION: Final = 1
_SAMPLE_BATCH: Final = 512
_UNREADABLE: Final = (pa.ArrowException, ValueError, OSError)
_LOOK: Final = 1 << 26  # bytes of a row group that a plan looks into
_FOOTERS: Final[dict[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class RowGroup:
    """What is known of a row group; its `rows_sha256` where a file is read in part."""

    rows: int
    size: int
    rows_sha256: str = ""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """An input file that can be read: its identity and row groups are known.

    `file.sha256` is that of its bytes, or of its row groups' hashes where it is read in part.
    """

    file: SourceFile
    groups: tuple[RowGroup, ...]

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)

    def identity(self) -> dict[str, Any]:
        if self.groups and self.groups[0].rows_sha256:
            return {"groups": [{"rows": g.rows, "rows_sha256": g.rows_sha256} for g in self.groups]}
        return {"sha256": self.file.sha256, "size": self.file.size, "rows": self.rows}


@dataclass(frozen=True, slots=True)
class Reading(Arguments):
    """Row groups groups[0]..groups[1]-1 of a Parquet file, or such documents of the sample."""

    file: SourceFile
    groups: tuple[int, int]
    first_row: int
    size: int

    @property
    def label(self) -> str:
        return f"{self.file.name} {self.groups[0]}-{self.groups[1] - 1}"

    def key(self) -> Any:
        """What decides the rows: content and range, never a name or a place."""
        return [self.file.sha256, self.groups]

    def rows(self, columns: Sequence[str] = COLUMNS) -> Iterator[pa.Table]:
        if self.file.url:
            yield from read(self.file, range(*self.groups), columns)
            return
        start, stop = self.groups
        for first in range(start, stop, _SAMPLE_BATCH):
            yield _sample().take(pa.array(range(first, min(stop, first + _SAMPLE_BATCH))))

    def texts(self) -> Iterator[pa.Array]:
        return (whole(table["text"]) for table in self.rows(["text"]))


def read_sample(start: int, stop: int) -> Reading:
    """Documents of the embedded sample, sample.parquet; manifests/fineweb_sample.py wrote it."""
    file = SourceFile("the embedded sample", "", sha256=f"fineweb_sample {SAMPLE_VERSION}")
    return Reading(file, (start, stop), start, stop - start)


@functools.cache
def _sample() -> pa.Table:
    table = pq.read_table(Path(__file__).with_name("sample.parquet"), use_threads=False)
    ids = [f"<urn:uuid:{uuid.UUID(bytes=ident)}>" for ident in table["id"].to_pylist()]
    return table.set_column(1, "id", pa.array(ids)).select(COLUMNS)


def inspect(file: SourceFile) -> FileInfo:
    """Hash a file, unless it is afar and its hub claims a hash, and check its footer."""
    with _opened(file) as handle:
        sha256, size = file.sha256, file.size or 0
        if not file.groups and (sha256 is None or not file.afar):
            sha256, size = _hash(handle)
            handle.seek(0)
            if sha256 != (file.sha256 or sha256):
                raise _not_claimed(file, sha256)
        metadata, schema = _footer(file.name, handle)
        _check_schema(file.name, schema)
        groups = _groups(metadata, file)
    rows = [group.num_rows for group in groups]
    hashes = _hash_groups(file, rows) if file.groups else [""] * len(groups)
    known = tuple(
        RowGroup(group.num_rows, group.total_byte_size, sha)
        for group, sha in zip(groups, hashes, strict=True)
    )
    sha256 = digest(hashes) if file.groups else sha256
    return FileInfo(replace(file, sha256=sha256, size=size), known)


def _groups(metadata: Any, file: SourceFile) -> list[Any]:
    count = min(metadata.num_row_groups, file.groups or metadata.num_row_groups)
    return [metadata.row_group(number) for number in range(count)]


def _hash_groups(file: SourceFile, rows: Sequence[int]) -> list[str]:
    """The hash of the rows of each of the first row groups, whatever batches they come in."""
    found, hasher, missing = [], RowsHasher(), list(rows)
    for table in read(file, range(len(rows)), COLUMNS):
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
    what = f"{file.url} has sha256 {found}, the hub's index says {file.sha256}; it was removed"
    fix = "run the same command again: it downloads the file again"
    details = {"file": file.name, "found": found, "expected": file.sha256}
    return InputError(what, kind="source-changed", fix=fix, **details)


def hash_file(file: SourceFile) -> tuple[str, int]:
    with _opened(file) as handle:
        return _hash(handle)


class Promise(NamedTuple):
    """What footers say of an input: rows, bytes of Parquet, the same before compression, bytes of
    different texts, bytes of all texts, the most bytes that a text has on average in a row group.
    """

    rows: int
    size: float
    groups: float
    different: float
    text: float
    longest: float


def promised(file: SourceFile) -> Promise:
    with _opened(file) as handle:
        groups = _groups(_footer(file.name, handle)[0], file)
        columns = [group.column(at) for group in groups for at in range(group.num_columns)]
        texts = [c for c in columns if c.path_in_schema == "text"]
        copies = 1.0 if file.afar or not texts else _copies(handle, texts, len(groups) // 2)
    different = sum(c.total_uncompressed_size for c in texts)
    means = (c.total_uncompressed_size / max(1, c.num_values) for c in texts)
    return Promise(
        sum(group.num_rows for group in groups),
        sum(c.total_compressed_size for c in columns),
        sum(group.total_byte_size for group in groups),
        different,
        copies * different,
        copies * max(means, default=0.0),
    )


def _copies(handle: Any, chunks: Sequence[Any], group: int) -> float:
    """Bytes of text per byte stored, in one row group: copies in it share an entry of its
    dictionary, which has a mebibyte by default; what is beyond that is stored as it is."""
    stored = chunks[group].total_uncompressed_size
    if chunks[group].has_dictionary_page and 0 < stored <= 1 << 21:
        with contextlib.suppress(*_UNREADABLE):  # the build says what is wrong
            texts = pq.ParquetFile(handle).read_row_group(group, columns=["text"])
            return float(max(1.0, texts.nbytes / stored))
    return 1.0


def occurrences(file: SourceFile) -> float:
    """About how many documents of a file have the same text: those of the middle row group are
    looked for 1, 2, 4, … groups later, each of which answers for the ones up to the next."""
    found = known = 1.0
    with _opened(file) as handle, contextlib.suppress(*_UNREADABLE):  # the build says what is wrong
        opened = pq.ParquetFile(handle)
        count = opened.metadata.num_row_groups
        half = count // 2
        if not count or opened.metadata.row_group(half).total_byte_size > _LOOK:
            return 1.0
        here = opened.read_row_group(half, columns=["text"])["text"]
        texts = here.unique()
        found, known, step = len(here), max(1, len(texts)), 1
        while half + step < count:
            there = opened.read_row_group(half + step, columns=["text"])["text"]
            again = pc.sum(pc.is_in(there, texts)).as_py()
            found += 2 * min(step, half - step + 1) * again  # on both sides
            step *= 2
    return max(1.0, found / known)


@contextlib.contextmanager
def _opened(file: SourceFile) -> Iterator[Any]:
    try:
        with open_input(file.url, file.patience) as handle:
            yield handle
    except OSError as error:  # of this machine: a remote file's errors are typed where it is read
        what = f"{file.name} cannot be read: {type(error).__name__}: {short(error)}"
        fix = "check permissions and the disk, then run the same command again"
        raise InputError(what, kind="source-unreadable", fix=fix, file=file.name) from error


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
    except _UNREADABLE as error:
        raise _corrupt(name, "its footer", error) from error


def _corrupt(name: str, where: str, error: BaseException) -> InputError:
    what = f"{name} is not a whole Parquet file: {where} cannot be read ({short(error)})"
    fix = "get the file again and compare its sha256 with the source's"
    return InputError(what, kind="parquet-corrupt", fix=fix, file=name)


def short(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _check_schema(name: str, schema: pa.Schema) -> None:
    for column in COLUMNS:
        count, dated = schema.names.count(column), column == "date"
        if count == 0 and not dated:
            what = f" has no column {column!r} (it has: {', '.join(schema.names)})"
            kind = "missing"
            fix = "FineWeb-Edu files have text, id, dump and url; convert the file first"
        elif count > 1:
            what, kind = f" has {count} columns {column!r}, expected one", "twice"
            fix = "keep one of them and write the file again"
        elif count and not _is_text(found := schema.field(column).type, dated=dated):
            what, kind = f": column {column!r} is {found}, expected string", "type"
            fix = "convert the column to UTF-8 strings"
        else:
            continue
        raise InputError(f"{name}{what}", kind=f"column-{kind}", fix=fix, file=name, column=column)


def _is_text(kind: pa.DataType, *, dated: bool) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    strings = (pa.string(), pa.large_string(), pa.string_view(), pa.null())
    return kind in strings or (dated and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)))


def read(file: SourceFile, groups: Sequence[int], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Rows of some row groups, every column a string, null where it was not asked for."""
    with _opened(file) as handle:
        try:
            # Ranges are fetched together from afar; here that would only hold them all in memory.
            table = pq.ParquetFile(
                handle,
                metadata=_known_footer(file, handle),
                page_checksum_verification=True,
                pre_buffer=file.afar,
            )
            wanted = [
                name for name in columns if name != "date" or name in table.schema_arrow.names
            ]
            # A batch across two groups would be a copy; from afar, groups are fetched together.
            for run in [list(groups)] if file.afar else [[group] for group in groups]:
                for batch in table.iter_batches(  # one core per worker: units are the parallelism
                    _BATCH, row_groups=run, columns=wanted, use_threads=False
                ):
                    yield pa.table({name: _text(batch, name) for name in COLUMNS})
        except MemoryError:
            raise  # Arrow's is one of its exceptions too, but says nothing about the file
        except _UNREADABLE as error:
            where = f"row groups {groups[0]} to {groups[-1]}"
            raise _corrupt(file.name, where, error) from error


def _known_footer(file: SourceFile, handle: Any) -> Any:
    """A file's footer, parsed once for the units that a process reads of it: it may have 30 MB."""
    key = f"{file.url} {file.sha256}"
    if (found := _FOOTERS.get(key)) is None:
        found = pq.read_metadata(handle)
        _FOOTERS.clear()
        _FOOTERS[key] = found
    return found


def _text(batch: pa.RecordBatch, column: str) -> pa.Array:
    """A column as strings; texts are not copied, and not yet checked for UTF-8."""
    if column not in batch.schema.names:
        return pa.nulls(batch.num_rows, pa.large_string())
    array = batch.column(column)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return array
    if pa.types.is_string_view(array.type):
        return array.view(pa.binary_view()).cast(pa.large_binary()).view(pa.large_string())
    return array.cast(pa.large_string())  # dates, and columns that are all null


def whole(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; `combine_chunks` alone copies even a single chunk."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def widen(array: pa.Array) -> pa.Array:
    """Strings with wide offsets whatever the file had, so that units agree; bytes unchecked."""
    if pa.types.is_large_string(array.type):
        return array
    return array.view(pa.binary()).cast(pa.large_binary()).view(pa.large_string())
