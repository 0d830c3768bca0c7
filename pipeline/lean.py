"""The Lean dataset: source files and proof completion from one commit, split by file.

- The commit decides the input: same commit, same spec, same root, wherever it was cloned from.
- Two configs: `source` (pieces of a file) and `proof` (prompt, complete proof, EOT), and a table
  of what became of every declaration.
- Workers read the git directory themselves: it must be visible to all of them.

Usage: `tangobench build lean --profile paper --source /path/to/mathlib4`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tangobench.errors import InputError
from tangobench.pipeline import lean_audit, lean_summary
from tangobench.pipeline.build import (
    Job,
    Output,
    Record,
    Result,
    ShardFile,
    SideFile,
    Stage,
    Streamed,
    Unit,
)
from tangobench.pipeline.lean_arrays import unpack
from tangobench.pipeline.lean_fetch import is_url, open_repository, without_password
from tangobench.pipeline.lean_git import File, list_files
from tangobench.pipeline.lean_rows import proof_shard, source_shard
from tangobench.pipeline.lean_sample import sample_repository
from tangobench.pipeline.lean_spec import SPLITS, Spec, Split, split_of
from tangobench.pipeline.lean_table import write_table
from tangobench.pipeline.lean_tokens import TOKENS
from tangobench.pipeline.manifest import Lock
from tangobench.pipeline.reading import broken
from tangobench.pipeline.shards import shard_name
from tangobench.pipeline.side_tables import SideTable
from tangobench.pipeline.store import Store
from tangobench.pipeline.tokens import Gpt2, gpt2

__all__ = ["Spec", "build", "plan", "record", "why"]

NDArray = np.ndarray[Any, Any]

TABLE_FILE: Final = "declarations.parquet"
_BATCHES: Final = {"source": 8, "proof": 2}  # batches per shard: about 14 and 20 MB of rows
_MATHLIB_BYTES: Final = 60_094_008
_SHARDS: Final = {"source": source_shard, "proof": proof_shard}


def write_one(args: dict[str, Any], store: Store) -> Output | Streamed:
    """A shard or the table, whatever the unit asks for."""
    what = args["what"]
    return write_table(args, store) if what == "table" else _SHARDS[what](args, store)


WRITE: Final = Stage("lean-write", 1, write_one)


def build(spec: Spec, source: str | None, job: Job) -> Result:
    """Read, encode, audit and write."""
    git_dir, origin = _repository(spec, source)
    listing = list_files(git_dir, spec.commit, spec.root, max_bytes=spec.max_file_bytes)
    files = {s: [f for f in listing.files if split_of(f.path, spec) == s] for s in SPLITS}
    _require_both(files, spec)
    batches = _encode(spec, files, git_dir, job)
    arrays = {s: [unpack(job.store.read(r.address)) for r in batches[s]] for s in SPLITS}
    found = lean_audit.audit(arrays["train"], arrays["validation"], spec.near)
    dropped: dict[Split, list[NDArray]] = {
        "train": [np.zeros(len(a["file"]), np.bool_) for a in arrays["train"]],
        "validation": lean_audit.dropped(found, arrays["validation"], spec.drop),
    }
    left_out: dict[Split, list[NDArray]] = {
        "train": [np.zeros(0, np.bool_) for _ in arrays["train"]],
        "validation": found.near if "files" in spec.drop else [np.zeros(0) for _ in found.near],
    }
    masks = {"dropped": dropped, "left_out": left_out}
    table, shards = _write(spec, batches, found, masks, job)
    unreadable = [entry for s in SPLITS for r in batches[s] for entry in r.result["rejected"]]
    rejected = Counter(listing.rejected) + Counter(reason for _, reason in unreadable)
    return Result(
        source=lean_summary.identity(listing, spec),
        origin=origin,
        tokenizer=dict(Gpt2.identity),
        configs={name: lean_summary.config(spec) for name in ("source", "proof")},
        counts=lean_summary.counts(batches, arrays, shards),
        drops=lean_summary.drops(rejected, arrays, dropped, spec.proof_tokens),
        notes={
            "leakage": lean_audit.summary(found, arrays["validation"], spec.proof_tokens),
            "rejected_files": sorted(unreadable),
        },
        shards=shards,
        side_files=[table],
        card=lean_summary.card(spec),
    )


def _repository(spec: Spec, source: str | None) -> tuple[Path, dict[str, Any]]:
    where = source or spec.repository
    if where == "sample":
        return sample_repository(), {"kind": "sample"}
    return open_repository(where, spec.commit, root=spec.root), {
        "kind": "git",
        "repository": without_password(where),
    }


def _require_both(files: dict[Split, list[File]], spec: Spec) -> None:
    for folder in spec.holdout:
        if not any(file.path.startswith(f"{folder}/") for file in files["validation"]):
            example = next(file.path for split in SPLITS for file in files[split])
            raise InputError(
                f"held-out folder {folder!r} has no files",
                kind="empty-holdout",
                fix=f"name folders as the repository does, such as {example.rpartition('/')[0]!r}",
            )
    for split in SPLITS:
        if not files[split]:
            raise InputError(
                f"no file of commit {spec.commit} under {spec.root!r} is in {split}",
                kind="empty-split",
                fix="check the spec's root, holdout and validation_share",
                split=split,
            )


def _cut(files: Sequence[File], batch_bytes: int) -> list[list[File]]:
    """Consecutive files in batches of about this size."""
    batches: list[list[File]] = []
    room = 0
    for file in files:
        if room <= 0:
            batches.append([])
            room = batch_bytes
        batches[-1].append(file)
        room -= file.size
    return batches


def _encode(
    spec: Spec, files: dict[Split, list[File]], git_dir: Path, job: Job
) -> dict[Split, list[Record]]:
    cuts = [(split, batch) for split in SPLITS for batch in _cut(files[split], spec.batch_bytes)]
    units = []
    for split, batch in cuts:
        inputs = {
            "files": [[file.path, file.blob] for file in batch],
            "kinds": sorted(spec.kinds),
            "tokenizer": Gpt2.identity,
        }
        label = f"{split} {batch[0].path} – {batch[-1].path}"
        args = {**inputs, "git_dir": str(git_dir)}
        units.append(Unit(label, inputs, args, sum(file.size for file in batch)))
    records = job.run(TOKENS, units)
    return {
        s: [record for (split, _), record in zip(cuts, records, strict=True) if split == s]
        for s in SPLITS
    }


def _write(
    spec: Spec,
    batches: dict[Split, list[Record]],
    found: lean_audit.Audit,
    masks: dict[str, dict[Split, list[NDArray]]],
    job: Job,
) -> tuple[SideFile, list[ShardFile]]:
    """The table and all shards, in one stage: no worker waits for the last unit of a kind."""
    proof_rules = {"prompt_tokens": spec.prompt_tokens, "proof_tokens": spec.proof_tokens}
    units = {
        **_shard_units("source", {"context": spec.context}, batches, "left_out", masks),
        **_shard_units("proof", proof_rules, batches, "dropped", masks),
    }
    table = _table_unit(spec, batches, masks["dropped"], found)
    written, *records = job.run(WRITE, [table, *units.values()])
    rows, sha256 = written.result["rows"], written.result["rows_sha256"]
    return SideFile(TABLE_FILE, "declarations", written.address, rows, sha256), [
        ShardFile(*of, record) for of, record in zip(units, records, strict=True)
    ]


def _shard_units(
    config: str,
    rules: dict[str, Any],
    batches: dict[Split, list[Record]],
    mask: str,
    masks: dict[str, dict[Split, list[NDArray]]],
) -> dict[tuple[str, str, Split], Unit]:
    """The units of a config's shards by path, config and split; the named mask goes with them."""
    units = {}
    for split in SPLITS:
        step = _BATCHES[config]
        starts = range(0, len(batches[split]), step)
        for index, start in enumerate(starts):
            part = slice(start, start + step)
            inputs = {
                "what": config,
                **rules,
                "batches": [record.address for record in batches[split][part]],
                mask: [np.flatnonzero(one).tolist() for one in masks[mask][split][part]],
            }
            path = f"{config}/{shard_name(split, index, len(starts))}"
            weight = sum(record.result["tokens"] for record in batches[split][part])
            units[path, config, split] = Unit(path, inputs, weight=weight)
    return units


