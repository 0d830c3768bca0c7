"""From texts to rows: ids, documents in hash order, cut into rows; windows of single documents.

- A sample of the texts, chosen by content, is encoded again in every unit, GPT-2's with tiktoken,
  up to a fixed number of bytes; where none is chosen, the shortest text is.
- The stream is every document in the order of a seeded hash, each followed by EOT; row r is tokens
  [r * width, (r + 1) * width) of it. Only the stream's ragged tail is lost.
- Hash buckets are the units: their token counts and a prefix sum tell which tokens a shard holds,
  so a shard reads its own buckets only and never depends on another shard.
- A span says which document a part of a row comes from; the EOT belongs to the one that it ends.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tangobench.pipeline.core.build import Arguments
from tangobench.pipeline.core.hashing import Sink
from tangobench.pipeline.core.shards import NDArray
from tangobench.pipeline.fineweb.spec import Spec
from tangobench.pipeline.tokenizer.base import SAMPLE_SHARE, Tokenizer
from tangobench.pipeline.tokenizer.use import Choice

BYTES_PER_TOKEN: Final = 5.2  # English web text has 4.4 to 4.9; more means a second wave is rare
SAMPLE_BYTES: Final = 1 << 16  # of a unit's 32 MiB: tiktoken takes 25 times as long per byte
_TOGETHER: Final = 256  # documents that are written at once, a mebibyte of tokens or so
INDEX_ROW: Final = np.dtype(
    [("order", "<u8"), ("document", "<u4"), ("length", "<u4"), ("start", "<u8"), ("dump", "<u4")]
)


def one_pass(spec: Spec, size: float) -> bool:
    """Whether the rows take at least half of an input; `size` is that of all listed files' row
    groups before compression, copies of a file included: `plan` knows no more than the footers."""
    return spec.train_rows * spec.context * BYTES_PER_TOKEN >= size / 2


@dataclass(frozen=True, slots=True)
class Encoding(Arguments):
    """What the first pass encodes: training dumps, and later texts of at least `shortest` bytes."""

    seed: int
    shortest: int
    tokenizer: Choice


class Ids:
    """`found` has the ids of each text, in the order in which texts were added.

    Equal texts are encoded once and share one array: a file of 60 kB can hold 12,000 copies of a
    long text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.dtype = np.dtype(tokenizer.dtype)
        self.found: list[NDArray] = []
        self.checked = 0
        self._tokenizer, self._sampled = tokenizer, 0
        self._known: dict[bytes, NDArray] = {}
        self._shortest: tuple[str, NDArray, str] | None = None

    def add(self, texts: pa.Array, places: NDArray, content: NDArray, names: pa.Array) -> None:
        """Encode the texts at `places`; `content` has their content keys as two columns."""
        raw, at = content.tobytes(), places.tolist()
        keys = [raw[start : start + 16] for start in range(0, len(raw), 16)]
        new = {key: n for n, key in zip(at, keys, strict=True) if key not in self._known}
        found = self._tokenizer.encode_arrow(texts, list(new.values()))
        self._known.update(zip(new, found, strict=True))
        ids = [self._known[key] for key in keys]
        self.found += ids
        sizes = pc.binary_length(texts).to_numpy()[places]
        chosen = content[:, 1] % np.uint64(SAMPLE_SHARE) == 0
        sampled = self._sampled + np.cumsum(np.where(chosen, sizes, 0))
        for n in np.flatnonzero(chosen & (sampled <= SAMPLE_BYTES)).tolist():
            self._check(texts[at[n]].as_py(), ids[n], names[n].as_py())
        if len(sizes):
            self._sampled, n = int(sampled[-1]), int(np.argmin(sizes))
            if self._shortest is None or sizes[n] < len(self._shortest[0].encode()):
                self._shortest = (texts[at[n]].as_py(), ids[n], names[n].as_py())

    def _check(self, text: str, ids: NDArray, name: str) -> None:
        self._tokenizer.check(text, ids, name)
        self.checked += 1

    def lengths(self) -> NDArray:
        """How many ids each text has; called when all texts are there."""
        if self._shortest is not None and not self.checked:
            self._check(*self._shortest)
        return np.array([len(ids) for ids in self.found], np.int64)


