"""What is written: shards of source rows, shards of proof rows and the table of declarations.

- Source rows are the file's tokens in consecutive pieces of at most `context`; none overlap, none
  cross a file, the short last piece is kept. `start` and `length` are bytes in the file.
- A proof row is prompt, proof, EOT: the last `prompt_tokens` tokens of everything before the proof,
  the whole proof of at most `proof_tokens`. Longer proofs are left out and counted, never cut.
- The table has the outcome of every declaration, kept or not, train before validation, in row
  order; `row` is the index in the `proof` config of its split, or -1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tangobench.pipeline.core import build, shards
from tangobench.pipeline.core.hashing import rows_sha256
from tangobench.pipeline.core.shards import offsets_of, unpack, unpack_texts
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.lean.proofs import STYLES
from tangobench.pipeline.lean.spec import KINDS, SPLITS, Split
from tangobench.pipeline.tokenizer.base import Tokenizer
from tangobench.pipeline.tokenizer.use import GPT2, Choice

NDArray = np.ndarray[Any, Any]
Arrays = dict[str, NDArray]
What = Literal["source", "proof", "table"]

TABLE_FILE: Final = "declarations.parquet"
BATCH_ROWS: Final = 256
OUTCOMES: Final = ("kept", "proof-too-long", "repeated-in-training")


@dataclass(frozen=True, slots=True)
class Batch(build.Arguments):
    """A batch of encoded files; which files and declarations are left out, which are repeated."""

    address: str
    split: Split
    left_out: list[int]
    dropped: list[int]
    proof_in_training: list[int]
    statement_in_training: list[int]


@dataclass(frozen=True, slots=True)
class WriteArgs(build.Arguments):
    """What to write of some batches, and how long rows are."""

    what: What
    context: int
    prompt_tokens: int
    proof_tokens: int
    batches: tuple[Batch, ...]
    tokenizer: Choice = GPT2


class _Rows(NamedTuple):
    """Rows of one batch: equally many parts of tokens for each, their lengths, other columns."""

    parts: list[memoryview]
    lengths: NDArray
    columns: dict[str, NDArray | list[str]]


def write_one(
    args: WriteArgs, store: Store
) -> build.Output[build.TableResult] | build.Streamed[build.ShardResult]:
    """A shard or the table."""
    if args.what == "table":
        return _table(args, store)
    vocabulary = args.tokenizer.load(store)
    make = _source_rows if args.what == "source" else _proof_rows
    made = [make(unpack(store.read(b.address)), b, args, vocabulary) for b in args.batches]
    lengths = np.concatenate([rows.lengths for rows in made])
    parts = [part for rows in made for part in rows.parts]
    columns = {"tokens": _lists(parts, lengths, vocabulary.dtype)}
    for name, first in made[0].columns.items():
        values = [rows.columns[name] for rows in made]
        if isinstance(first, list):
            columns[name] = shards.strings([text for some in values for text in some])
        else:
            columns[name] = shards.scalars(np.concatenate(values))
    return build.shard_unit(columns, batch_rows=BATCH_ROWS)


# Any: of two kinds, told apart by which unit it is, and typed again where they are published.
WRITE: Final[build.Stage[WriteArgs, Any]] = build.Stage("lean-write", 2, write_one)


def _source_rows(arrays: Arrays, batch: Batch, args: WriteArgs, vocabulary: Tokenizer) -> _Rows:
    offsets = arrays["tokens_offsets"]
    counts = -(-np.diff(offsets) // args.context)
    first = offsets_of(counts)
    files = np.repeat(np.arange(len(counts)), counts)
    lows = offsets[files] + args.context * (np.arange(len(files)) - first[files])
    highs = np.minimum(lows + args.context, offsets[files + 1])
    # Bytes of each piece, and before it in its file.
    sizes = np.add.reduceat(vocabulary.token_bytes.take(arrays["tokens"]), lows, dtype=np.int64)
    ends = offsets_of(sizes)
    kept = ~np.isin(files, batch.left_out)
    starts = (ends[:-1] - ends[first[files]])[kept]
    tokens, path = arrays["tokens"].data, unpack_texts(arrays, "path")
    spans = zip(lows[kept].tolist(), highs[kept].tolist(), strict=True)
    columns: dict[str, NDArray | list[str]] = {
        "path": [path[i] for i in files[kept].tolist()],
        "start": starts.astype(np.uint32),
        "length": sizes[kept].astype(np.uint32),
    }
    return _Rows([tokens[a:b] for a, b in spans], (highs - lows)[kept], columns)


def _proof_rows(arrays: Arrays, batch: Batch, args: WriteArgs, vocabulary: Tokenizer) -> _Rows:
    """Four parts each: the file's tokens, the piece up to the proof, the proof, EOT."""
    chosen = _kept(arrays, args.proof_tokens, batch.dropped)
    piece, proof = (arrays[f"{name}_index"][chosen] for name in ("piece", "proof"))
    piece_low, piece_high = (arrays["piece_offsets"][piece + i] for i in (0, 1))
    proof_low, proof_high = (arrays["proof_offsets"][proof + i] for i in (0, 1))
    file_low = arrays["tokens_offsets"][arrays["file"][chosen]]
    seam = file_low + arrays["seam"][chosen]
    piece_low = np.maximum(piece_low, piece_high - args.prompt_tokens)
    room = args.prompt_tokens - (piece_high - piece_low)
    context_low = np.maximum(file_low, seam - room)
    starts = (seam - context_low) + (piece_high - piece_low)
    spans = (context_low, seam, piece_low, piece_high, proof_low, proof_high)
    tokens, pieces, proofs = (arrays[name].data for name in ("tokens", "piece", "proof"))
    end = np.array([vocabulary.eot], vocabulary.dtype).data
    parts: list[memoryview] = []
    for a, b, c, d, e, f in zip(*(span.tolist() for span in spans), strict=True):
        parts += (tokens[a:b], pieces[c:d], proofs[e:f], end)
    path, name = unpack_texts(arrays, "path"), unpack_texts(arrays, "name")
    columns: dict[str, NDArray | list[str]] = {
        "target_start": starts.astype(np.uint16),
        "path": [path[i] for i in arrays["file"][chosen].tolist()],
        "declaration": [name[i] for i in chosen.tolist()],
        "kind": [KINDS[i] for i in arrays["kind"][chosen].tolist()],
    }
    return _Rows(parts, starts + (proof_high - proof_low) + 1, columns)


