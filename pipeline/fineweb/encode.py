"""Tokens of the kept documents, and the shards made of them.

- Pass two over the text: kept training documents whose hash is in the wave, by bucket, and
  validation documents of at least one whole row. Those with fewer bytes than a row has tokens
  cannot fill one and are not encoded.
- A unit's object has a section per bucket (index rows and tokens), then one with the tokens of
  its long validation documents.
- A sample of the texts, chosen by content, is encoded again in every unit, GPT-2's with tiktoken,
  up to a fixed number of bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tangobench.pipeline.core import arrays, shards
from tangobench.pipeline.core.arrays import NDArray, Section, Sections
from tangobench.pipeline.core.build import Arguments, ShardResult, Stage, Streamed, shard_unit
from tangobench.pipeline.core.hashing import Sink
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.fineweb import packing
from tangobench.pipeline.fineweb.decisions import doc_indices
from tangobench.pipeline.fineweb.documents import TRAIN, Documents, DocumentUnit
from tangobench.pipeline.fineweb.packing import TokenKind, Wave
from tangobench.pipeline.tokenizer.base import SAMPLE_SHARE, Tokenizer
from tangobench.pipeline.tokenizer.use import GPT2, Choice

BATCH_ROWS: Final = 64  # one mebibyte of tokens at 8,192 per row
_TOGETHER: Final = 256  # documents, a mebibyte of tokens or so
SAMPLE_BYTES: Final = 1 << 16  # of a unit's 32 MiB: tiktoken takes 25 times as long per byte


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
    """The unit's first `windows` are [window, hash, document index, first byte]."""

    windows: list[list[int]]
    checked: int


def encode_unit(args: TokensArgs, store: Store) -> Streamed[TokensResult]:
    """The tokens of a unit's documents, by bucket, then the long validation documents."""
    documents = args.unit.load(store)
    order, chosen = _wanted(documents, args)
    wanted, order = documents.where(chosen), order[chosen]
    index = doc_indices(documents, args.first_index)[chosen]
    encoder = args.tokenizer.load(store)
    texts, checked = _encode(args.unit, wanted, encoder)
    lengths = np.array([len(ids) for ids in texts], np.int64)
    train = wanted.partition == TRAIN
    rows, members, cuts = _index(order, index, lengths, np.flatnonzero(train), args.wave)
    long = np.flatnonzero(~train & (lengths >= args.width))
    itemsize = np.dtype(encoder.dtype).itemsize

    def write(sink: Sink) -> TokensResult:
        """Sections one by one, tokens of some documents at a time."""
        buckets = (
            (rows[a:b], (texts[at] for at in members[a:b].tolist())) for a, b in pairwise(cuts)
        )
        bounds, totals = _write_buckets(sink, buckets, encoder.dtype)
        ids = (texts[at] for at in long.tolist())
        start = _write_tokens(sink, {}, lengths[long], ids, encoder.dtype)
        names = wanted.ident.take(pa.array(long)).to_pylist()
        windows = _windows(names, lengths[long], index[long], (start, itemsize), args)
        bounds.append(sink.size)
        return {"bounds": bounds, "totals": totals, "windows": windows, "checked": checked}

    return Streamed(write, rows.nbytes + itemsize * int(lengths.sum()))


def _write_buckets(
    sink: Sink, buckets: Iterable[tuple[NDArray, Iterable[NDArray]]], dtype: Any
) -> tuple[list[int], list[int]]:
    """A section for each (index rows, tokens in their order): where they begin, tokens of each."""
    bounds, totals = [0], []
    for rows, tokens in buckets:
        _write_tokens(sink, {"index": rows}, rows["length"], tokens, dtype)
        bounds.append(sink.size)
        totals.append(int(rows["length"].sum()) + len(rows))
    return bounds, totals


def _write_tokens(
    sink: Sink, before: dict[str, NDArray], lengths: NDArray, tokens: Iterable[NDArray], dtype: Any
) -> int:
    """A section that ends in tokens, written some documents at a time; where they begin."""
    total = int(lengths.sum())
    entries = [(name, array.dtype, len(array)) for name, array in before.items()]
    sink.write(arrays.header([*entries, ("tokens", np.dtype(dtype), total)]))
    for array in before.values():
        sink.write(np.ascontiguousarray(array))
        sink.write(arrays.padding(array.nbytes))
    start = sink.size
    waiting = iter(tokens)
    while some := list(itertools.islice(waiting, _TOGETHER)):
        sink.write(np.concatenate(some, dtype=dtype, casting="same_kind"))
    sink.write(arrays.padding(np.dtype(dtype).itemsize * total))
    return start


def _windows(
    names: list[str], lengths: NDArray, index: NDArray, first: tuple[int, int], args: TokensArgs
) -> list[list[int]]:
    """The unit's first windows; no later one can be among the first of all units.

    `first` is where the tokens begin, and how many bytes one has.
    """
    start, size = first
    begins = start + size * (np.cumsum(lengths) - lengths)
    chosen = packing.choose_windows(
        names, lengths.tolist(), width=args.width, count=args.windows, seed=args.seed
    )
    return [
        [window, rank, int(index[at]), int(begins[at]) + size * args.width * window]
        for window, rank, at in chosen
    ]


