"""First pass over FineWeb-Edu: what dedup needs of each document, and what cannot be used.

- What URLs and texts are equal is in docs/fineweb.md. Keys are 128-bit xxh3.
- One unit is a range of row groups. Section 0 of its object holds the documents, section 1 + p the
  keys of hash partition p, so that a later stage reads one partition of every unit. Where most
  documents are used (`packing.one_pass`), the last section has their tokens in hash order.
- Every row of the input gets a status; only `FINE` ones link anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NotRequired, TypedDict

import can_ada
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tangobench.errors import InputError
from tangobench.pipeline.core.build import Arguments, Output, Stage, Streamed
from tangobench.pipeline.core.hashing import Sink
from tangobench.pipeline.core.shards import NDArray, Packable, Sections, pack_sections
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.fineweb import parquet
from tangobench.pipeline.fineweb.packing import Encoding, Ids, order_hashes, write_ids
from tangobench.pipeline.fineweb.parquet import Reading
from tangobench.pipeline.fineweb.spec import dump_order

FINE, IGNORED, TEXT_NULL, TEXT_EMPTY, TEXT_NOT_UTF8 = range(5)
STATUS_NAMES: Final = ("fine", "dump-ignored", "text-null", "text-empty", "text-not-utf8")
_WIDE: Final = ("url_high", "url_low", "content_high", "content_low", "size")
_DOCUMENTS: Final = pa.schema(
    [
        *(("id", pa.large_string()), ("dump", pa.int32()), ("date", pa.large_string())),
        *(("status", pa.uint8()), *((name, pa.uint64()) for name in _WIDE)),
    ]
)
_UNRESERVED: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
# Not behind an incomplete escape: decoding %42 in %a%42 would make a new one, %aB.
_PERCENT: Final = re.compile("(?<!%)(?<!%[0-9A-Fa-f])%[0-9A-Fa-f]{2}")
# Parameters that name the click, not the page; matched by name, `utm_` and `mc_` by prefix.
_TRACKING: Final = re.compile(
    "(?:utm_|mc_|pk_|_hs).*|gclid|dclid|gbraid|wbraid|fbclid|msclkid|yclid|igshid|twclid|ref_src",
    re.IGNORECASE,
)
_WWW: Final = re.compile(r"\A(?:www\.)+(?=[^/:?])")  # unless nothing would be left of the host
_NO_KEY: Final = bytes(16)
_URL_SEED: Final = 1  # URLs and texts are hashed apart: a text that is a URL must not link to it


def _normal_percent(match: re.Match[str]) -> str:
    byte = int(match[0][1:], 16)
    return chr(byte) if byte in _UNRESERVED else match[0].upper()


def normalise_url(url: str | None, *, aggressive: bool = False) -> str | None:
    """The URL's normal form, or None where there is no usable URL."""
    normal = _standard(url)
    if normal is None or not aggressive:
        return normal
    folded = _fold(normal)
    # Folding can make new things to normalise (https://a:80 has http's port then): until none is.
    while (again := _standard(folded)) is not None and _fold(again) != folded:
        folded = _fold(again)
    return folded


def _standard(url: str | None) -> str | None:
    if not url:
        return None
    try:
        href: str = can_ada.parse(url).href
    except (ValueError, TypeError):  # TypeError: a string that is no Unicode text
        return None
    href = href.partition("#")[0].rstrip(" ")  # `t: #a` ends with a space that a parser drops
    return _PERCENT.sub(_normal_percent, href) if "%" in href else href


def _fold(href: str) -> str:
    scheme, separator, rest = href.partition("://")
    if separator and scheme in ("http", "https"):
        href = "http://" + _WWW.sub("", rest)
    page, _, query = href.partition("?")
    kept = sorted(p for p in query.split("&") if p and not _TRACKING.fullmatch(p.partition("=")[0]))
    page = page.rstrip("/ ")  # a space at the end would be lost when parsed again
    return page + "?" + "&".join(kept) if kept else page


def url_keys(urls: Iterable[str | None], *, aggressive: bool = False) -> tuple[NDArray, int]:
    """One key (two uint64) per URL, zeros where it links nothing, and how many were unparsable."""
    digests: list[bytes] = []
    unparsable = 0
    for url in urls:
        normal = normalise_url(url, aggressive=aggressive)
        unparsable += normal is None and bool(url)
        digests.append(
            _NO_KEY if normal is None else xxhash.xxh3_128_digest(normal.encode(), _URL_SEED)
        )
    return _as_keys(digests), unparsable


def content_keys(texts: pa.Array) -> NDArray:
    """One key per text of an Arrow string array, from its exact bytes; no nulls."""
    wide = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    _, offsets, data = texts.buffers()
    first, stop = texts.offset, texts.offset + len(texts) + 1
    bounds = np.frombuffer(offsets, np.int64 if wide else np.int32)[first:stop].tolist()
    view = memoryview(data if data is not None else b"")
    hasher = xxhash.xxh3_128_digest
    return _as_keys([hasher(view[a:b]) for a, b in pairwise(bounds)])