def write_ids(sink: Sink, ids: Iterable[NDArray], dtype: np.dtype[np.generic]) -> None:
    waiting = iter(ids)
    while some := list(itertools.islice(waiting, _TOGETHER)):
        sink.write(np.concatenate(some, dtype=dtype, casting="same_kind"))


def order_hash(ident: str, content: bytes, seed: int) -> int:
    """The hash by which documents are sorted into the training stream."""
    return xxhash.xxh3_64_intdigest(ident.encode() + b"\0" + content, seed)


def order_hashes(idents: pa.Array, content: NDArray, seed: int) -> NDArray:
    """The same of many, given their content keys as two columns."""
    raw = content.astype(">u8").tobytes()
    names = enumerate(idents.to_pylist())
    return np.array([order_hash(name, raw[16 * n : 16 * n + 16], seed) for n, name in names], "u8")


class TokenKind(NamedTuple):
    """The type of ids in rows, as numpy spells it, and the id that ends a document."""

    dtype: str
    eot: int


def window_hash(ident: str, window: int, seed: int) -> int:
    """A validation window's place among the windows of its round."""
    return xxhash.xxh3_64_intdigest(f"{ident}\0{window}".encode(), seed)


@dataclass(frozen=True, slots=True)
class Wave(Arguments):
    """A range of the hash order, in units of 2^32, cut into equal buckets."""

    low: int
    high: int
    buckets: int

    def bucket_of(self, order: NDArray) -> NDArray:
        place = (order >> np.uint64(32)) - np.uint64(self.low)
        return place * np.uint64(self.buckets) // np.uint64(self.high - self.low)

    def holds(self, order: NDArray) -> NDArray:
        place = order >> np.uint64(32)
        return np.asarray((place >= self.low) & (place < self.high))


@dataclass(frozen=True, slots=True)
class Bucket:
    """Documents in stream order: index rows, and which array of tokens each points into."""

    index: NDArray
    source: NDArray
    tokens: Sequence[NDArray]

    @classmethod
    def of(cls, parts: Sequence[NDArray], tokens: Sequence[NDArray]) -> Bucket:
        index = np.concatenate([*parts, np.empty(0, INDEX_ROW)])
        source = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        order = np.lexsort((index["document"], index["order"]))
        return cls(index[order], source[order], tokens)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some tokens of a bucket's stream: where they are, to be fetched a few rows at a time.

    `spans` are (place, document, offset in the document), by place, `dump` the documents' dumps.
    The text of span i ends before `stops[i]`, where its EOT stands if it is `closed`; its token at
    place p is `tokens[source[i]][p + shift[i]]`.
    """

    size: int
    spans: NDArray
    dump: NDArray
    stops: NDArray
    closed: NDArray
    source: NDArray
    shift: NDArray
    tokens: Sequence[NDArray]

    def fill(self, values: NDArray, start: int, eot: int) -> None:
        """Put tokens [start, start + len(values)) into `values`."""
        stop = start + len(values)
        places = self.spans[:, 0]
        first = int(np.searchsorted(places, start, side="right")) - 1
        found = slice(first, int(np.searchsorted(places, stop, side="left")))
        low = np.maximum(places[found], start)
        high = np.clip(self.stops[found], low, stop)
        where = [self.source[found], low - start, high - start, self.shift[found] + start]
        for part, begin, end, shift in np.stack(where, axis=1).tolist():
            values[begin:end] = self.tokens[part][begin + shift : end + shift]
        ends = self.stops[found][self.closed[found]]
        values[ends[(ends >= start) & (ends < stop)] - start] = eot


def stretch(bucket: Bucket, skip: int, take: int) -> Stretch:
    """Tokens [skip, skip + take) of a bucket's stream."""
    ends = np.cumsum(bucket.index["length"].astype(np.int64) + 1)
    begins = np.append(0, ends[:-1])
    first = int(np.searchsorted(ends, skip, side="right"))
    last = int(np.searchsorted(begins, skip + take, side="left"))
    index, source = bucket.index[first:last], bucket.source[first:last]
    begins, ends = begins[first:last] - skip, ends[first:last] - skip
    low = np.maximum(begins, 0)
    return Stretch(
        size=take,
        spans=np.stack([low, index["document"], low - begins], axis=1),
        dump=index["dump"],
        stops=np.minimum(ends - 1, take),
        closed=ends <= take,
        source=source,
        shift=index["start"].astype(np.int64) - begins,
        tokens=bucket.tokens,
    )


