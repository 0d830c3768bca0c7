"""The published table of declarations: the outcome of every one of them.

- One row per declaration that was found, kept or not, train before validation, in row order.
- `row` is the index in the `proof` config of its split, or -1; `outcome` says why.

Usage: `output = write_table(TableArgs(511, batches), store)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tangobench.pipeline.core.arrays import unpack, unpack_texts
from tangobench.pipeline.core.build import Arguments, Output, UnitResult
from tangobench.pipeline.core.hashing import rows_sha256
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.lean.encode import STYLES
from tangobench.pipeline.lean.rows import kept_declarations, proof_lengths
from tangobench.pipeline.lean.spec import KINDS, SPLITS, Split

TABLE_FILE: Final = "declarations.parquet"
OUTCOMES: Final = ("kept", "proof-too-long", "repeated-in-training")


@dataclass(frozen=True, kw_only=True, slots=True)
class TableBatch:
    """A batch of encoded files, and the declarations of it that are marked."""

    address: str
    split: Split
    dropped: list[int]
    proof_in_training: list[int]
    statement_in_training: list[int]


@dataclass(frozen=True, slots=True)
class TableArgs(Arguments):
    """All batches, in the order of the rows."""

    proof_tokens: int
    batches: tuple[TableBatch, ...]

    def key(self) -> Any:
        """By name."""
        return {"what": "table", **asdict(self)}


@dataclass(frozen=True, slots=True)
class TableResult(UnitResult):
    """Rows of the table, their hash, and the proof rows of each split."""

    rows: int
    rows_sha256: str
    train: int
    validation: int


def write_table(args: TableArgs, store: Store) -> Output:
    """The table of all batches."""
    rows = dict.fromkeys(SPLITS, 0)
    parts = []
    for batch in args.batches:
        arrays = unpack(store.read(batch.address))
        part = _part(arrays, batch, args.proof_tokens, rows[batch.split])
        rows[batch.split] += int(np.count_nonzero(part["row"].to_numpy() >= 0))
        parts.append(part)
    table = pa.concat_tables(parts)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    found = TableResult(table.num_rows, rows_sha256(table), rows["train"], rows["validation"])
    return Output(sink.getvalue(), found.plain())


def _part(
    arrays: dict[str, np.ndarray[Any, Any]], batch: TableBatch, proof_tokens: int, first: int
) -> pa.Table:
    chosen = kept_declarations(arrays, proof_tokens, batch.dropped)
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
            "line": pa.array(arrays["line"]),
            "proof_start": pa.array(arrays["proof_start"]),
            "proof_end": pa.array(arrays["proof_end"]),
            "proof_tokens": pa.array(lengths),
            "split": pa.repeat(batch.split, len(lengths)),
            "outcome": _named(OUTCOMES, outcome),
            "row": pa.array(row),
            "proof_in_training": pa.array(np.isin(every, batch.proof_in_training)),
            "statement_in_training": pa.array(np.isin(every, batch.statement_in_training)),
        }
    )


def _named(names: Sequence[str], numbers: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(names, pa.string()).take(pa.array(numbers))
