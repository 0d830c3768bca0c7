"""Tokens of the kept documents, and the shards made of them.

- Pass two over the text: kept training documents whose hash lies in the wave, by bucket, and
  validation documents of at least one whole row.
- A wave is a range of the hash order. The first is sized to hold the rows that are asked for, and
  more follow only if it does not, so ten times the input does not cost ten times the work; rows
  are the same for any waves and buckets.
- A sample of the texts, chosen by content, is encoded again with tiktoken in every unit, up to a
  fixed number of bytes.

Usage: `job.run(TOKENS, units)`, then `job.run(SHARDS, …)` as `fineweb` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from tangobench.pipeline import pack, shards
from tangobench.pipeline.build import Stage, Streamed, shard_unit
from tangobench.pipeline.fineweb_decisions import TRAIN as TRAIN_PARTITION
from tangobench.pipeline.fineweb_decisions import doc_indices, unit_documents
from tangobench.pipeline.fineweb_keys import read_texts
from tangobench.pipeline.hashing import Sink
from tangobench.pipeline.store import Store
from tangobench.pipeline.tokens import SAMPLE_SHARE, gpt2

Array = np.ndarray[Any, np.dtype[Any]]
BATCH_ROWS: Final = 64  # one mebibyte of tokens at 8,192 per row
_TOGETHER: Final = 256  # documents, a mebibyte of tokens or so
SAMPLE_BYTES: Final = 1 << 16  # of a unit's 32 MiB: tiktoken takes 25 times as long per byte


def encode_unit(args: dict[str, Any], store: Store) -> Streamed:
    """The tokens of a unit's documents, by bucket, then the long validation documents."""
    documents = unit_documents(args, store)
    documents = documents.with_columns(
        doc_index=pl.Series(doc_indices(documents, args["first_index"]))
    )
    wanted = _wanted(documents, args)
    texts, checked = _encode(args, wanted)
    lengths = np.array([len(ids) for ids in texts], np.int64)
    train = wanted["partition"].to_numpy() == TRAIN_PARTITION
    rows, bounds = _index(wanted, lengths, np.flatnonzero(train), args)
    long = np.flatnonzero(~train & (lengths >= args["width"]))
    members = [*rows["member"].tolist(), *long.tolist()]
    found = wanted[long.tolist()].select("id", "doc_index").rows()
    result = {
        **bounds,
        "train_documents": len(rows),
        "validation": [[*row, int(lengths[at])] for row, at in zip(found, long, strict=True)],
        "validation_documents": int((~train).sum()),
        "checked": checked,
    }
    index = rows["row"].tobytes()

    def write(sink: Sink) -> dict[str, Any]:
        """Index rows, then tokens, some documents at a time."""
        sink.write(index)
        for first in range(0, len(members), _TOGETHER):
            some = [texts[at] for at in members[first : first + _TOGETHER]]
            sink.write(np.concatenate(some, dtype=np.uint16, casting="same_kind"))
        return result

    return Streamed(write, len(index) + 2 * int(lengths[members].sum()))


def _index(
    wanted: pl.DataFrame, lengths: Array, members: Array, args: dict[str, Any]
) -> tuple[Array, dict[str, list[int]]]:
    """Index rows of the training documents in stream order, and where each bucket begins."""
    low, high = args["wave"]
    hashes = wanted["order"].to_numpy()[members]
    document = wanted["doc_index"].to_numpy()[members]
    order = np.lexsort((document, hashes))
    members, hashes = members[order], hashes[order]
    rows = np.empty(len(members), [("row", pack.INDEX_ROW), ("member", np.int64)])
    rows["member"] = members
    rows["row"]["order"], rows["row"]["document"] = hashes, document[order]
    rows["row"]["length"] = lengths[members]
    bucket = pack.bucket_of(hashes, low, high, args["buckets"])
    ends = np.cumsum(lengths[members])
    starts = ends - lengths[members]
    doc_bounds = np.searchsorted(bucket, np.arange(args["buckets"] + 1))
    token_bounds = np.append(starts, int(lengths[members].sum()))[doc_bounds]
    rows["row"]["start"] = starts - token_bounds[bucket]
    return rows, {"doc_bounds": doc_bounds.tolist(), "token_bounds": token_bounds.tolist()}


def _wanted(documents: pl.DataFrame, args: dict[str, Any]) -> pl.DataFrame:
    """Kept documents of this wave (and of validation, in the first one), with their hash."""
    kept = documents.filter(pl.col("kept"))
    identity = kept.select("id", "content_high", "content_low").iter_rows()
    order = np.array(
        [
            pack.order_hash(ident, high.to_bytes(8, "big") + low.to_bytes(8, "big"), args["seed"])
            for ident, high, low in identity
        ],
        np.uint64,
    )
    low, high = args["wave"]
    place = order >> np.uint64(32)
    train = kept["partition"].to_numpy() == TRAIN_PARTITION
    chosen = train & (place >= low) & (place < high)
    if args["with_validation"]:
        chosen |= ~train
    return kept.with_columns(order=pl.Series(order, dtype=pl.UInt64)).filter(pl.Series(chosen))


