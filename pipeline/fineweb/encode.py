"""Tokens of the kept documents, and the shards made of them.

- Pass two over the text: kept training documents whose hash is in the wave, by bucket, and
  validation documents of at least one whole row. Those with fewer bytes than a row has tokens
  cannot fill one and are not encoded.
- A unit's object has a section per bucket (index rows and tokens), then one with the tokens of
  its long validation documents.
- What the first pass has encoded is only indexed: a bucket is a range of that object's tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tangobench.pipeline.core import shards
from tangobench.pipeline.core.build import Arguments, ShardResult, Stage, Streamed, shard_unit
from tangobench.pipeline.core.hashing import Sink
from tangobench.pipeline.core.shards import NDArray, Section, Sections
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.fineweb import packing
from tangobench.pipeline.fineweb.decisions import doc_indices
from tangobench.pipeline.fineweb.packing import Ids, TokenKind, Wave, order_hashes, write_ids
from tangobench.pipeline.fineweb.units import TRAIN, Documents, DocumentUnit
from tangobench.pipeline.tokenizer.use import GPT2, Choice

BATCH_ROWS: Final = 64  # one mebibyte of tokens at 8,192 per row


@dataclass(frozen=True, kw_only=True, slots=True)
class TokensArgs(Arguments):
    """A unit and what is wanted of it; `windows` is how many validation rows are asked for.

    `first_index` is the index of the unit's first document in each partition of the decisions.
    The first wave comes with validation.
    """

    unit: DocumentUnit
    first_index: tuple[int, ...]
    wave: Wave
    width: int
    windows: int
    seed: int
    tokenizer: Choice = GPT2


class Buckets(Sections):
    """Tokens of each bucket, an EOT per document included."""

    totals: list[int]


class TokensResult(Buckets):
    """The unit's first `windows` are [window, hash, document index, dump, first byte]."""

    windows: list[list[int]]
    checked: int


def encode_unit(args: TokensArgs, store: Store) -> Streamed[TokensResult]:
    documents = args.unit.load(store)
    order, chosen = _wanted(documents, args)
    wanted, order = documents.where(chosen), order[chosen]
    index = np.stack([doc_indices(documents, args.first_index)[chosen], wanted.dump], axis=1)
    ids, stored = Ids(args.tokenizer.load(store)), args.unit.tokens
    for place, texts in () if stored else args.unit.texts_of(wanted):
        ids.add(texts, np.arange(len(texts)), wanted.content[place], wanted.ident[place])
    starts, lengths = wanted.place[:, 1:].astype(np.int64).T
    lengths = lengths if stored else ids.lengths()
    train = wanted.partition == TRAIN
    rows, members, cuts = _index(order, index, lengths, np.flatnonzero(train), args.wave)
    long = np.flatnonzero(~train & (lengths >= args.width))

    def write(sink: Sink) -> TokensResult:
        def tokens(some: NDArray) -> Iterator[NDArray]:
            return (ids.found[at] for at in some.tolist())

        if stored:
            rows["start"] = starts[members]
            buckets = (_pointer(rows[a:b], stored, ids.dtype) for a, b in pairwise(cuts))
            bounds, totals = _write_buckets(sink, buckets, ids.dtype)
            begins = stored.start + ids.dtype.itemsize * starts[long]
        else:
            whole = (({"index": rows[a:b]}, tokens(members[a:b])) for a, b in pairwise(cuts))
            bounds, totals = _write_buckets(sink, whole, ids.dtype)
            start = _write_tokens(sink, {}, int(lengths[long].sum()), tokens(long), ids.dtype)
            begins = start + ids.dtype.itemsize * shards.offsets_of(lengths[long])[:-1]
            bounds.append(sink.size)
        names = wanted.ident.take(pa.array(long)).to_pylist()
        windows = _windows(names, lengths[long], index[long], begins, ids.dtype.itemsize, args)
        return {"bounds": bounds, "totals": totals, "windows": windows, "checked": ids.checked}

    return Streamed(write, rows.nbytes + ids.dtype.itemsize * sum(map(len, ids.found)))


