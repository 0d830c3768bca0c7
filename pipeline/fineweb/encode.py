"""Tokens of the kept documents, and the shards made of them.

- Pass two over the text: kept training documents whose hash is in the wave, by bucket, and
  validation documents of at least one whole row. Those with fewer bytes than a row has tokens
  cannot fill one and are not encoded.
- A wave is a range of the hash order. The first is sized to hold the rows that are asked for, and
  more follow only if it does not, so ten times the input does not cost ten times the work; rows
  are the same for any waves and buckets.
- A unit's object has a section per bucket (index rows and tokens), then one with the tokens of
  its long validation documents.
- A sample of the texts, chosen by content, is encoded again in every unit, GPT-2's with tiktoken,
  up to a fixed number of bytes.

Usage: `job.run(TOKENS, units)`, then `job.run(SHARDS, …)` as `stream` does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tangobench.pipeline.core import arrays, shards
from tangobench.pipeline.core.arrays import NDArray, Section
from tangobench.pipeline.core.build import Arguments, Stage, Streamed, UnitResult, shard_unit
from tangobench.pipeline.core.hashing import Sink
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.fineweb import packing
from tangobench.pipeline.fineweb.decisions import doc_indices
from tangobench.pipeline.fineweb.documents import TRAIN, DecidedUnit, Documents
from tangobench.pipeline.fineweb.packing import TokenKind
from tangobench.pipeline.tokenizer.base import SAMPLE_SHARE, Tokenizer
from tangobench.pipeline.tokenizer.use import GPT2, Choice

BATCH_ROWS: Final = 64  # one mebibyte of tokens at 8,192 per row
_TOGETHER: Final = 256  # documents, a mebibyte of tokens or so
SAMPLE_BYTES: Final = 1 << 16  # of a unit's 32 MiB: tiktoken takes 25 times as long per byte


@dataclass(frozen=True, slots=True)
class Wave(Arguments):
    """A range of the hash order, cut into equal buckets; the first comes with validation."""

    low: int
    high: int
    buckets: int

    def bucket_of(self, order: NDArray) -> NDArray:
        """The bucket of each hash."""
        return packing.bucket_of(order, self.low, self.high, self.buckets)

    def holds(self, order: NDArray) -> NDArray:
        """Which hashes are in it."""
        place = order >> np.uint64(32)
        return np.asarray((place >= self.low) & (place < self.high))


@dataclass(frozen=True, kw_only=True, slots=True)
class TokensArgs(Arguments):
    """A unit and what is wanted of it; `windows` is how many validation rows are asked for.

    `first_index` is the index of the unit's first document in each partition of the decisions.
    """

    unit: DecidedUnit
    first_index: tuple[int, ...]
    wave: Wave
    width: int
    windows: int
    seed: int
    tokenizer: Choice = GPT2

    def key(self) -> Any:
        """The rules apart."""
        rules = [self.width, self.windows, self.seed, *self.tokenizer.key()]
        return [self.unit.key(), self.first_index, self.wave.key(), rules]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokensResult(UnitResult):
    """Where the sections begin, tokens of each bucket (an EOT per document included), counts."""

    bounds: list[int]
    totals: list[int]
    windows: list[list[int]]
    """[window, hash, document index, first byte]: at most as many as rows are asked for."""
    checked: int

    def section(self, address: str, bucket: int) -> Section:
        """The documents of one bucket."""
        return Section.at(address, self.bounds, bucket)


def encode_unit(args: TokensArgs, store: Store) -> Streamed:
    """The tokens of a unit's documents, by bucket, then the long validation documents."""
    documents = args.unit.load(store)
    index = doc_indices(documents, args.first_index)
    order, chosen = _wanted(documents, args)
    wanted, index, order = documents.where(chosen), index[chosen], order[chosen]
    encoder = args.tokenizer.load(store)
    width = np.dtype(encoder.dtype).itemsize
    texts, checked = _encode(args.unit, wanted, encoder)
    lengths = np.array([len(ids) for ids in texts], np.int64)
    train = wanted.partition == TRAIN
    rows, members, cuts = _index(order, index, lengths, np.flatnonzero(train), args.wave)
    long = np.flatnonzero(~train & (lengths >= args.width))
    totals = [int(rows["length"][a:b].sum()) + b - a for a, b in pairwise(cuts)]

    def write(sink: Sink) -> dict[str, Any]:
        """Sections one by one, tokens of some documents at a time."""
        bounds = [0]
        for low, high in pairwise(cuts):
            chosen = (texts[at] for at in members[low:high].tolist())
            write_bucket(sink, rows[low:high], chosen, encoder.dtype)
            bounds.append(sink.size)
        ids = (texts[at] for at in long.tolist())
        start = _write_tokens(sink, {}, lengths[long], ids, encoder.dtype)
        bounds.append(sink.size)
        names = wanted.ident.take(pa.array(long)).to_pylist()
        windows = _windows(names, lengths[long], index[long], (start, width), args)
        result = TokensResult(bounds=bounds, totals=totals, windows=windows, checked=checked)
        return result.plain()

    size = rows.nbytes + width * int(lengths.sum())
    return Streamed(write, size)