def _as_keys(digests: list[bytes]) -> NDArray:
    keys = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
    return keys.astype(np.uint64)


def invalid_utf8(array: pa.Array) -> NDArray:
    """True for each value of a string array whose bytes are not UTF-8 (nulls are fine).

    Arrow checks 2.4 GB/s; values are looked at one by one only when that check fails.
    """
    bad = np.zeros(len(array), dtype=np.bool_)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        wide = pa.types.is_large_string(array.type)
        raw = array.view(pa.large_binary() if wide else pa.binary())
        for index, value in enumerate(raw):
            try:
                (value.as_py() or b"").decode()
            except UnicodeDecodeError:
                bad[index] = True
    return bad


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules(Arguments):
    """Which dumps count, how URLs are compared, and into how many partitions keys are cut."""

    train_through: int
    validation: tuple[int, ...]
    aggressive: bool
    parts: int


@dataclass(frozen=True, slots=True)
class KeysArgs(Arguments):
    """The rows to read and the rules; `encoding` if texts are encoded on the way."""

    reading: Reading
    rules: Rules
    encoding: Encoding | None = None

    def key(self) -> Any:
        known = [self.reading.key(), self.rules.key()]
        return [*known, self.encoding.key()] if self.encoding else known


class Counts(TypedDict):
    """URLs that link nothing and, if texts are encoded, how many were encoded twice."""

    url_null: int
    url_empty: int
    url_unparsable: int
    checked: NotRequired[int]


class KeysResult(Sections, Counts):
    """Documents of a unit; section 0 has them, the others the partitions of their keys.

    With `checked` there is a last one, with tokens.
    """

    rows: int


def make_keys(args: KeysArgs, store: Store) -> Output[KeysResult] | Streamed[KeysResult]:
    row, encoding = args.reading.first_row, args.encoding
    tables, masks = [_DOCUMENTS.empty_table()], [np.zeros(0, np.bool_)]
    counts: Counts = {"url_null": 0, "url_empty": 0, "url_unparsable": 0}
    ids = Ids(encoding.tokenizer.load(store)) if encoding else None
    for batch in args.reading.rows():
        table, texts = _documents(args, row, batch, counts)
        if encoding and ids:
            early = table["dump"].to_numpy() <= args.rules.train_through
            used = early | (table["size"].to_numpy() >= encoding.shortest)
            fine = table["status"].to_numpy() == FINE
            places = np.flatnonzero(used[fine])  # texts are of the fine ones
            masks.append(used & fine)
            mine = table.filter(pa.array(used & fine))
            ids.add(texts, places, _content(mine), mine["id"].combine_chunks())
        tables.append(table)
        row += batch.num_rows
    table = pa.concat_tables(tables).combine_chunks()
    if encoding and ids:
        used = np.flatnonzero(np.concatenate(masks))
        return _with_tokens(table, used, ids, args, encoding.seed, counts)
    return pack_keys(table, args.rules.parts, counts)


def _with_tokens(
    table: pa.Table, used: NDArray, ids: Ids, args: KeysArgs, seed: int, counts: Counts
) -> Streamed[KeysResult]:
    """The object with a last section of tokens; documents say where theirs are, and how many."""
    mine = table.take(pa.array(used))
    place, lengths = np.zeros((3, len(table)), np.uint64), ids.lengths()
    place[0, used] = hashes = order_hashes(mine["id"], _content(mine), seed)
    order = np.argsort(hashes, kind="stable")
    place[1, used[order]] = np.cumsum(lengths[order]) - lengths[order]
    place[2, used] = lengths
    for name, column in zip(("order", "start", "length"), place, strict=True):
        table = table.append_column(name, pa.array(column))
    made = pack_keys(table, args.rules.parts, {**counts, "checked": ids.checked})

    def write(sink: Sink) -> KeysResult:
        sink.write(made.data)
        write_ids(sink, (ids.found[at] for at in order.tolist()), ids.dtype)
        return {**made.result, "bounds": [*made.result["bounds"], sink.size]}

    return Streamed(write, len(made.data) + ids.dtype.itemsize * int(lengths.sum()))


def _content(table: pa.Table) -> NDArray:
    return np.stack([table[f"content_{half}"].to_numpy() for half in ("high", "low")], axis=1)


