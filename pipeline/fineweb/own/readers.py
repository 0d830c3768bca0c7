"""One reader per format: a file in, rows as dictionaries of the wanted columns out.

- Streamed: a batch or a line is in memory, never a file. A line above 64 MB is an error.
- Whatever is wrong is an `InputError` with the file, the row or line, what was expected and what
  was found; a missing column also prints the columns found and the line that would fix it.
- `.gz`, `.zst` and `.bz2` are decompressed by pyarrow's streams.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import difflib
import functools
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tangobench.errors import InputError
from tangobench.pipeline.fineweb.parquet import short

Row = dict[str, Any]

_LONGEST: Final = 1 << 26
_CHUNK: Final = 1 << 20
_BATCH: Final = 1024
_DENSEST: Final = 1 << 15  # zstd: a block of 128 kB in 4 bytes
_ASKED: Final = re.compile(r"alloc of size (\d+) failed")
_PACKED: Final = (".gz", ".zst", ".bz2")
_LIKELY: Final = {
    "text": ("content", "body", "raw_content", "document", "article", "markdown"),
    "url": ("link", "uri", "source_url"),
    "time": ("date", "timestamp", "published", "created", "created_at"),
    "id": ("doc_id", "_id", "uuid", "key"),
}


def format_of(path: Path) -> str | None:
    """The format that a file name promises; None if there is no reader for it."""
    name = path.name.lower()
    for ending in _PACKED:
        name = name.removesuffix(ending)
    return {
        "parquet": "parquet",
        "jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl",
        "csv": "csv", "tsv": "tsv",
        "arrow": "arrow", "feather": "arrow", "ipc": "arrow",
    }.get(name.rpartition(".")[2])  # fmt: skip


def rows_of(
    path: Path, columns: dict[str, str], needed: Sequence[str] = ("text",)
) -> Iterator[Row]:
    """All rows of a file, each with the wanted columns under our names for them.

    Every row of a JSONL file has the `needed` ones; in other formats all rows have all columns.
    """
    form = format_of(path) or "parquet"
    try:
        yield from _READERS[form](path, columns, needed)
    except OSError as error:
        what, fix = f"{path} cannot be read: {short(error)}", "check that it is whole and readable"
        raise InputError(what, kind="source-unreadable", fix=fix, file=str(path)) from None


def _parquet(path: Path, columns: dict[str, str], _: Sequence[str]) -> Iterator[Row]:
    with _whole(path, "Parquet"):
        file = pq.ParquetFile(path, page_checksum_verification=True)
        _require(path, columns, file.schema_arrow.names)
        wanted = list(dict.fromkeys(columns.values()))
        for batch in file.iter_batches(_BATCH, columns=wanted, use_threads=False):
            yield from _batch_rows(batch, columns)


def _arrow(path: Path, columns: dict[str, str], _: Sequence[str]) -> Iterator[Row]:
    # Read, not mapped: offsets that lead beyond the end of a map would kill the process.
    with _whole(path, "Arrow"), pa.OSFile(str(path)) as file:
        if file.read(6) == b"ARROW1":
            opened = pa.ipc.open_file(file)
            batches = (opened.get_batch(n) for n in range(opened.num_record_batches))
        else:
            file.seek(0)
            opened = pa.ipc.open_stream(file)
            batches = iter(opened)
        _require(path, columns, opened.schema.names)
        for batch in batches:
            for start in range(0, batch.num_rows, _BATCH):
                yield from _batch_rows(batch.slice(start, _BATCH), columns)


@contextlib.contextmanager
def _whole(path: Path, form: str) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        asked = _ASKED.search(str(error))
        if form != "Arrow" or asked is None or int(asked[1]) < path.stat().st_size * _DENSEST:
            raise  # true, as far as one can tell
        raise _broken(path, form, f"a length of {int(asked[1]):,} bytes in it is a lie") from None
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise _broken(path, form, short(error)) from None


def _broken(path: Path, form: str, why: str) -> InputError:
    what, fix = f"{path} is not a whole {form} file: {why}", "write the file again"
    return InputError(what, kind="source-corrupt", fix=fix, file=str(path))


def _batch_rows(batch: pa.RecordBatch, columns: dict[str, str]) -> Iterator[Row]:
    batch.validate(full=True)
    found = [batch.column(name) for name in columns.values()]
    for place, column in enumerate(found):
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":  # Python has none
            found[place] = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    yield from pa.RecordBatch.from_arrays(found, list(columns)).to_pylist()


def _jsonl(path: Path, columns: dict[str, str], needed: Sequence[str]) -> Iterator[Row]:
    """Rows; each may lack a column that is not needed, but not all of them."""
    unseen, last = dict(columns), list[str]()
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _bad_line(path, number, f"no JSON: {short(error)}") from None
        if not isinstance(row, dict):
            raise _bad_line(path, number, f"a JSON {type(row).__name__}, expected an object")
        for kind in needed:
            if columns[kind] not in row:
                _require(path, {kind: columns[kind]}, list(row), f", line {number},")
        unseen, last = {k: name for k, name in unseen.items() if name not in row}, list(row)
        yield {kind: row.get(name) for kind, name in columns.items()}
    if last:
        _require(path, unseen, last)


def _csv(
    path: Path, columns: dict[str, str], _: Sequence[str], delimiter: str = ","
) -> Iterator[Row]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    reader = csv.reader(
        (decoder.decode(line + b"\n") for line in _lines(path)), delimiter=delimiter, strict=True
    )
    csv.field_size_limit(_LONGEST)
    try:
        header = next(reader, [])
        _require(path, columns, header)
        places = {kind: header.index(name) for kind, name in columns.items()}
        for fields in reader:
            if not fields:
                continue
            if len(fields) != len(header):
                what = f"{len(fields)} fields, expected {len(header)}"
                raise _bad_line(path, reader.line_num, what)
            yield {kind: fields[place] for kind, place in places.items()}
    except csv.Error as error:
        raise _bad_line(path, reader.line_num, str(error)) from None
    except UnicodeDecodeError:
        raise _bad_line(path, reader.line_num + 1, "bytes that are not UTF-8") from None


def _lines(path: Path) -> Iterator[bytes]:
    """Lines without their ends; the last one needs none."""
    with (
        pa.input_stream(str(path), compression="detect") as raw,
        io.BufferedReader(raw, _CHUNK) as stream,
    ):
        lines = iter(functools.partial(stream.readline, _LONGEST + 2), b"")
        for number, line in enumerate(lines, 1):
            if len(line) > _LONGEST and not line.endswith(b"\n"):
                raise _bad_line(path, number, f"more than {_LONGEST:,} bytes without an end")
            yield line.removesuffix(b"\n").removesuffix(b"\r")


_READERS: Final[dict[str, Callable[[Path, dict[str, str], Sequence[str]], Iterator[Row]]]] = {
    "parquet": _parquet,
    "jsonl": _jsonl,
    "csv": _csv,
    "tsv": functools.partial(_csv, delimiter="\t"),
    "arrow": _arrow,
}


def _require(path: Path, columns: dict[str, str], found: Iterable[str], where: str = "") -> None:
    found = list(found)
    for kind, name in columns.items():
        if found.count(name) == 1:
            continue
        if name in found:
            what, fix = f" has {found.count(name)} columns {name!r}", "rename or drop one of them"
        else:
            likely = [n for n in (kind, *_LIKELY.get(kind, ())) if n in found]
            likely += difflib.get_close_matches(name, found, n=1, cutoff=0.4) + found[:1]
            what = f"{where} has no column {name!r} (it has: {', '.join(found)[:1000]})"
            fix = f'in the manifest, under [columns]: {kind} = "{[*likely, "…"][0]}"'
        error = "column-twice" if name in found else "column-missing"
        raise InputError(f"{path}{what}", kind=error, fix=fix, file=str(path), column=name)


def _bad_line(path: Path, number: int, what: str) -> InputError:
    what, fix = f"{path}, line {number}: {what}", "correct or drop the line"
    return InputError(what, kind="bad-line", fix=fix, file=str(path), line=number)