def write_bucket(sink: Sink, rows: NDArray, tokens: Iterable[NDArray], dtype: Any) -> None:
    """A section with index rows and the tokens they point to, which come in their order."""
    _write_tokens(sink, {"index": rows}, rows["length"], tokens, dtype)


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


@dataclass(frozen=True, slots=True)
class MergeArgs(Arguments):
    """One bucket of a coarse wave in some units, to be cut into `count` buckets of a fine one."""

    sections: tuple[Section, ...]
    fine: Wave
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class MergeResult(UnitResult):
    """Where the buckets begin, and the tokens of each (an EOT per document included)."""

    bounds: list[int]
    totals: list[int]


def merge_buckets(args: MergeArgs, store: Store) -> Streamed:
    """Second level of the shuffle: few large objects instead of many small ranges."""
    bucket = read_bucket(args.sections, store)
    index = np.concatenate([*bucket.index, np.empty(0, packing.INDEX_ROW)])
    source = np.repeat(np.arange(len(bucket.index)), [len(part) for part in bucket.index])
    order = np.lexsort((index["document"], index["order"]))
    index, source = index[order], source[order]
    places = args.first + np.arange(args.count + 1)
    cuts = np.searchsorted(args.fine.bucket_of(index["order"]), places).tolist()

    def tokens(low: int, high: int) -> Iterator[NDArray]:
        rows = index[low:high]
        stops = rows["start"] + rows["length"]
        places = zip(source[low:high].tolist(), rows["start"].tolist(), stops.tolist(), strict=True)
        for part, start, stop in places:
            yield bucket.tokens[part][start:stop]

    def write(sink: Sink) -> dict[str, Any]:
        bounds, totals = [0], []
        for low, high in pairwise(cuts):
            rows = index[low:high].copy()
            lengths = rows["length"].astype(np.int64)
            rows["start"] = np.cumsum(lengths) - lengths
            write_bucket(sink, rows, tokens(low, high), bucket.tokens[0].dtype)
            bounds.append(sink.size)
            totals.append(int(lengths.sum()) + high - low)
        return MergeResult(bounds, totals).plain()

    return Streamed(write, sum(section.length for section in args.sections))


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


def _encode(unit: DecidedUnit, wanted: Documents, encoder: Tokenizer) -> tuple[list[NDArray], int]:
    """Ids of the wanted rows of a unit; a sample is encoded again on the way."""
    rows = wanted.row
    share = _sample(wanted.content[:, 1], wanted.size)
    found: list[NDArray] = []
    first = 0
    for batch in unit.reading.texts() if len(rows) else ():
        low, high = np.searchsorted(rows, [first, first + len(batch)])
        texts = pick(batch, rows[low:high] - first)
        first += len(batch)
        found += encoder.encode_arrow(texts)
        for at in np.flatnonzero(share[low:high]).tolist():
            name = wanted.ident[int(low) + at].as_py()
            encoder.check(texts[at].as_py(), found[int(low) + at], name)
    return found, int(share.sum())