def _encode(args: dict[str, Any], wanted: pl.DataFrame) -> tuple[list[Array], int]:
    """Ids of the wanted rows of a unit; re-encodes a sample with tiktoken on the way."""
    rows = wanted["row"].to_numpy()
    share = _sample(wanted["content_low"].to_numpy(), wanted["size"].to_numpy())
    found: list[Array] = []
    encoder, first = gpt2(), 0
    for batch in read_texts(args) if len(rows) else ():
        low, high = np.searchsorted(rows, [first, first + len(batch)])
        texts = pick(batch, rows[low:high] - first)
        first += len(batch)
        found += encoder.encode_arrow(texts)
        for at in np.flatnonzero(share[low:high]).tolist():
            encoder.check(texts[at].as_py(), found[int(low) + at], wanted["id"][int(low) + at])
    return found, int(share.sum())


def _sample(keys: Array, sizes: Array) -> Array:
    """Which documents are encoded again: one in `SAMPLE_SHARE` by content, up to `SAMPLE_BYTES`.

    Where none is chosen, or the first is longer than that, the shortest document is.
    """
    chosen: Array = keys % np.uint64(SAMPLE_SHARE) == 0
    chosen &= np.cumsum(np.where(chosen, sizes, 0)) <= SAMPLE_BYTES
    if len(chosen) and not chosen.any():
        chosen[np.argmin(sizes)] = True
    return chosen


def pick(array: pa.Array, rows: Array) -> pa.Array:
    """Some values of an array in order; all of them are not copied."""
    return array if len(rows) == len(array) else array.take(pa.array(rows))


def make_shard(args: dict[str, Any], store: Store) -> Streamed:
    """A shard of either split; both are one stage, so that neither waits for the other."""
    return _train_shard(args, store) if "pieces" in args else _validation_shard(args, store)


def _train_shard(args: dict[str, Any], store: Store) -> Streamed:
    """Rows of a stretch of the training stream."""
    width = args["width"]
    parts = [
        pack.stretch(_read_bucket(sources, store), skip, take)
        for sources, skip, take in args["pieces"]
    ]

    def rows(start: int, stop: int) -> Array:
        return pack.gather(parts, start * width, stop * width)

    count = sum(part.size for part in parts) // width
    return _shard(shards.gathered(count, width, np.uint16, rows), pack.fold(parts, width))


def _read_bucket(sources: Sequence[Sequence[Any]], store: Store) -> pack.Bucket:
    """A source is (object, first index row, index rows, first token, tokens, all index rows)."""
    size = pack.INDEX_ROW.itemsize
    index: list[Array] = []
    tokens: list[Array] = []
    for address, first, count, token, length, total in sources:
        raw = store.read_range(address, first * size, count * size)
        index.append(np.frombuffer(raw, pack.INDEX_ROW))
        raw = store.read_range(address, total * size + 2 * token, 2 * length)
        tokens.append(np.frombuffer(raw, np.uint16))
    return pack.Bucket(index, tokens)


def _validation_shard(args: dict[str, Any], store: Store) -> Streamed:
    """One row per window; a window lies inside one document."""
    windows, width = args["windows"], args["width"]
    count = len(windows)
    tokens = np.empty((count, width), np.uint16)
    for row, (address, start, _, _) in enumerate(windows):
        tokens[row] = np.frombuffer(store.read_range(address, start, 2 * width), np.uint16)
    spans = pack.Spans(
        bounds=np.arange(count + 1),
        doc_index=np.array([w[2] for w in windows], np.uint32),
        doc_start=np.zeros(count, np.uint16),
        doc_offset=np.array([w[3] for w in windows], np.uint32),
    )
    return _shard(shards.fixed(tokens), spans)


def _shard(tokens: shards.Column, spans: pack.Spans) -> Streamed:
    return shard_unit(
        {
            "tokens": tokens,
            "doc_index": shards.lists(spans.doc_index, spans.bounds),
            "doc_start": shards.lists(spans.doc_start, spans.bounds),
            "doc_offset": shards.lists(spans.doc_offset, spans.bounds),
        },
        batch_rows=BATCH_ROWS,
    )


TOKENS: Final = Stage("fineweb-tokens", 1, encode_unit)
SHARDS: Final = Stage("fineweb-shards", 1, make_shard)