def _index(
    order: NDArray, index: NDArray, lengths: NDArray, members: NDArray, wave: Wave
) -> tuple[NDArray, NDArray, list[int]]:
    """Index rows of the training documents in stream order, their places, and the buckets'."""
    members = members[np.lexsort((index[members], order[members]))]
    rows = np.empty(len(members), packing.INDEX_ROW)
    rows["order"], rows["document"] = order[members], index[members]
    rows["length"] = lengths[members]
    bucket = wave.bucket_of(rows["order"])
    cuts = np.searchsorted(bucket, np.arange(wave.buckets + 1))
    starts = np.append(0, np.cumsum(lengths[members]))
    rows["start"] = starts[:-1] - starts[cuts][bucket]
    return rows, members, cuts.tolist()


def _wanted(documents: Documents, args: TokensArgs) -> tuple[NDArray, NDArray]:
    """Hashes of kept documents, and which to encode: this wave's; in the first also validation."""
    order = np.zeros(len(documents), np.uint64)
    kept = np.flatnonzero(documents.kept)
    names = documents.ident.take(pa.array(kept)).to_pylist()
    content = documents.content[kept].astype(">u8").tobytes()
    order[kept] = [
        packing.order_hash(name, content[16 * n : 16 * n + 16], args.seed)
        for n, name in enumerate(names)
    ]
    train = documents.partition == TRAIN
    chosen = train & args.wave.holds(order)
    if args.wave.low == 0:
        chosen |= ~train & (documents.size >= args.width)  # no token is shorter than a byte
    return order, chosen & documents.kept


def _encode(unit: DocumentUnit, wanted: Documents, encoder: Tokenizer) -> tuple[list[NDArray], int]:
    """Ids of the wanted rows of a unit; a sample is encoded again on the way."""
    again = _sample(wanted.content[:, 1], wanted.size)
    found: list[NDArray] = []
    for place, texts in unit.texts_of(wanted):
        found += encoder.encode_arrow(texts)
        for at in np.flatnonzero(again[place]).tolist():
            number = place.start + at
            encoder.check(texts[at].as_py(), found[number], wanted.ident[number].as_py())
    return found, int(again.sum())


def _sample(keys: NDArray, sizes: NDArray) -> NDArray:
    """Which documents are encoded again: one in `SAMPLE_SHARE` by content, up to `SAMPLE_BYTES`.

    Where none is chosen, or the first is longer than that, the shortest document is.
    """
    chosen: NDArray = keys % np.uint64(SAMPLE_SHARE) == 0
    chosen &= np.cumsum(np.where(chosen, sizes, 0)) <= SAMPLE_BYTES
    if len(chosen) and not chosen.any():
        chosen[np.argmin(sizes)] = True
    return chosen


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

    def tokens(rows: NDArray, source: NDArray) -> Iterator[NDArray]:
        stops = rows["start"] + rows["length"]
        where = zip(source.tolist(), rows["start"].tolist(), stops.tolist(), strict=True)
        return (bucket.tokens[part][start:stop] for part, start, stop in where)

    def buckets() -> Iterator[tuple[NDArray, Iterator[NDArray]]]:
        for low, high in pairwise(cuts):
            old = bucket.index[low:high]
            rows, lengths = old.copy(), old["length"].astype(np.int64)
            rows["start"] = np.cumsum(lengths) - lengths
            yield rows, tokens(old, bucket.source[low:high])

    def write(sink: Sink) -> Buckets:
        bounds, totals = _write_buckets(sink, buckets(), bucket.tokens[0].dtype)
        return {"bounds": bounds, "totals": totals}

    return Streamed(write, sum(section.length for section in args.sections))


def _read_bucket(sections: Sequence[Section], store: Store) -> packing.Bucket:
    found = [arrays.read(section, store) for section in sections]
    return packing.Bucket.of([part["index"] for part in found], [part["tokens"] for part in found])


class Piece(NamedTuple):
    """Some tokens of a bucket's stream: `take` of them after the first `skip`."""

    bucket: tuple[Section, ...]
    skip: int
    take: int


class Window(NamedTuple):
    """A validation row: an object, its first byte there, the document and the place in it."""

    address: str
    start: int
    document: int
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardArgs(Arguments):
    """Rows of a stretch of the training stream, or one row per validation window."""

    width: int
    kind: TokenKind
    pieces: tuple[Piece, ...] = ()
    windows: tuple[Window, ...] = ()


def make_shard(args: ShardArgs, store: Store) -> Streamed[ShardResult]:
    """A shard of either split; both are one stage, so that neither waits for the other."""
    width, dtype = args.width, np.dtype(args.kind.dtype)
    parts = [packing.stretch(_read_bucket(p.bucket, store), p.skip, p.take) for p in args.pieces]
    for address, start, document, offset in args.windows:
        raw = store.read_range(address, start, dtype.itemsize * width)
        parts.append(packing.window(np.frombuffer(raw, dtype), document, offset))

    def rows(start: int, stop: int) -> NDArray:
        return packing.gather(parts, start * width, stop * width, args.kind)

    spans = packing.fold(parts, width)
    columns = {"tokens": shards.gathered(len(spans.bounds) - 1, width, dtype, rows)}
    for name in ("doc_index", "doc_start", "doc_offset"):
        columns[name] = shards.lists(getattr(spans, name), spans.bounds)
    return shard_unit(columns, batch_rows=BATCH_ROWS)


TOKENS: Final = Stage("fineweb-tokens", 3, encode_unit)
MERGE: Final = Stage("fineweb-merge-tokens", 1, merge_buckets)
SHARDS: Final = Stage("fineweb-shards", 2, make_shard)