def _sample(keys: NDArray, sizes: NDArray) -> NDArray:
    """Which documents are encoded again: one in `SAMPLE_SHARE` by content, up to `SAMPLE_BYTES`.

    Where none is chosen, or the first is longer than that, the shortest document is.
    """
    chosen: NDArray = keys % np.uint64(SAMPLE_SHARE) == 0
    chosen &= np.cumsum(np.where(chosen, sizes, 0)) <= SAMPLE_BYTES
    if len(chosen) and not chosen.any():
        chosen[np.argmin(sizes)] = True
    return chosen


def pick(array: pa.Array, rows: NDArray) -> pa.Array:
    """Some values of an array in order; all of them are not copied."""
    return array if len(rows) == len(array) else array.take(pa.array(rows))


@dataclass(frozen=True, slots=True)
class Piece(Arguments):
    """Some tokens of a bucket's stream: `take` of them after the first `skip`."""

    bucket: tuple[Section, ...]
    skip: int
    take: int


@dataclass(frozen=True, slots=True)
class TrainShard(Arguments):
    """Rows of a stretch of the training stream."""

    width: int
    kind: TokenKind
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Window(Arguments):
    """A validation row: an object, its first byte there, the document and the place in it."""

    address: str
    start: int
    document: int
    offset: int


@dataclass(frozen=True, slots=True)
class ValidationShard(Arguments):
    """One row per window; a window lies inside one document."""

    width: int
    kind: TokenKind
    windows: tuple[Window, ...]


def make_shard(args: TrainShard | ValidationShard, store: Store) -> Streamed:
    """A shard of either split; both are one stage, so that neither waits for the other."""
    if isinstance(args, ValidationShard):
        return _validation_shard(args, store)
    width = args.width
    parts = [packing.stretch(read_bucket(p.bucket, store), p.skip, p.take) for p in args.pieces]

    def rows(start: int, stop: int) -> NDArray:
        return packing.gather(parts, start * width, stop * width, args.kind)

    count = sum(part.size for part in parts) // width
    tokens = shards.gathered(count, width, args.kind.dtype, rows)
    return _shard(tokens, packing.fold(parts, width))


def read_bucket(sections: Sequence[Section], store: Store) -> packing.Bucket:
    """The documents of a bucket."""
    found = [arrays.read(section, store) for section in sections]
    return packing.Bucket([part["index"] for part in found], [part["tokens"] for part in found])


def _validation_shard(args: ValidationShard, store: Store) -> Streamed:
    windows, width = args.windows, args.width
    count = len(windows)
    tokens = np.empty((count, width), args.kind.dtype)
    for row, window in enumerate(windows):
        raw = store.read_range(window.address, window.start, tokens.itemsize * width)
        tokens[row] = np.frombuffer(raw, tokens.dtype)
    spans = packing.Spans(
        bounds=np.arange(count + 1),
        doc_index=np.array([window.document for window in windows], np.uint32),
        doc_start=np.zeros(count, np.uint16),
        doc_offset=np.array([window.offset for window in windows], np.uint32),
    )
    return _shard(shards.fixed(tokens), spans)


def _shard(tokens: shards.Column, spans: packing.Spans) -> Streamed:
    return shard_unit(
        {
            "tokens": tokens,
            "doc_index": shards.lists(spans.doc_index, spans.bounds),
            "doc_start": shards.lists(spans.doc_start, spans.bounds),
            "doc_offset": shards.lists(spans.doc_offset, spans.bounds),
        },
        batch_rows=BATCH_ROWS,
    )


TOKENS: Final = Stage("fineweb-tokens", 3, encode_unit)
MERGE: Final = Stage("fineweb-merge-tokens", 1, merge_buckets)
SHARDS: Final = Stage("fineweb-shards", 2, make_shard)
