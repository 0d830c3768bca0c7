"""Stage 2: shards of source rows and of proof rows.

- Source rows are the file's tokens in consecutive pieces of at most `context`; none overlap, none
  cross a file, the short last piece is kept. `start` and `length` are bytes in the file.
- A proof row is prompt, proof, EOT: the last `prompt_tokens` tokens of everything before the proof,
  the whole proof of at most `proof_tokens`. Longer proofs are left out and counted, never cut.

Usage: `records = job.run(PROOF, units)`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tangobench.pipeline import shards
from tangobench.pipeline.build import Output, Stage
from tangobench.pipeline.lean_arrays import offsets_of, unpack, unpack_texts
from tangobench.pipeline.lean_tokens import KINDS
from tangobench.pipeline.store import Store
from tangobench.pipeline.tokens import EOT, gpt2

NDArray = np.ndarray[Any, Any]

BATCH_ROWS: Final = 256


def source_shard(args: dict[str, Any], store: Store) -> Output:
    """Source rows of some batches, without the files listed as left out."""
    context = args["context"]
    tokens, lengths, paths, starts, sizes = [], [], [], [], []
    token_bytes = gpt2().token_bytes
    for address, left_out in zip(args["batches"], args["left_out"], strict=True):
        arrays = unpack(store.read(address))
        values, offsets = arrays["tokens"], arrays["tokens_offsets"].tolist()
        ends = offsets_of(token_bytes[values])
        for i, name in enumerate(unpack_texts(arrays, "path")):
            if i in left_out:
                continue
            low, high = offsets[i], offsets[i + 1]
            tokens.append(values[low:high])
            cuts = np.array([*range(low, high, context), high])
            lengths.append(np.diff(cuts))
            starts.append(ends[cuts[:-1]] - ends[low])
            sizes.append(np.diff(ends[cuts]))
            paths += [name] * (len(cuts) - 1)
    columns = {
        "tokens": shards.lists(_joined(tokens, np.uint16), offsets_of(_joined(lengths, np.int64))),
        "path": shards.strings(paths),
        "start": shards.scalars(_joined(starts, np.uint32)),
        "length": shards.scalars(_joined(sizes, np.uint32)),
    }
    data, info = shards.encode(columns, batch_rows=BATCH_ROWS)
    return Output(data, {"shard": info})


def proof_shard(args: dict[str, Any], store: Store) -> Output:
    """Proof rows of some batches, without the declarations listed as dropped."""
    rows, lengths, targets, paths, names, kinds = [], [], [], [], [], []
    for address, dropped in zip(args["batches"], args["dropped"], strict=True):
        arrays = unpack(store.read(address))
        chosen = kept_declarations(arrays, args["proof_tokens"], dropped)
        values, sizes, starts = _assemble(arrays, chosen, args["prompt_tokens"])
        rows.append(values)
        lengths.append(sizes)
        targets.append(starts)
        path, name = unpack_texts(arrays, "path"), unpack_texts(arrays, "name")
        paths += [path[i] for i in arrays["file"][chosen].tolist()]
        names += [name[i] for i in chosen.tolist()]
        kinds += [KINDS[i] for i in arrays["kind"][chosen].tolist()]
    columns = {
        "tokens": shards.lists(_joined(rows, np.uint16), offsets_of(_joined(lengths, np.int64))),
        "target_start": shards.scalars(_joined(targets, np.uint16)),
        "path": shards.strings(paths),
        "declaration": shards.strings(names),
        "kind": shards.strings(kinds),
    }
    data, info = shards.encode(columns, batch_rows=BATCH_ROWS)
    return Output(data, {"shard": info})


SOURCE: Final = Stage("lean-source", 1, source_shard)
PROOF: Final = Stage("lean-proof", 1, proof_shard)


def proof_lengths(arrays: dict[str, NDArray]) -> NDArray:
    """Tokens of each declaration's proof, without EOT."""
    return np.diff(arrays["proof_offsets"])[arrays["proof_index"]]


def kept_declarations(arrays: dict[str, NDArray], proof_tokens: int, dropped: list[int]) -> NDArray:
    """Indices of the declarations that become rows, in file order."""
    keep = proof_lengths(arrays) <= proof_tokens
    keep[dropped] = False
    return np.flatnonzero(keep)


def _assemble(
    arrays: dict[str, NDArray], chosen: NDArray, prompt_tokens: int
) -> tuple[NDArray, NDArray, NDArray]:
    """Tokens of all rows end to end, row lengths, and where each proof starts in its row."""
    piece, piece_low, piece_high = _spans(arrays, "piece", chosen)
    proof, proof_low, proof_high = _spans(arrays, "proof", chosen)
    file_low = arrays["tokens_offsets"][arrays["file"][chosen]]
    seam = file_low + arrays["seam"][chosen]
    piece_low = np.maximum(piece_low, piece_high - prompt_tokens)
    room = prompt_tokens - (piece_high - piece_low)
    context_low = np.maximum(file_low, seam - room)
    starts = (seam - context_low) + (piece_high - piece_low)
    lengths = starts + (proof_high - proof_low) + 1
    values = np.full(int(lengths.sum()), EOT, np.uint16)
    position = 0
    spans = (context_low, seam, piece_low, piece_high, proof_low, proof_high)
    sources = (arrays["tokens"], piece, proof)
    for bounds in zip(*(span.tolist() for span in spans), strict=True):
        for source, low, high in zip(sources, bounds[::2], bounds[1::2], strict=True):
            values[position : position + high - low] = source[low:high]
            position += high - low
        position += 1  # the EOT that is already there
    return values, lengths, starts


def _spans(
    arrays: dict[str, NDArray], name: str, chosen: NDArray
) -> tuple[NDArray, NDArray, NDArray]:
    which = arrays[f"{name}_index"][chosen]
    offsets = arrays[f"{name}_offsets"]
    return arrays[name], offsets[which], offsets[which + 1]


def _joined(parts: list[NDArray], dtype: Any) -> NDArray:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)
