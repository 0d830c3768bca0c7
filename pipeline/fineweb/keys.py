"""First pass over FineWeb-Edu: what dedup needs of each document, and what cannot be used.

- One unit is a range of row groups. Section 0 of its object holds the documents, section 1 + p the
  keys of hash partition p, so that a later stage reads one partition of every unit.
- Every row of the input gets a status. Null, empty and non-UTF-8 texts are dropped and counted;
  dumps outside the split are ignored; neither links anything.
- Documents are numbered in the order of the input.

Usage: `units = key_units(inputs.units, job.run(KEYS, ...))`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tangobench.errors import InputError
from tangobench.pipeline.core.arrays import NDArray, Section, pack_sections, pack_texts
from tangobench.pipeline.core.build import Arguments, Output, Record, Stage, UnitResult
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.fineweb import parquet
from tangobench.pipeline.fineweb.dedup import key_rows
from tangobench.pipeline.fineweb.reading import Reading
from tangobench.pipeline.fineweb.urls import content_keys, invalid_utf8, url_keys

FINE, IGNORED, TEXT_NULL, TEXT_EMPTY, TEXT_NOT_UTF8 = range(5)
STATUS_NAMES: Final = ("fine", "dump-ignored", "text-null", "text-empty", "text-not-utf8")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules(Arguments):
    """Which dumps count, how URLs are compared, and into how many partitions keys are cut."""

    train_through: int
    validation: tuple[int, ...]
    aggressive: bool
    parts: int


@dataclass(frozen=True, slots=True)
class KeysArgs(Arguments):
    """The rows to read and the rules."""

    reading: Reading
    rules: Rules


@dataclass(frozen=True, kw_only=True, slots=True)
class KeysResult(UnitResult):
    """Rows, where the sections begin, and counts."""

    rows: int
    bounds: list[int]
    url_null: int
    url_empty: int
    url_unparsable: int


@dataclass(frozen=True, slots=True)
class KeyUnit:
    """A finished unit; `base` is the number of its first document."""

    reading: Reading
    address: str
    base: int
    result: KeysResult

    @property
    def rows(self) -> int:
        """How many documents it has."""
        return self.result.rows

    def documents(self) -> Section:
        """Where its documents are."""
        return self._section(0)

    def keys(self, part: int) -> Section:
        """Where its keys of one partition are."""
        return self._section(1 + part)

    def _section(self, number: int) -> Section:
        return Section.at(self.address, self.result.bounds, number)


def key_units(units: Sequence[KeysArgs], records: Sequence[Record]) -> list[KeyUnit]:
    """Units numbered through, in the order of the input."""
    base, found = 0, []
    for args, record in zip(units, records, strict=True):
        result = KeysResult.of(record)
        found.append(KeyUnit(args.reading, record.address, base, result))
        base += result.rows
    return found


def make_keys(args: KeysArgs, store: Store) -> Output:
    """The documents of a unit and their keys."""
    del store
    row = args.reading.first_row
    tables: list[pa.Table] = []
    counts = {"url_null": 0, "url_empty": 0, "url_unparsable": 0}
    for batch in args.reading.rows():
        tables.append(_documents(args, row, batch, counts))
        row += batch.num_rows
    table = pa.concat_tables(tables).combine_chunks() if tables else _empty()
    return pack_keys(table, args.rules.parts, counts)


def pack_keys(table: pa.Table, parts: int, counts: dict[str, int]) -> Output:
    """A table of documents as the object of a unit."""
    linked = table["status"].to_numpy() == FINE
    keys, bounds = key_rows(_stack(table, "url"), _stack(table, "content"), linked, parts)
    documents: dict[str, NDArray] = {}
    for name in table.column_names:
        column = parquet.whole(table[name])
        text = name in ("id", "date")
        documents |= pack_texts(name, column) if text else {name: column.to_numpy()}
    data, places = pack_sections([documents, *({"keys": keys[a:b]} for a, b in pairwise(bounds))])
    return Output(data, KeysResult(rows=table.num_rows, bounds=places, **counts).plain())


def _documents(args: KeysArgs, row: int, batch: pa.Table, counts: dict[str, int]) -> pa.Table:
    name, rules = args.reading.name, args.rules
    ids, dumps, urls, texts, dates = (
        parquet.whole(batch[column]) for column in ("id", "dump", "url", "text", "date")
    )
    parquet.require_ids(name, row, ids)
    _require_utf8(name, row, ids, "id")
    _require_utf8(name, row, dumps, "dump")
    order = parquet.dump_orders(name, row, dumps)
    wanted = (order <= rules.train_through) | np.isin(order, rules.validation)
    status = _statuses(texts, wanted)
    sizes = pc.binary_length(texts).fill_null(0).to_numpy().astype(np.uint64)
    fine = status == FINE
    if not fine.all():  # a filter copies every text
        urls, texts = urls.filter(pa.array(fine)), texts.filter(pa.array(fine))
    keys = np.zeros((2, len(ids), 2), np.uint64)
    keys[0][fine] = _url_keys(urls, rules.aggressive, counts)
    keys[1][fine] = content_keys(texts)
    dates = parquet.widen(pc.if_else(pa.array(invalid_utf8(dates)), None, dates))
    return pa.table(
        {
            "id": parquet.widen(ids),
            "dump": order,
            "date": dates,
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


def _stack(table: pa.Table, kind: str) -> NDArray:
    """URL or content keys as one array of two columns."""
    return np.stack([table[f"{kind}_high"].to_numpy(), table[f"{kind}_low"].to_numpy()], axis=1)


KEYS: Final = Stage("fineweb-keys", 2, make_keys)
