"""One Lean row as text, and the outcome of one declaration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tangobench.errors import InputError
from tangobench.pipeline.core.lock import Lock
from tangobench.pipeline.core.shard_reader import SideTable, broken
from tangobench.pipeline.core.store import Place
from tangobench.pipeline.lean.rows import TABLE_FILE
from tangobench.pipeline.reading import Dataset

NDArray = np.ndarray[Any, Any]


def record(row: dict[str, Any], config: str, dataset: Dataset) -> dict[str, Any]:
    """A row as text; bytes of a character that a piece cuts in two are shown as \\xNN."""
    tokens = np.asarray(row["tokens"])

    def text(some: NDArray) -> str:
        return dataset.text_tokenizer.decode_bytes(some).decode("utf-8", "backslashreplace")

    rest = {key: value for key, value in row.items() if key not in ("tokens", "target_start")}
    if config == "source":
        return {**rest, "text": text(tokens)}
    start = int(row["target_start"])
    return {**rest, "prompt": text(tokens[:start]), "proof": text(tokens[start:-1])}


def declarations(folder: Place, lock: Lock) -> pa.Table:
    """The table of all declarations, checked against the lock."""
    tables = [e for e in lock.data["side_files"] if e["path"] == TABLE_FILE]
    if not tables:
        raise broken(folder / TABLE_FILE, "missing", "the lock does not know it", "declarations")
    return SideTable(folder, tables[0], lock.name).table()


def why(folder: Path, lock: Lock, ident: str) -> list[str]:
    """The outcome of a declaration (`NAME` or `PATH:NAME`) or of all those in a file."""
    import pyarrow.compute as pc

    table = declarations(folder, lock)
    path, _, name = ident.rpartition(":")
    chosen = pc.equal(table["declaration"], name)
    if path:
        chosen = pc.and_(chosen, pc.equal(table["path"], path))
    rows = table.filter(pc.or_(chosen, pc.equal(table["path"], ident))).to_pylist()
    if not rows:
        rejected = dict(lock.notes.get("rejected_files", [])).get(ident)
        if rejected:
            return [f"{ident}: the file was rejected ({rejected})"]
        fix = "give a name as it is written in the source, PATH:NAME or PATH"
        raise InputError(f"no declaration {ident!r} in {folder}", kind="not-found", fix=fix)
    return [
        f"{row['path']}:{row['line']}: {row['kind']} {row['declaration']} is in {row['split']}, "
        f"{row['outcome']}"
        + (f", row {row['row']} of proof" if row["row"] >= 0 else "")
        + f"; {row['style']} proof of {row['proof_tokens']} tokens"
        + ("; the same proof is in training" if row["proof_in_training"] else "")
        + ("; the same statement is in training" if row["statement_in_training"] else "")
        for row in rows
    ]