def _table_unit(
    spec: Spec,
    batches: dict[Split, list[Record]],
    dropped: dict[Split, list[NDArray]],
    found: lean_audit.Audit,
) -> Unit:
    listed = []
    for split in SPLITS:
        for i, batch in enumerate(batches[split]):
            validation = split == "validation"
            flags = {
                "dropped": dropped[split][i],
                "proof_in_training": found.proofs[i] if validation else np.zeros(0),
                "statement_in_training": found.statements[i] if validation else np.zeros(0),
            }
            marks = {key: np.flatnonzero(mask).tolist() for key, mask in flags.items()}
            listed.append({"address": batch.address, "split": split, **marks})
    inputs = {"what": "table", "proof_tokens": spec.proof_tokens, "batches": listed}
    return Unit(TABLE_FILE, inputs, weight=sum(r.result["tokens"] for r in batches["train"]) / 2)


def plan(spec: Spec, source: str | None, workers: int) -> dict[str, Any]:
    """What a build takes; a repository that is not here yet is taken to be Mathlib's size."""
    where = source or spec.repository
    size, lines = _MATHLIB_BYTES, [f"fetch    {without_password(where)} at {spec.commit[:12]}"]
    if not is_url(where):
        git_dir, _ = _repository(spec, source)
        listing = list_files(git_dir, spec.commit, spec.root, max_bytes=spec.max_file_bytes)
        size = sum(file.size for file in listing.files)
        lines = [f"files    {len(listing.files):,} under {spec.root}"]
    return {
        "rows": int(size / 500),  # measured on Mathlib: 120,549 rows from 60 MB
        "read_bytes": size,
        "disk_bytes": 11 * size,  # rows are 6 to 9 times the text, other units 2
        "memory_bytes": workers * 500_000_000,
        "core_seconds": 5 + size / 4_000_000,
        "lines": lines,
    }


