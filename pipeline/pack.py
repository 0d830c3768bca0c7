"""Packing: documents in hash order, cut into rows; validation windows inside single documents.

- The stream is every document in the order of a seeded hash, each followed by EOT; row r is tokens
  [r * width, (r + 1) * width) of it. Only the stream's ragged tail is lost.
- Hash buckets are the units: their token counts and a prefix sum tell which tokens a shard holds,
  so a shard reads its own buckets only and never depends on another shard.
- A span says which document a part of a row comes from: `doc_start` is its place in the row,
  `doc_offset` its place in the document. The EOT belongs to the document that it ends.
- Validation windows never cross a document: window 0 of every document, then window 1, and so on,
  each round in hash order.

Usage: `rows = cut(bucket, first_token, stop_token, width=8192)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xxhash

from tangobench.pipeline.tokens import EOT

Array = np.ndarray[Any, np.dtype[Any]]

INDEX_ROW: Final = np.dtype(
    [("order", "<u8"), ("document", "<u4"), ("length", "<u4"), ("start", "<u8")]
)


def order_hash(ident: str, content: bytes, seed: int) -> int:
    """A document's place in the training stream."""
    return xxhash.xxh3_64_intdigest(ident.encode() + b"\0" + content, seed)


def window_hash(ident: str, window: int, seed: int) -> int:
    """A validation window's place among the windows of its round."""
    return xxhash.xxh3_64_intdigest(f"{ident}\0{window}".encode(), seed)


@dataclass(frozen=True, slots=True)
class Rows:
    """Whole rows with their spans; span lists are flat, row i's are `bounds[i]:bounds[i + 1]`."""

    tokens: Array
    bounds: Array
    doc_index: Array
    doc_start: Array
    doc_offset: Array


@dataclass(frozen=True, slots=True)
class Bucket:
    """Documents of one bucket: index parts (`INDEX_ROW`) and the token arrays they point into."""

    index: Sequence[Array]
    tokens: Sequence[Array]


def bucket_of(order: Array, low: int, high: int, buckets: int) -> Array:
    """Which of `buckets` equal ranges of [low, high) a hash falls into; ranges are in 32 bits."""
    place = (order >> np.uint64(32)) - np.uint64(low)
    return np.asarray(place * np.uint64(buckets) // np.uint64(high - low), np.int64)


def stream(bucket: Bucket, skip: int, take: int) -> tuple[Array, Array]:
    """Tokens [skip, skip + take) of a bucket's stream, and its spans.

    A span is (place in the answer, document, offset in the document).
    """
    index = np.concatenate([*bucket.index, np.empty(0, INDEX_ROW)])
    source = np.repeat(np.arange(len(bucket.index)), [len(part) for part in bucket.index])
    order = np.lexsort((index["document"], index["order"]))
    index, source = index[order], source[order]
    ends = np.cumsum(index["length"].astype(np.int64) + 1)
    begins = ends - index["length"].astype(np.int64) - 1
    first = int(np.searchsorted(ends, skip, side="right"))
    last = int(np.searchsorted(begins, skip + take, side="left"))
    values = np.empty(take, np.uint16)
    taken = slice(first, last)
    low = np.maximum(begins[taken], skip)
    text_stop = np.minimum(ends[taken] - 1, skip + take)
    starts = index["start"][taken].astype(np.int64) - begins[taken]
    where = zip(
        source[taken].tolist(),
        low.tolist(),
        np.maximum(text_stop, low).tolist(),
        starts.tolist(),
        strict=True,
    )
    for part, begin, stop, shift in where:
        values[begin - skip : stop - skip] = bucket.tokens[part][begin + shift : stop + shift]
    closed = ends[taken][ends[taken] <= skip + take]
    values[closed - 1 - skip] = EOT
    spans = np.stack([low - skip, index["document"][taken], low - begins[taken]], axis=1)
    return values, spans


def fold(values: Array, spans: Array, width: int) -> Rows:
    """A stretch of the stream as rows; a span that crosses row ends is split there."""
    count = len(values) // width
    place = spans[:, 0]
    edges = np.arange(count, dtype=np.int64) * width
    owner = np.searchsorted(place, edges, side="right") - 1
    inherited = np.stack(
        [edges, spans[owner, 1], spans[owner, 2] + edges - place[owner]], axis=1
    ).reshape(-1, 3)
    merged = np.concatenate([spans, inherited[place[owner] != edges]])
    merged = merged[np.argsort(merged[:, 0], kind="stable")]
    row = merged[:, 0] // width
    return Rows(
        tokens=values.reshape(count, width),
        bounds=np.searchsorted(row, np.arange(count + 1)),
        doc_index=merged[:, 1].astype(np.uint32),
        doc_start=(merged[:, 0] % width).astype(np.uint16),
        doc_offset=merged[:, 2].astype(np.uint32),
    )


def pieces(totals: Sequence[int], start: int, stop: int) -> list[tuple[int, int, int]]:
    """(bucket, skip, take) for tokens [start, stop) of a stream of buckets with these totals."""
    ends = np.cumsum(np.asarray(totals, np.int64))
    found: list[tuple[int, int, int]] = []
    for bucket in range(int(np.searchsorted(ends, start, side="right")), len(totals)):
        begin = int(ends[bucket]) - totals[bucket]
        if begin >= stop:
            break
        low, high = max(begin, start), min(int(ends[bucket]), stop)
        if high > low:
            found.append((bucket, low - begin, high - low))
    return found


def choose_windows(
    idents: Sequence[str], lengths: Sequence[int], *, width: int, count: int, seed: int
) -> list[tuple[int, int]]:
    """The first `count` (document, window) pairs among documents of at least `width` tokens."""
    ranked = sorted(
        (window, window_hash(ident, window, seed), document)
        for document, (ident, length) in enumerate(zip(idents, lengths, strict=True))
        for window in range(length // width)
    )
    return [(document, window) for window, _, document in ranked[:count]]
