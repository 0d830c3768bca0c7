"""Shards of source rows and of proof rows.

- Source rows are the file's tokens in consecutive pieces of at most `context`; none overlap, none
  cross a file, the short last piece is kept. `start` and `length` are bytes in the file.
- A proof row is prompt, proof, EOT: the last `prompt_tokens` tokens of everything before the proof,
  the whole proof of at most `proof_tokens`. Longer proofs are left out and counted, never cut.

Usage: `output = proof_shard(ProofArgs(1536, 511, addresses, dropped), store)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tangobench.pipeline.core import shards
from tangobench.pipeline.core.arrays import offsets_of, unpack, unpack_texts
from tangobench.pipeline.core.build import Arguments, Streamed, shard_unit
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.lean.spec import KINDS
from tangobench.pipeline.tokenizer.use import GPT2, Choice

NDArray = np.ndarray[Any, Any]

BATCH_ROWS: Final = 256
_PARTS: Final = 4  # of a proof row: the file's tokens, the piece up to the proof, the proof, EOT


@dataclass(frozen=True, slots=True)
class SourceArgs(Arguments):
    """Batches of encoded files, and the files of each that are left out."""

    context: int
    batches: tuple[str, ...]
    left_out: tuple[list[int], ...]
    tokenizer: Choice = GPT2

    def key(self) -> Any:
        """By name."""
        return {"what": "source", **self.plain(), "tokenizer": self.tokenizer.key()}


@dataclass(frozen=True, slots=True)
class ProofArgs(Arguments):
    """Batches of encoded files, and the declarations of each that are dropped."""

    prompt_tokens: int
    proof_tokens: int
    batches: tuple[str, ...]
    dropped: tuple[list[int], ...]
    tokenizer: Choice = GPT2

    def key(self) -> Any:
        """By name."""
        return {"what": "proof", **self.plain(), "tokenizer": self.tokenizer.key()}


def source_shard(args: SourceArgs, store: Store) -> Streamed:
    """Source rows of some batches, without the files listed as left out."""
    tokens: list[memoryview] = []
    paths: list[str] = []
    columns: dict[str, list[NDArray]] = {"tokens": [], "start": [], "length": []}
    vocabulary = args.tokenizer.load(store)
    for address, left_out in zip(args.batches, args.left_out, strict=True):
        arrays = unpack(store.read(address))
        files, lows, highs, starts, sizes = _pieces(arrays, args.context, vocabulary.token_bytes)
        kept = np.flatnonzero(~np.isin(files, left_out))
        view = arrays["tokens"].data
        bounds = zip(lows[kept].tolist(), highs[kept].tolist(), strict=True)
        tokens += [view[low:high] for low, high in bounds]
        columns["tokens"].append((highs - lows)[kept])
        columns["start"].append(starts[kept])
        columns["length"].append(sizes[kept])
        names = unpack_texts(arrays, "path")
        paths += [names[i] for i in files[kept].tolist()]
    return shard_unit(
        {
            "tokens": _lists(tokens, 1, _joined(columns["tokens"], np.int64), vocabulary.dtype),
            "path": shards.strings(paths),
            "start": shards.scalars(_joined(columns["start"], np.uint32)),
            "length": shards.scalars(_joined(columns["length"], np.uint32)),
        },
        batch_rows=BATCH_ROWS,
    )


def proof_shard(args: ProofArgs, store: Store) -> Streamed:
    """Proof rows of some batches, without the declarations listed as dropped."""
    tokens: list[memoryview] = []
    lengths, targets = [], []
    paths: list[str] = []
    names: list[str] = []
    kinds: list[str] = []
    vocabulary = args.tokenizer.load(store)
    end = np.array([vocabulary.eot], vocabulary.dtype).data
    for address, dropped in zip(args.batches, args.dropped, strict=True):
        arrays = unpack(store.read(address))
        chosen = kept_declarations(arrays, args.proof_tokens, dropped)
        parts, sizes, starts = _assemble(arrays, chosen, args.prompt_tokens, end)
        tokens += parts
        lengths.append(sizes)
        targets.append(starts)
        path, name = unpack_texts(arrays, "path"), unpack_texts(arrays, "name")
        paths += [path[i] for i in arrays["file"][chosen].tolist()]
        names += [name[i] for i in chosen.tolist()]
        kinds += [KINDS[i] for i in arrays["kind"][chosen].tolist()]
    columns = {
        "tokens": _lists(tokens, _PARTS, _joined(lengths, np.int64), vocabulary.dtype),
        "target_start": shards.scalars(_joined(targets, np.uint16)),
        "path": shards.strings(paths),
        "declaration": shards.strings(names),
        "kind": shards.strings(kinds),
    }
    return shard_unit(columns, batch_rows=BATCH_ROWS)


def proof_lengths(arrays: dict[str, NDArray]) -> NDArray:
    """Tokens of each declaration's proof, without EOT."""
    return np.diff(arrays["proof_offsets"])[arrays["proof_index"]]