def window(tokens: NDArray, document: int, offset: int, dump: int) -> Stretch:
    """A row inside one document, from `offset` on."""
    size, zero = np.array([len(tokens)]), np.zeros(1, np.int64)
    spans = np.array([[0, document, offset]])
    dumps = np.array([dump], np.uint32)
    return Stretch(len(tokens), spans, dumps, size, np.zeros(1, np.bool_), zero, zero, [tokens])


def by_dump(stretches: Sequence[Stretch]) -> NDArray:
    """(dump, documents, tokens) of some stretches; a document counts where its first token is."""
    dumps = np.concatenate([np.empty(0, np.uint32), *(part.dump for part in stretches)])
    found, which = np.unique(dumps, return_inverse=True)
    first = [part.spans[:, 2] == 0 for part in stretches]
    sizes = [np.diff(part.spans[:, 0], append=part.size) for part in stretches]
    counts = (
        np.bincount(which, np.concatenate([[], *part]), len(found)) for part in (first, sizes)
    )
    return np.stack([found, *counts], axis=1).astype(np.int64)


def gather(stretches: Sequence[Stretch], start: int, stop: int, kind: TokenKind) -> NDArray:
    """Tokens [start, stop) of some stretches, one after another."""
    values = np.empty(stop - start, kind.dtype)
    done = 0
    for part in stretches:
        low, high = max(start, done), min(stop, done + part.size)
        if low < high:
            part.fill(values[low - start : high - start], low - done, kind.eot)
        done += part.size
    return values


def fold(stretches: Sequence[Stretch], width: int) -> tuple[NDArray, dict[str, NDArray]]:
    """The spans of some stretches, by row; a span that crosses row ends is split there.

    Lists are flat: row i's are `[bounds[i]:bounds[i + 1]]`, given `bounds` and the columns.
    """
    starts = np.cumsum([0, *(part.size for part in stretches)])
    moved = [p.spans + np.array([s, 0, 0]) for p, s in zip(stretches, starts, strict=False)]
    spans = np.concatenate([np.empty((0, 3), np.int64), *moved])
    count = int(starts[-1]) // width
    place = spans[:, 0]
    edges = np.arange(count, dtype=np.int64) * width
    owner = np.searchsorted(place, edges, side="right") - 1
    inherited = np.stack([edges, spans[owner, 1], spans[owner, 2] + edges - place[owner]], axis=1)
    merged = np.concatenate([spans, inherited[place[owner] != edges]])
    merged = merged[np.argsort(merged[:, 0], kind="stable")]
    row = merged[:, 0] // width
    return np.searchsorted(row, np.arange(count + 1)), {
        "doc_index": merged[:, 1].astype(np.uint32),
        "doc_start": (merged[:, 0] % width).astype(np.uint16),
        "doc_offset": merged[:, 2].astype(np.uint32),
    }


def pieces(totals: Sequence[int] | NDArray, start: int, stop: int) -> list[tuple[int, int, int]]:
    """(bucket, skip, take) for tokens [start, stop) of a stream of buckets with these totals."""
    ends = np.cumsum(np.asarray(totals, np.int64))
    begins = np.append(0, ends[:-1])
    low, high = np.maximum(begins, start), np.minimum(ends, stop)
    found = np.stack([np.arange(len(ends)), low - begins, high - low], axis=1)
    return list(map(tuple, found[high > low].tolist()))


def choose_windows(
    idents: Sequence[str], lengths: Sequence[int], *, width: int, count: int, seed: int
) -> list[tuple[int, int, int]]:
    """The first `count` (window, hash, document) among documents of at least `width` tokens."""
    everyone = (
        (window, window_hash(ident, window, seed), document)
        for document, (ident, length) in enumerate(zip(idents, lengths, strict=True))
        for window in range(length // width)
    )
    return heapq.nsmallest(count, everyone)
