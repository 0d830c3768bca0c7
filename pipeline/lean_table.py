"""The published table of declarations: what became of every one of them.

- One row per declaration that was found, kept or not, train before validation, in row order.
- `row` is the index in the `proof` config of its split, or -1; `outcome` says why.

Usage: `output = write_table({"batches": […], "proof_tokens": 511}, store)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tangobench.pipeline.build import Output
from tangobench.pipeline.hashing import rows_sha256
from tangobench.pipeline.lean_arrays import unpack, unpack_texts
from tangobench.pipeline.lean_rows import kept_declarations, proof_lengths
from tangobench.pipeline.lean_tokens import KINDS, STYLES
from tangobench.pipeline.store import Store

OUTCOMES: Final = ("kept", "proof-too-long", "repeated-in-training")


def write_table(args: dict[str, Any], store: Store) -> Output:
    """The table of all batches."""
    rows = {"train": 0, "validation": 0}
    parts = []
    for batch in args["batches"]:
        arrays = unpack(store.read(batch["address"]))
        part = _part(arrays, batch, args["proof_tokens"], rows[batch["split"]])
        rows[batch["split"]] += int(np.count_nonzero(part["row"].to_numpy() >= 0))
        parts.append(part)
    table = pa.concat_tables(parts)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return Output(
        sink.getvalue(), {"rows": table.num_rows, "rows_sha256": rows_sha256(table), **rows}
    )


def _part(
    arrays: dict[str, np.ndarray[Any, Any]], batch: dict[str, Any], proof_tokens: int, first: int
) -> pa.Table:
    chosen = kept_declarations(arrays, proof_tokens, batch["dropped"])
    lengths = proof_lengths(arrays)
    outcome = np.where(lengths > proof_tokens, 1, 2)
    outcome[chosen] = 0
    row = np.full(len(lengths), -1, np.int64)
    row[chosen] = first + np.arange(len(chosen))
    repeated = {
        key: pa.array(np.isin(np.arange(len(lengths)), batch[key]))
        for key in ("proof_in_training", "statement_in_training")
    }
    return pa.table(
        {
            "path": _named(unpack_texts(arrays, "path"), arrays["file"]),
            "declaration": pa.array(unpack_texts(arrays, "name"), pa.string()),
            "kind": _named(KINDS, arrays["kind"]),
            "style": _named(STYLES, arrays["style"]),
            "line": pa.array(arrays["line"]),
            "proof_start": pa.array(arrays["proof_start"]),
            "proof_end": pa.array(arrays["proof_end"]),
            "proof_tokens": pa.array(lengths),
            "split": pa.repeat(batch["split"], len(lengths)),
            "outcome": _named(OUTCOMES, outcome),
            "row": pa.array(row),
            **repeated,
        }
    )


def _named(names: Sequence[str], numbers: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(names, pa.string()).take(pa.array(numbers))