def kept_declarations(arrays: dict[str, NDArray], proof_tokens: int, dropped: list[int]) -> NDArray:
    """Indices of the declarations that become rows, in file order."""
    keep = proof_lengths(arrays) <= proof_tokens
    keep[dropped] = False
    return np.flatnonzero(keep)


def _pieces(
    arrays: dict[str, NDArray], context: int, token_bytes: NDArray
) -> tuple[NDArray, NDArray, NDArray, NDArray, NDArray]:
    """File, first token, token after the last, first byte in the file and bytes of each piece."""
    offsets = arrays["tokens_offsets"]
    counts = -(-np.diff(offsets) // context)
    first = offsets_of(counts)
    files = np.repeat(np.arange(len(counts)), counts)
    lows = offsets[files] + context * (np.arange(len(files)) - first[files])
    highs = np.minimum(lows + context, offsets[files + 1])
    if not len(files):
        return files, lows, highs, files, files
    sizes = np.add.reduceat(token_bytes.take(arrays["tokens"]), lows, dtype=np.int64)
    ends = offsets_of(sizes)
    return files, lows, highs, ends[:-1] - ends[first[files]], sizes


def _assemble(
    arrays: dict[str, NDArray], chosen: NDArray, prompt_tokens: int, end: memoryview
) -> tuple[list[memoryview], NDArray, NDArray]:
    """Four parts of every row, row lengths, and where each proof starts in its row."""
    piece, piece_low, piece_high = _spans(arrays, "piece", chosen)
    proof, proof_low, proof_high = _spans(arrays, "proof", chosen)
    file_low = arrays["tokens_offsets"][arrays["file"][chosen]]
    seam = file_low + arrays["seam"][chosen]
    piece_low = np.maximum(piece_low, piece_high - prompt_tokens)
    room = prompt_tokens - (piece_high - piece_low)
    context_low = np.maximum(file_low, seam - room)
    starts = (seam - context_low) + (piece_high - piece_low)
    lengths = starts + (proof_high - proof_low) + 1
    spans = (context_low, seam, piece_low, piece_high, proof_low, proof_high)
    tokens, pieces, proofs = arrays["tokens"].data, piece.data, proof.data
    parts: list[memoryview] = []
    for a, b, c, d, e, f in zip(*(span.tolist() for span in spans), strict=True):
        parts += (tokens[a:b], pieces[c:d], proofs[e:f], end)
    return parts, lengths, starts


def _lists(parts: list[memoryview], each: int, lengths: NDArray, dtype: Any) -> shards.Column:
    """Rows of `each` parts, put together only when their record batch is written."""
    kind = pa.list_(pa.from_numpy_dtype(dtype))
    offsets = offsets_of(lengths)

    def part(start: int, stop: int) -> pa.Array:
        flat = np.frombuffer(b"".join(parts[each * start : each * stop]), dtype)
        bounds = (offsets[start : stop + 1] - offsets[start]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(bounds), pa.array(flat), type=kind)

    size = np.dtype(dtype).itemsize * int(offsets[-1]) + 4 * len(offsets)
    return shards.Column(len(lengths), kind, part, size)


def _spans(
    arrays: dict[str, NDArray], name: str, chosen: NDArray
) -> tuple[NDArray, NDArray, NDArray]:
    which = arrays[f"{name}_index"][chosen]
    offsets = arrays[f"{name}_offsets"]
    return arrays[name], offsets[which], offsets[which + 1]


def _joined(parts: list[NDArray], dtype: Any) -> NDArray:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)
