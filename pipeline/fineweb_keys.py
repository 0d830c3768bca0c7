"""First pass over FineWeb-Edu: what dedup needs of each document, and what cannot be used.

- One unit is a range of row groups; its object is a table of documents followed by key rows
  ordered by hash partition, so that a later stage reads one partition of every unit.
- Every row of the input gets a status. Null, empty and non-UTF-8 texts are dropped and counted;
  dumps outside the split are ignored; neither links anything.
- Documents are numbered in the order of the input.

Usage: `job.run(KEYS, [Unit(label, inputs, args)])`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tangobench.errors import InputError
from tangobench.pipeline import fineweb_read, fineweb_sample
from tangobench.pipeline.build import Output, Stage
from tangobench.pipeline.dedup import key_rows
from tangobench.pipeline.store import Store
from tangobench.pipeline.text import content_keys, invalid_utf8, url_keys

FINE, IGNORED, TEXT_NULL, TEXT_EMPTY, TEXT_NOT_UTF8 = range(5)
STATUS_NAMES: Final = ("fine", "dump-ignored", "text-null", "text-empty", "text-not-utf8")
_SAMPLE_BATCH: Final = 512


def read_unit(args: dict[str, Any]) -> Iterator[pa.Table]:
    """The rows of a unit, from Parquet or from the embedded sample."""
    return _read(args, ["id", "dump", "date", *(("url", "text") if args.get("texts") else ())])


def read_texts(args: dict[str, Any]) -> Iterator[pa.Array]:
    """The texts of a unit's rows, in the same order."""
    for table in _read(args, ["text"]):
        yield fineweb_read.whole(table["text"])


def _read(args: dict[str, Any], columns: list[str]) -> Iterator[pa.Table]:
    if "sample" in args:
        start, stop = args["sample"]
        for first in range(start, stop, _SAMPLE_BATCH):
            table = fineweb_sample.sample_table(first, min(stop, first + _SAMPLE_BATCH))
            yield table.select(["id", "dump", "url", "text", "date"]).combine_chunks()
        return
    if not args["has_date"]:
        columns = [name for name in columns if name != "date"]
    groups = range(*args["groups"])
    yield from fineweb_read.read(args["name"], args["url"], groups, columns)


def make_keys(args: dict[str, Any], store: Store) -> Output:
    """The documents of a unit and their keys."""
    del store
    row = int(args.get("first_row", 0))
    tables: list[pa.Table] = []
    counts = {"url_null": 0, "url_empty": 0, "url_unparsable": 0}
    for batch in read_unit(args):
        documents = _documents(args, row, batch, counts)
        tables.append(documents)
        row += batch.num_rows
    table = pa.concat_tables(tables).combine_chunks() if tables else _empty()
    linked = table["status"].to_numpy() == FINE
    rows, bounds = key_rows(
        stack_keys(table, "url"), stack_keys(table, "content"), linked, args["parts"]
    )
    data = to_ipc(table)
    status = np.bincount(table["status"].to_numpy(), minlength=len(STATUS_NAMES))
    result = {
        "rows": table.num_rows,
        "keys_start": data.size,
        "bounds": bounds,
        "status": dict(zip(STATUS_NAMES, status.tolist(), strict=True)),
        "text_bytes": int(table["size"].to_numpy()[linked].sum()),
        **counts,
    }
    return Output(b"".join((data, rows.tobytes())), result)


def _documents(args: dict[str, Any], row: int, batch: pa.Table, counts: dict[str, int]) -> pa.Table:
    name = args.get("name", "the embedded sample")
    ids, dumps, urls, texts, dates = (
        fineweb_read.whole(batch[column]) for column in ("id", "dump", "url", "text", "date")
    )
    fineweb_read.require_ids(name, row, ids)
    _require_utf8(name, row, ids, "id")
    _require_utf8(name, row, dumps, "dump")
    order = fineweb_read.dump_orders(name, row, dumps)
    wanted = (order <= args["train_through"]) | np.isin(order, args["validation"])
    status = _statuses(texts, wanted)
    sizes = pc.binary_length(texts).fill_null(0).to_numpy().astype(np.uint64)
    fine = status == FINE
    if not fine.all():  # a filter copies every text
        urls, texts = urls.filter(pa.array(fine)), texts.filter(pa.array(fine))
    keys = np.zeros((2, len(ids), 2), np.uint64)
    keys[0][fine] = _url_keys(urls, args["aggressive"], counts)
    keys[1][fine] = content_keys(texts)
    dates = fineweb_read.widen(pc.if_else(pa.array(invalid_utf8(dates)), None, dates))
    return pa.table(
        {
            "id": fineweb_read.widen(ids),
            "dump": order,
            "date": pc.if_else(pc.equal(dates, ""), None, dates),
            "status": status,
            "url_high": keys[0, :, 0],
            "url_low": keys[0, :, 1],
            "content_high": keys[1, :, 0],
            "content_low": keys[1, :, 1],
            "size": sizes,
        }
    )


def _statuses(texts: pa.Array, wanted: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    null = pc.is_null(texts).to_numpy(zero_copy_only=False)
    empty = pc.binary_length(texts).fill_null(1).to_numpy() == 0
    bad = invalid_utf8(texts)
    return np.select(
        [~wanted, null, empty, bad], [IGNORED, TEXT_NULL, TEXT_EMPTY, TEXT_NOT_UTF8], FINE
    ).astype(np.uint8)


def _url_keys(urls: pa.Array, aggressive: bool, counts: dict[str, int]) -> Any:
    """Keys of the URLs; one whose bytes are not UTF-8 is as unparsable as any other."""
    bad = invalid_utf8(urls)
    nulls = urls.null_count
    if bad.any():
        urls = pc.if_else(pa.array(bad), None, urls)
    values = urls.to_pylist()
    keys, unparsable = url_keys(values, aggressive=aggressive)
    counts["url_null"] += nulls
    counts["url_empty"] += values.count("")
    counts["url_unparsable"] += unparsable + int(bad.sum())
    return keys


def _require_utf8(name: str, row: int, array: pa.Array, column: str) -> None:
    bad = invalid_utf8(array)
    if bad.any():
        at = row + int(np.flatnonzero(bad)[0])
        raise InputError(
            f"{name}, row {at}: the {column} is not UTF-8",
            kind=f"{column}-not-utf8",
            fix="drop the row or mend its bytes",
            file=name,
            row=at,
        )


def _empty() -> pa.Table:
    wide = pa.uint64()
    names = ("url_high", "url_low", "content_high", "content_low", "size")
    fields = [("id", pa.large_string()), ("dump", pa.int32()), ("date", pa.large_string())]
    fields += [("status", pa.uint8()), *((name, wide) for name in names)]
    return pa.schema(fields).empty_table()


def stack_keys(table: pa.Table, kind: str) -> Any:
    """A table's URL or content keys as one array of two columns."""
    return np.stack([table[f"{kind}_high"].to_numpy(), table[f"{kind}_low"].to_numpy()], axis=1)


def to_ipc(table: pa.Table) -> pa.Buffer:
    """A table as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def from_ipc(buffer: Any) -> pa.Table:
    """The table of an Arrow IPC stream."""
    with pa.ipc.open_stream(buffer) as reader:
        return reader.read_all()


KEYS: Final = Stage("fineweb-keys", 1, make_keys)
