"""The Lean dataset: source files and proof completion from one commit, split by file.

- The commit decides the input: same commit, same spec, same root, wherever it was cloned from.
- Two configs: `source` (pieces of a file) and `proof` (prompt, complete proof, EOT), and a table
  with the outcome of every declaration.
- Workers read the git directory themselves: it must be visible to all of them.

Usage: `tangobench build lean --profile paper --source /path/to/mathlib4`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tangobench.pipeline.core.arrays import unpack
from tangobench.pipeline.core.build import (
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
from tangobench.pipeline.core.shards import shard_name
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.lean import audit, git, summary
from tangobench.pipeline.lean.declarations import (
    TABLE_FILE,
    TableArgs,
    TableBatch,
    TableResult,
    write_table,
)
from tangobench.pipeline.lean.encode import TOKENS, TokensArgs, TokensResult
from tangobench.pipeline.lean.git import File, list_files
from tangobench.pipeline.lean.inputs import files_by_split, repository
from tangobench.pipeline.lean.rows import ProofArgs, SourceArgs, proof_shard, source_shard
from tangobench.pipeline.lean.spec import SPLITS, Spec, Split
from tangobench.pipeline.tokenizer.use import Choice, choose

NDArray = np.ndarray[Any, Any]
Units = dict[tuple[str, str, Split], Unit]  # by path, config and split

_BATCHES: Final = {"source": 8, "proof": 2}  # batches per shard: about 14 and 20 MB of rows


@dataclass(frozen=True, slots=True)
class Encoded:
    """The encoded batches of one split, and for each the files and declarations to leave out."""

    records: list[Record]
    left_out: list[NDArray]
    dropped: list[NDArray]

    def results(self) -> list[TokensResult]:
        """What each batch holds."""
        return [TokensResult.of(record) for record in self.records]


def write_one(args: SourceArgs | ProofArgs | TableArgs, store: Store) -> Output | Streamed:
    """A shard or the table, whatever the unit asks for."""
    if isinstance(args, TableArgs):
        return write_table(args, store)
    return source_shard(args, store) if isinstance(args, SourceArgs) else proof_shard(args, store)


WRITE: Final = Stage("lean-write", 1, write_one)


def build(spec: Spec, source: str | None, job: Job) -> Result:
    """Read, encode, audit and write."""
    git_dir, origin = repository(spec, source, job.reporter)
    listing = list_files(git_dir, spec.commit, spec.root, max_bytes=spec.max_file_bytes)
    chosen = choose(spec, job)
    tokenizer = chosen.load(job.store)
    batches = _encode(spec, files_by_split(listing, spec), git_dir, chosen, job)
    arrays = {s: [unpack(job.store.read(r.address)) for r in batches[s]] for s in SPLITS}
    found = audit.audit(arrays["train"], arrays["validation"], spec.near)
    encoded = _masked(spec, batches, arrays, found)
    table, shards = _write(spec, encoded, found, chosen, job)
    toolchain = git.toolchain(git_dir, spec.commit)
    unreadable = [entry for s in SPLITS for r in encoded[s].results() for entry in r.rejected]
    rejected = Counter(listing.rejected) + Counter(reason for _, reason in unreadable)
    return Result(
        source=summary.identity(listing, spec),
        origin=origin,
        tokenizer=dict(tokenizer.identity),
        configs=dict.fromkeys(("source", "proof"), tokenizer.config(spec.context, masked=False)),
        counts=summary.counts({s: encoded[s].results() for s in SPLITS}, arrays, shards),
        drops=summary.drops(
            rejected, arrays, {s: encoded[s].dropped for s in SPLITS}, spec.proof_tokens
        ),
        notes={
            "leakage": audit.summary(found, arrays["validation"], spec.proof_tokens),
            "rejected_files": sorted(unreadable),
        },
        shards=shards,
        side_files=[table, *chosen.side_files()],
        card=summary.card(spec, origin, tokenizer.title),
        provenance={"lean_toolchain": toolchain} if toolchain else {},
    )


def _encode(
    spec: Spec, files: dict[Split, list[File]], git_dir: Path, chosen: Choice, job: Job
) -> dict[Split, list[Record]]:
    cuts = [
        (split, batch) for split in SPLITS for batch in git.batches(files[split], spec.batch_bytes)
    ]
    units = []
    for split, batch in cuts:
        label = f"{split} {batch[0].path} – {batch[-1].path}"
        named = tuple((file.path, file.blob) for file in batch)
        args = TokensArgs(git_dir, named, spec.kinds, chosen)
        units.append(TOKENS.unit(label, args, sum(file.size for file in batch)))
    records = job.run(TOKENS, units)
    return {
        s: [record for (split, _), record in zip(cuts, records, strict=True) if split == s]
        for s in SPLITS
    }


def _masked(
    spec: Spec,
    batches: dict[Split, list[Record]],
    arrays: dict[Split, list[dict[str, NDArray]]],
    found: audit.Audit,
) -> dict[Split, Encoded]:
    """What the audit takes out of validation, beside each batch."""
    nothing = [np.zeros(0, np.bool_)]
    held, every = batches["validation"], arrays["train"]
    return {
        "train": Encoded(
            batches["train"],
            nothing * len(every),
            [np.zeros(len(part["file"]), np.bool_) for part in every],
        ),
        "validation": Encoded(
            held,
            found.near if "files" in spec.drop else nothing * len(held),
            audit.dropped(found, arrays["validation"], spec.drop),
        ),
    }


def _write(
    spec: Spec, encoded: dict[Split, Encoded], found: audit.Audit, chosen: Choice, job: Job
) -> tuple[SideFile, list[ShardFile]]:
    """The table and all shards, in one stage: no worker waits for the last unit of a kind."""
    units = {**_source_units(spec, encoded, chosen), **_proof_units(spec, encoded, chosen)}
    table = _table_unit(spec, encoded, found)
    written, *records = job.run(WRITE, [table, *units.values()])
    result = TableResult.of(written)
    side = SideFile(TABLE_FILE, "declarations", written.address, result.rows, result.rows_sha256)
    return side, [ShardFile(*of, record) for of, record in zip(units, records, strict=True)]


def _source_units(spec: Spec, encoded: dict[Split, Encoded], chosen: Choice) -> Units:
    units: Units = {}
    for split, path, part in _shards("source", encoded):
        own = encoded[split]
        left_out = _indices(own.left_out[part])
        args = SourceArgs(spec.context, _addresses(own, part), left_out, chosen)
        units[path, "source", split] = WRITE.unit(path, args, _weight(own, part))
    return units


def _proof_units(spec: Spec, encoded: dict[Split, Encoded], chosen: Choice) -> Units:
    units: Units = {}
    for split, path, part in _shards("proof", encoded):
        own = encoded[split]
        rules = (spec.prompt_tokens, spec.proof_tokens)
        args = ProofArgs(*rules, _addresses(own, part), _indices(own.dropped[part]), chosen)
        units[path, "proof", split] = WRITE.unit(path, args, _weight(own, part))
    return units


def _shards(config: str, encoded: dict[Split, Encoded]) -> Iterator[tuple[Split, str, slice]]:
    """Split, path and range of batches of every shard of a config."""
    step = _BATCHES[config]
    for split in SPLITS:
        starts = range(0, len(encoded[split].records), step)
        for index, start in enumerate(starts):
            path = f"{config}/{shard_name(split, index, len(starts))}"
            yield split, path, slice(start, start + step)


def _addresses(encoded: Encoded, part: slice) -> tuple[str, ...]:
    return tuple(record.address for record in encoded.records[part])


def _indices(masks: Sequence[NDArray]) -> tuple[list[int], ...]:
    return tuple(_marked(mask) for mask in masks)


def _weight(encoded: Encoded, part: slice) -> float:
    return sum(result.tokens for result in encoded.results()[part])


def _table_unit(spec: Spec, encoded: dict[Split, Encoded], found: audit.Audit) -> Unit:
    none = [np.zeros(0)] * len(encoded["train"].records)
    repeated = {"train": (none, none), "validation": (found.proofs, found.statements)}
    listed = [
        TableBatch(
            address=record.address,
            split=split,
            dropped=_marked(dropped),
            proof_in_training=_marked(proofs),
            statement_in_training=_marked(statements),
        )
        for split in SPLITS
        for record, dropped, proofs, statements in zip(
            encoded[split].records, encoded[split].dropped, *repeated[split], strict=True
        )
    ]
    weight = _weight(encoded["train"], slice(None)) / 2
    return WRITE.unit(TABLE_FILE, TableArgs(spec.proof_tokens, tuple(listed)), weight)


def _marked(mask: NDArray) -> list[int]:
    marked: list[int] = np.flatnonzero(mask).tolist()
    return marked