def _pointer(
    rows: NDArray, stored: Section, dtype: np.dtype[Any]
) -> tuple[dict[str, NDArray], Iterable[NDArray]]:
    """A bucket whose tokens are one range of what the first pass has stored."""
    first = rows["start"].min() if len(rows) else 0
    stop = (rows["start"] + rows["length"]).max(initial=first)
    rows["start"] -= first
    where = np.array([first, stop - first], np.int64) * dtype.itemsize + [stored.start, 0]
    address = np.frombuffer(bytes.fromhex(stored.address), np.uint8)
    return {"index": rows, "object": address, "range": where}, ()


def _write_buckets(
    sink: Sink, buckets: Iterable[tuple[dict[str, NDArray], Iterable[NDArray]]], dtype: Any
) -> tuple[list[int], list[int]]:
    """A section for each (arrays, tokens in their order): where they begin, tokens of each."""
    bounds, totals = [0], []
    for columns, tokens in buckets:
        total = int(columns["index"]["length"].sum())
        _write_tokens(sink, columns, 0 if "object" in columns else total, tokens, dtype)
        bounds.append(sink.size)
        totals.append(total + len(columns["index"]))
    return bounds, totals


def _write_tokens(
    sink: Sink, before: dict[str, NDArray], total: int, tokens: Iterable[NDArray], dtype: Any
) -> int:
    """A section that ends in tokens, written some documents at a time; where they begin."""
    entries = [(name, array.dtype, len(array)) for name, array in before.items()]
    sink.write(shards.header([*entries, ("tokens", dtype, total)]))
    for array in before.values():
        sink.write(np.ascontiguousarray(array))
        sink.write(shards.padding(array.nbytes))
    start = sink.size
    write_ids(sink, tokens, dtype)
    sink.write(shards.padding(dtype.itemsize * total))
    return start


def _windows(
    names: list[str], lengths: NDArray, index: NDArray, begins: NDArray, size: int, args: TokensArgs
) -> list[list[int]]:
    """The unit's first windows; no later one can be among the first of all units.

    `index` has each document's index and dump, `begins` its first byte; a token has `size` bytes.
    """
    chosen = packing.choose_windows(
        names, lengths.tolist(), width=args.width, count=args.windows, seed=args.seed
    )
    return [
        [window, rank, *index[at].tolist(), int(begins[at]) + size * args.width * window]
        for window, rank, at in chosen
    ]


def _index(
    order: NDArray, index: NDArray, lengths: NDArray, members: NDArray, wave: Wave
) -> tuple[NDArray, NDArray, list[int]]:
    """Index rows of the training documents in stream order, their places, and the buckets'."""
    members = members[np.lexsort((index[members, 0], order[members]))]
    rows = np.empty(len(members), packing.INDEX_ROW)
    rows["order"], rows["length"] = order[members], lengths[members]
    rows["document"], rows["dump"] = index[members].T
    bucket = wave.bucket_of(rows["order"])
    cuts = np.searchsorted(bucket, np.arange(wave.buckets + 1))
    starts = shards.offsets_of(lengths[members])
    rows["start"] = starts[:-1] - starts[cuts][bucket]
    return rows, members, cuts.tolist()


def _wanted(documents: Documents, args: TokensArgs) -> tuple[NDArray, NDArray]:
    """Hashes of kept documents, and which to encode: this wave's; in the first also validation."""
    order = documents.place[:, 0].copy()
    if not args.unit.tokens:
        kept = np.flatnonzero(documents.kept)
        names = documents.ident.take(pa.array(kept))
        order[kept] = order_hashes(names, documents.content[kept], args.seed)
    train = documents.partition == TRAIN
    chosen = train & args.wave.holds(order)
    if args.wave.low == 0:
        chosen |= ~train & (documents.size >= args.width)  # no token is shorter than a byte
    return order, chosen & documents.kept