def _lists(parts: list[memoryview], lengths: NDArray, dtype: Any) -> shards.Column:
    """Rows of equally many parts, put together only when their record batch is written."""
    kind = pa.list_(pa.from_numpy_dtype(dtype))
    offsets, each = offsets_of(lengths), len(parts) // max(1, len(lengths))

    def part(start: int, stop: int) -> pa.Array:
        flat = np.frombuffer(b"".join(parts[each * start : each * stop]), dtype)
        bounds = (offsets[start : stop + 1] - offsets[start]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(bounds), pa.array(flat), type=kind)

    size = np.dtype(dtype).itemsize * int(offsets[-1]) + 4 * len(offsets)
    return shards.Column(len(lengths), kind, part, size)


def _table(args: WriteArgs, store: Store) -> build.Output[build.TableResult]:
    rows = dict.fromkeys(SPLITS, 0)
    parts = []
    for batch in args.batches:
        arrays = unpack(store.read(batch.address))
        chosen = _kept(arrays, args.proof_tokens, batch.dropped)
        parts.append(_table_part(arrays, batch, args.proof_tokens, chosen, rows[batch.split]))
        rows[batch.split] += len(chosen)
    table = pa.concat_tables(parts)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    result: build.TableResult = {"rows": table.num_rows, "rows_sha256": rows_sha256(table)}
    return build.Output(sink.getvalue(), result)


def _table_part(
    arrays: Arrays, batch: Batch, proof_tokens: int, chosen: NDArray, first: int
) -> pa.Table:
    lengths = proof_lengths(arrays)
    outcome = np.where(lengths > proof_tokens, 1, 2)
    outcome[chosen] = 0
    row = np.full(len(lengths), -1, np.int64)
    row[chosen] = first + np.arange(len(chosen))
    every = np.arange(len(lengths))
    return pa.table(
        {
            "path": _named(unpack_texts(arrays, "path"), arrays["file"]),
            "declaration": pa.array(unpack_texts(arrays, "name"), pa.string()),
            "kind": _named(KINDS, arrays["kind"]),
            "style": _named(STYLES, arrays["style"]),
            **{key: pa.array(arrays[key]) for key in ("line", "proof_start", "proof_end")},
            "proof_tokens": pa.array(lengths),
            "split": pa.repeat(batch.split, len(lengths)),
            "outcome": _named(OUTCOMES, outcome),
            "row": pa.array(row),
            "proof_in_training": pa.array(np.isin(every, batch.proof_in_training)),
            "statement_in_training": pa.array(np.isin(every, batch.statement_in_training)),
        }
    )


def _named(names: Sequence[str], numbers: NDArray) -> pa.Array:
    return pa.array(names, pa.string()).take(pa.array(numbers))


def proof_lengths(arrays: Arrays) -> NDArray:
    """Tokens of each declaration's proof, without EOT."""
    return np.diff(arrays["proof_offsets"])[arrays["proof_index"]]


def _kept(arrays: Arrays, proof_tokens: int, dropped: list[int]) -> NDArray:
    """Indices of the declarations that become rows, in file order."""
    keep = proof_lengths(arrays) <= proof_tokens
    keep[dropped] = False
    return np.flatnonzero(keep)