def pack_keys(table: pa.Table, parts: int, counts: Counts) -> Output[KeysResult]:
    url, content = (
        np.stack([table[f"{kind}_{half}"].to_numpy() for half in ("high", "low")], axis=1)
        for kind in ("url", "content")
    )
    keys, cuts = key_rows(url, content, table["status"].to_numpy() == FINE, parts)
    documents: dict[str, Packable] = {}
    for name in table.column_names:
        column = parquet.whole(table[name])
        documents[name] = column if name in ("id", "date") else column.to_numpy()
    data, bounds = pack_sections([documents, *({"keys": keys[a:b]} for a, b in pairwise(cuts))])
    return Output(data, {"rows": table.num_rows, "bounds": bounds, **counts})


def _documents(
    args: KeysArgs, row: int, batch: pa.Table, counts: Counts
) -> tuple[pa.Table, pa.Array]:
    """Documents of a batch, and the texts of those that can be used."""
    name, rules = args.reading.file.name, args.rules
    ids, dumps, urls, texts, dates = (
        parquet.whole(batch[column]) for column in ("id", "dump", "url", "text", "date")
    )
    if ids.null_count:
        at = row + pc.index(pc.is_null(ids), pa.scalar(True)).as_py()
        raise _bad_row(name, at, "the id is null", "id-null", "drop the row or give it an id")
    _require_utf8(name, row, ids, "id")
    _require_utf8(name, row, dumps, "dump")
    order = _dump_orders(name, row, dumps)
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
    table = pa.table(
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
    return table, texts


def _statuses(texts: pa.Array, wanted: NDArray) -> NDArray:
    null = pc.is_null(texts).to_numpy(zero_copy_only=False)
    empty = pc.binary_length(texts).fill_null(1).to_numpy() == 0
    bad = invalid_utf8(texts)
    return np.select(
        [~wanted, null, empty, bad], [IGNORED, TEXT_NULL, TEXT_EMPTY, TEXT_NOT_UTF8], FINE
    ).astype(np.uint8)


def _url_keys(urls: pa.Array, aggressive: bool, counts: Counts) -> Any:
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


def _dump_orders(name: str, row: int, dumps: pa.Array) -> NDArray:
    encoded = dumps.dictionary_encode()
    orders = [dump_order(value) for value in encoded.dictionary.to_pylist()]
    if None in orders or encoded.null_count:
        column = dumps.to_pylist()
        at = next(i for i, v in enumerate(column) if v is None or dump_order(v) is None)
        what = f"dump is {column[at]!r}, expected CC-MAIN-YYYY-WW"
        fix = "the split is by dump: drop the row or give it its dump's name"
        raise _bad_row(name, row + at, what, "dump-unknown", fix)
    return np.asarray(np.array(orders, np.int32)[encoded.indices.to_numpy()])


def _require_utf8(name: str, row: int, array: pa.Array, column: str) -> None:
    if (bad := invalid_utf8(array)).any():
        what, fix = f"the {column} is not UTF-8", "drop the row or mend its bytes"
        raise _bad_row(name, row + int(np.argmax(bad)), what, f"{column}-not-utf8", fix)


def _bad_row(name: str, row: int, what: str, kind: str, fix: str) -> InputError:
    return InputError(f"{name}, row {row}: {what}", kind=kind, fix=fix, file=name, row=row)


KEYS: Final = Stage("fineweb-keys", 3, make_keys)


KEY_ROW: Final = np.dtype([("high", "<u8"), ("low", "<u8"), ("document", "<u4")])


def part_of(high: NDArray, parts: int) -> NDArray:
    """The hash partition of a key (or any 64-bit hash), 0..parts-1."""
    return ((high >> np.uint64(32)) * np.uint64(parts)) >> np.uint64(32)


def by_part(part: NDArray, parts: int) -> tuple[NDArray, list[int]]:
    """The stable order of rows by partition, and where each partition begins in it."""
    order = np.argsort(part, kind="stable")
    return order, np.searchsorted(part[order], np.arange(parts + 1, dtype=part.dtype)).tolist()


def changes(*columns: NDArray) -> NDArray:
    """True where a row differs from the one before it, and at the first."""
    first = np.ones(len(columns[0]), np.bool_)
    first[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return first


def key_rows(
    url: NDArray, content: NDArray, linked: NDArray, parts: int
) -> tuple[NDArray, list[int]]:
    """(key, document) rows of the linked documents ordered by partition, and where each begins.

    `url` and `content` are (documents, 2) keys; a key of zeros links nothing.
    """
    documents = np.flatnonzero(linked).astype(np.uint32)
    rows = np.empty(2 * len(documents), KEY_ROW)
    both = np.concatenate([url[linked], content[linked]])
    rows["high"], rows["low"] = both[:, 0], both[:, 1]
    rows["document"] = np.tile(documents, 2)
    rows = rows[both.any(axis=1)]
    order, bounds = by_part(part_of(rows["high"], parts), parts)
    return rows[order], bounds


PART_ROWS: Final = 5_000_000  # rows per partition: two keys each, about 500 MB while sorting


def partitions_for(rows: int) -> int:
    return max(1, -(-rows // PART_ROWS))