def record(row: dict[str, Any], config: str, lock: Lock) -> dict[str, Any]:
    """A row as text; bytes of a character that a piece cuts in two are shown as \\xNN."""
    tokens = np.asarray(row["tokens"])
    rest = {key: value for key, value in row.items() if key not in ("tokens", "target_start")}
    if config == "source":
        return {**rest, "text": _text(tokens)}
    start = int(row["target_start"])
    return {**rest, "prompt": _text(tokens[:start]), "proof": _text(tokens[start:-1])}


def _text(tokens: NDArray) -> str:
    return gpt2().decode_bytes(tokens).decode("utf-8", "backslashreplace")


def why(folder: Path, lock: Lock, ident: str) -> list[str]:
    """What became of a declaration (`NAME` or `PATH:NAME`) or of all those in a file."""
    import pyarrow.compute as pc

    tables = [e for e in lock.data["side_files"] if e["path"] == TABLE_FILE]
    if not tables:
        raise broken(folder / TABLE_FILE, "missing", "the lock does not know it", "declarations")
    table = SideTable(folder, tables[0]).table()
    path, _, name = ident.rpartition(":")
    chosen = pc.equal(table["declaration"], name)
    if path:
        chosen = pc.and_(chosen, pc.equal(table["path"], path))
    rows = table.filter(pc.or_(chosen, pc.equal(table["path"], ident))).to_pylist()
    if not rows:
        rejected = dict(lock.notes["rejected_files"]).get(ident)
        if rejected:
            return [f"{ident}: the file was rejected ({rejected})"]
        raise InputError(
            f"no declaration {ident!r} in {folder}",
            kind="not-found",
            fix="give a name as it is written in the source, PATH:NAME or PATH",
        )
    return [
        f"{row['path']}:{row['line']}: {row['kind']} {row['declaration']} is in {row['split']}, "
        f"{row['outcome']}"
        + (f", row {row['row']} of proof" if row["row"] >= 0 else "")
        + f"; {row['style']} proof of {row['proof_tokens']} tokens"
        + ("; the same proof is in training" if row["proof_in_training"] else "")
        + ("; the same statement is in training" if row["statement_in_training"] else "")
        for row in rows
    ]