@dataclass(frozen=True, slots=True)
class MergeArgs(Arguments):
    """One bucket of a coarse wave in some units, to be cut into `count` buckets of a fine one."""

    sections: tuple[Section, ...]
    fine: Wave
    first: int
    count: int


def merge_buckets(args: MergeArgs, store: Store) -> Streamed[Buckets]:
    """Second level of the shuffle: few large objects instead of many small ranges."""
    bucket = _read_bucket(args.sections, store)
    places = args.first + np.arange(args.count + 1)
    cuts = np.searchsorted(args.fine.bucket_of(bucket.index["order"]), places).tolist()

    def buckets() -> Iterator[tuple[dict[str, NDArray], Iterator[NDArray]]]:
        for low, high in pairwise(cuts):
            old, rows = bucket.index[low:high], bucket.index[low:high].copy()
            rows["start"] = shards.offsets_of(old["length"])[:-1]
            where = [bucket.source[low:high], old["start"], old["start"] + old["length"]]
            places = np.stack(where, axis=1).astype(np.int64).tolist()
            tokens = (bucket.tokens[part][start:stop] for part, start, stop in places)
            yield {"index": rows}, tokens

    def write(sink: Sink) -> Buckets:
        bounds, totals = _write_buckets(sink, buckets(), bucket.tokens[0].dtype)
        return {"bounds": bounds, "totals": totals}

    return Streamed(write, bucket.index.nbytes + sum(part.nbytes for part in bucket.tokens))


def _read_bucket(sections: Sequence[Section], store: Store) -> packing.Bucket:
    found = [shards.read(section, store) for section in sections]
    tokens = []
    for part in found:
        values = part["tokens"]
        if "object" in part:
            raw = store.read(part["object"].tobytes().hex(), *part["range"].tolist())
            values = np.frombuffer(raw, values.dtype)
        tokens.append(values)
    return packing.Bucket.of([part["index"] for part in found], tokens)


class Piece(NamedTuple):
    """Some tokens of a bucket's stream: `take` of them after the first `skip`."""

    bucket: tuple[Section, ...]
    skip: int
    take: int


class Window(NamedTuple):
    """A validation row: an object, its first byte there, the document, place in it and dump."""

    address: str
    start: int
    document: int
    offset: int
    dump: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardArgs(Arguments):
    """Rows of a stretch of the training stream, or one row per validation window."""

    width: int
    kind: TokenKind
    pieces: tuple[Piece, ...] = ()
    windows: tuple[Window, ...] = ()


class RowsResult(ShardResult):
    """`dumps` has dump, documents and tokens, for each dump of the rows: one string, because the
    driver holds those of all shards, and 95 dumps in 37,000 shards are 0.5 GB as lists."""

    dumps: str


def make_shard(args: ShardArgs, store: Store) -> Streamed[RowsResult]:
    """A shard of either split; both are one stage, so that neither waits for the other."""
    width, dtype = args.width, np.dtype(args.kind.dtype)
    parts = [packing.stretch(_read_bucket(p.bucket, store), p.skip, p.take) for p in args.pieces]
    for address, start, *place in args.windows:
        raw = store.read(address, start, dtype.itemsize * width)
        parts.append(packing.window(np.frombuffer(raw, dtype), *place))

    def rows(start: int, stop: int) -> NDArray:
        return packing.gather(parts, start * width, stop * width, args.kind)

    bounds, spans = packing.fold(parts, width)
    columns = {"tokens": shards.gathered(len(bounds) - 1, width, dtype, rows)}
    columns |= {name: shards.lists(column, bounds) for name, column in spans.items()}
    made = shard_unit(columns, batch_rows=BATCH_ROWS)
    dumps = " ".join(map(str, packing.by_dump(parts).ravel().tolist()))
    return Streamed(lambda sink: {**made.write(sink), "dumps": dumps}, made.size)


TOKENS: Final = Stage("fineweb-tokens", 4, encode_unit)
MERGE: Final = Stage("fineweb-merge-tokens", 2, merge_buckets)
SHARDS: Final = Stage("fineweb-shards", 3, make_shard)
