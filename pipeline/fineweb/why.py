"""What became of one document: its decision, its representative and the rows that hold it.

- Reads the published folder only, and one file of decisions where they are partitioned by id.
- Files are checked against the lock before they are believed.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from tangobench.errors import InputError
from tangobench.pipeline.core.lock import Lock
from tangobench.pipeline.core.shard_reader import SideTable
from tangobench.pipeline.fineweb.decisions import id_parts
from tangobench.pipeline.reading import Dataset, open_dataset

_REASONS: Final = {
    "unique": "no other document has its URL or its text",
    "earliest": "it is the earliest of its component, which it stands for",
    "reassigned": "it was moved to the partition of its component's earliest document",
    "duplicate-url": "its normalised URL is that of the representative",
    "duplicate-content": "its bytes are those of the representative",
    "duplicate-url-and-content": "its URL and its bytes are those of the representative",
    "duplicate-chain": "other documents link it to the representative, step by step",
    "near-duplicate": "a training document is nearly the same",
    "dump-ignored": "its dump is neither a training nor a validation dump",
    "text-null": "it has no text",
    "text-empty": "its text is empty",
    "text-not-utf8": "its text is not UTF-8",
}


def record(row: dict[str, Any], config: str, dataset: Dataset) -> dict[str, Any]:
    """One row as a plain record: its text and where each part of it comes from."""
    spans = zip(row["doc_index"], row["doc_start"], row["doc_offset"], strict=True)
    return {
        "text": dataset.text_tokenizer.decode(row["tokens"]),
        "documents": [
            {"doc_index": int(d), "start": int(s), "offset": int(o)} for d, s, o in spans
        ],
    }


def why(folder: Path, lock: Lock, ident: str) -> list[str]:
    """Lines for a reader; an id that is not in the input is an error."""
    files = [entry for entry in lock.side_files if entry["kind"] == "decisions"]
    number = int(id_parts([ident], len(files))[0])  # of the one file that may speak of it
    table = SideTable(folder, files[number], lock.name).table()
    hits = np.flatnonzero(pc.equal(table["id"], ident).to_numpy(zero_copy_only=False))
    if len(hits) == 0:
        some = next(entry for entry in files if entry["rows"])
        example = next(SideTable(folder, some, lock.name).batches())["id"][0]
        what = f"no document {ident!r} in the input of this dataset"
        fix = f"ids look like {example}; quote them for the shell"
        raise InputError(what, kind="not-found", fix=fix)
    lines: list[str] = []
    first = sum(entry["rows"] for entry in files[:number])
    for at in hits.tolist():
        decision = table.slice(at, 1).to_pylist()[0]
        lines += _describe(decision, first + at)
        if decision["kept"]:
            lines += _rows_of(folder, decision["partition"], first + at)
    return lines


def _describe(decision: dict[str, Any], index: int) -> list[str]:
    state = "kept" if decision["kept"] else "dropped"
    lines = [
        f"document {decision['id']} of {decision['dump']} (doc_index {index})",
        f"  partition: {decision['partition']}; {state} at dedup",
        f"  reason: {decision['reason']}: {_REASONS.get(decision['reason'], '')}",
        f"  component: {decision['component']}",
    ]
    if decision["representative"] != decision["id"]:
        lines.append(f"  representative: {decision['representative']}")
    return lines


def _rows_of(folder: Path, split: str, index: int) -> list[str]:
    """Rows that hold a part of a kept document."""
    dataset = open_dataset(folder)
    found: list[int] = []
    first = 0
    for batch in itertools.chain(*dataset.rows("default", split).open_all()):
        spans = batch.column("doc_index")
        held = pc.list_parent_indices(spans).filter(pc.equal(spans.flatten(), index))
        found += [first + at for at in held.unique().to_pylist()]
        first += len(spans)
    if found:
        return [f"  in {split} row {row}" for row in found]
    width = dataset.lock.data["configs"]["default"]["context"]
    if split == "validation":
        return [f"  in no row: shorter than {width} tokens, or beyond the rows asked for"]
    return ["  in no row: in the stream's ragged tail, or beyond the rows asked for"]
