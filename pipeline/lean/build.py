"""The Lean dataset: source files and proof completion from one commit, split by file.

- The commit decides the input: same commit, same spec, same root, wherever it was cloned from.
- Two configs: `source` (pieces of a file) and `proof` (prompt, complete proof, EOT), and a table
  with the outcome of every declaration.
- Workers read the git directory themselves: it must be visible to all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tangobench.pipeline.core.arrays import unpack
from tangobench.pipeline.core.build import Job, Record, Result, ShardFile, SideFile
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.shards import shard_name
from tangobench.pipeline.lean import audit, git
from tangobench.pipeline.lean.encode import STYLES, TOKENS, TokensArgs, TokensResult
from tangobench.pipeline.lean.fetch import is_url, without_password
from tangobench.pipeline.lean.plan import listed
from tangobench.pipeline.lean.rows import (
    TABLE_FILE,
    WRITE,
    Arrays,
    Batch,
    What,
    WriteArgs,
    proof_lengths,
)
from tangobench.pipeline.lean.spec import KINDS, SPLITS, Spec, Split
from tangobench.pipeline.tokenizer.use import Choice, choose

MATHLIB: Final = "https://github.com/leanprover-community/mathlib4"
MATHLIB_COMMIT: Final = "cf8e23a62939ed7cc530fbb68e83539730f32f86"
_BATCHES: Final[dict[What, int]] = {
    "source": 8,
    "proof": 2,
}  # batches per shard: about 14 and 20 MB of rows
_QUANTILES: Final = {"median": 0.5, "p90": 0.9, "p99": 0.99, "longest": 1.0}
_BIBTEX: Final = [
    "@inproceedings{mathlib,",
    "  author = {{The mathlib Community}},",
    "  title = {The {Lean} Mathematical Library},",
    "  booktitle = {CPP},",
    "  year = {2020}",
    "}",
]


def build(spec: Spec, source: str | None, job: Job) -> Result:
    """Read, encode, audit and write."""
    git_dir, listing, files = listed(spec, source, job.reporter)
    where = source or spec.repository
    origin = {"kind": "git", "repository": without_password(where)}
    if where == "sample":
        origin = {"kind": "sample"}
    chosen = choose(spec, job)
    tokenizer = chosen.load(job.store)
    records = _encode(spec, files, git_dir, chosen, job)
    arrays = {s: [unpack(job.store.read(r.address)) for r in records[s]] for s in SPLITS}
    found = audit.audit(arrays["train"], arrays["validation"], spec.near)
    batches = _batches(spec, records, arrays["validation"], found)
    results = {s: [record.result for record in records[s]] for s in SPLITS}
    table, shards = _write(spec, batches, results, chosen, job)
    toolchain = git.toolchain(git_dir, listing)
    unreadable = [entry for s in SPLITS for result in results[s] for entry in result["rejected"]]
    rejected = Counter(listing.rejected) + Counter(reason for _, reason in unreadable)
    drops = {f"file {reason}": count for reason, count in sorted(rejected.items())}
    for s in SPLITS:
        drops |= _dropped(s, arrays[s], batches[s], spec.proof_tokens)
    return Result(
        source={
            "commit": listing.commit,
            "tree": listing.tree,
            "root": spec.root,
            "files": len(listing.files),
            "bytes": sum(file.size for file in listing.files),
            "files_sha256": digest([[file.path, file.blob] for file in listing.files]),
        },
        origin=origin,
        tokenizer=dict(tokenizer.identity),
        configs=dict.fromkeys(_BATCHES, tokenizer.config(spec.context, masked=False)),
        counts={s: _counts(s, results[s], arrays[s], shards) for s in SPLITS},
        drops=drops,
        notes={
            "leakage": audit.summary(found, arrays["validation"], spec.proof_tokens),
            "rejected_files": sorted(unreadable),
        },
        shards=shards,
        side_files=[table, *chosen.side_files()],
        card=card(spec, origin, tokenizer.title),
        provenance={"lean_toolchain": toolchain} if toolchain else {},
    )


def _encode(
    spec: Spec, files: dict[Split, list[git.File]], git_dir: Path, chosen: Choice, job: Job
) -> dict[Split, list[Record[TokensResult]]]:
    cuts = [(s, batch) for s in SPLITS for batch in git.batches(files[s], spec.batch_bytes)]
    units = []
    for split, batch in cuts:
        label = f"{split} {batch[0].path} – {batch[-1].path}"
        named = tuple((file.path, file.blob) for file in batch)
        args = TokensArgs(git_dir, named, spec.kinds, chosen)
        units.append(TOKENS.unit(label, args, sum(file.size for file in batch)))
    records: dict[Split, list[Record[TokensResult]]] = {split: [] for split in SPLITS}
    for (split, _), record in zip(cuts, job.run(TOKENS, units), strict=True):
        records[split].append(record)
    return records


def _batches(
    spec: Spec,
    records: dict[Split, list[Record[TokensResult]]],
    validation: Sequence[Arrays],
    found: audit.Audit,
) -> dict[Split, list[Batch]]:
    """The encoded batches, and what the audit marks and takes out of validation."""
    left_out = found.near if "files" in spec.drop else [np.zeros(0)] * len(validation)
    dropped = audit.dropped(found, validation, spec.drop)
    marks = zip(left_out, dropped, found.proofs, found.statements, strict=True)
    return {
        "train": [Batch(record.address, "train", [], [], [], []) for record in records["train"]],
        "validation": [
            Batch(record.address, "validation", *(np.flatnonzero(mask).tolist() for mask in masks))
            for record, masks in zip(records["validation"], marks, strict=True)
        ],
    }


def _write(
    spec: Spec,
    batches: dict[Split, list[Batch]],
    results: dict[Split, list[TokensResult]],
    chosen: Choice,
    job: Job,
) -> tuple[SideFile, list[ShardFile]]:
    """The table and all shards, in one stage: no worker waits for the last unit of a kind."""
    sizes = (spec.context, spec.prompt_tokens, spec.proof_tokens)
    weights = {split: [result["tokens"] for result in results[split]] for split in SPLITS}
    every = tuple(batch for split in SPLITS for batch in batches[split])
    table = WriteArgs("table", *sizes, every, chosen)
    units = [WRITE.unit(TABLE_FILE, table, sum(weights["train"]) / 2)]
    named = []
    for what, split in ((what, split) for what in _BATCHES for split in SPLITS):
        step = _BATCHES[what]
        starts = range(0, len(batches[split]), step)
        for index, start in enumerate(starts):
            path = f"{what}/{shard_name(split, index, len(starts))}"
            own = tuple(batches[split][start : start + step])
            args = WriteArgs(what, *sizes, own, chosen)
            units.append(WRITE.unit(path, args, sum(weights[split][start : start + step])))
            named.append((path, what, split))
    written, *records = job.run(WRITE, units)
    side = SideFile(TABLE_FILE, "declarations", written.address, **written.result)
    return side, [ShardFile(*of, record) for of, record in zip(named, records, strict=True)]


def _counts(
    split: Split,
    results: Sequence[TokensResult],
    arrays: Sequence[Arrays],
    shards: Sequence[ShardFile],
) -> dict[str, Any]:
    """Files, declarations, rows and lengths of a split."""
    lengths = np.sort(np.concatenate([*map(proof_lengths, arrays)]))
    ranks = {n: int(q * (len(lengths) - 1)) for n, q in _QUANTILES.items() if len(lengths)}
    rows: Counter[str] = Counter(dict.fromkeys(_BATCHES, 0))
    for shard in (shard for shard in shards if shard.split == split):
        rows[shard.config] += shard.record.result["shard"]["rows"]
    return {
        "files": sum(result["files"] for result in results),
        "bytes": sum(result["bytes"] for result in results),
        "tokens": sum(result["tokens"] for result in results),
        "declarations": sum(result["declarations"] for result in results),
        "kinds": _tally(arrays, "kind", KINDS),
        "styles": _tally(arrays, "style", STYLES),
        # The element at a rank, not an interpolation: an integer on every machine.
        "proof_length": {name: int(lengths[rank]) for name, rank in ranks.items()},
        "rows": dict(rows),
    }


def _tally(arrays: Sequence[Arrays], key: str, names: Sequence[str]) -> dict[str, int]:
    total = np.bincount(np.concatenate([part[key] for part in arrays]), minlength=len(names))
    return {name: count for name, count in zip(names, total.tolist(), strict=True) if count}


def _dropped(
    split: Split, arrays: Sequence[Arrays], batches: Sequence[Batch], proof_tokens: int
) -> dict[str, int]:
    """Proofs that were left out, by reason."""
    fits = [proof_lengths(part) <= proof_tokens for part in arrays]
    repeated = [own[batch.dropped] for own, batch in zip(fits, batches, strict=True)]
    return {
        f"{split} proof too long": int(sum((~own).sum() for own in fits)),
        f"{split} proof repeated": int(sum(own.sum() for own in repeated)),
    }


def card(spec: Spec, origin: Mapping[str, str], tokens: str) -> dict[str, Any]:
    """Texts of the dataset card: title, licence and source are those of what was read."""
    where = origin.get("repository", "")
    sample = origin["kind"] == "sample"
    mathlib = spec.commit == MATHLIB_COMMIT or where == MATHLIB
    named = MATHLIB if mathlib else where if is_url(where) else "A local Lean repository"
    titles = ("Lean sample: sources and proofs", "Mathlib: source files and proof completion")
    return {
        "title": titles[mathlib] if sample or mathlib else "Lean project: sources and proofs",
        "licence": "Apache-2.0" if sample or mathlib else "that of the repository",
        "licence_id": "apache-2.0" if sample or mathlib else "unknown",
        "description": (
            f"{tokens} tokens of Lean 4 files at one commit, split by file. Config `source`: "
            f"consecutive pieces of at most {spec.context:,} tokens inside one file; `start` and "
            "`length` are bytes in the file. Config `proof`: the last "
            f"{spec.prompt_tokens:,} tokens before a proof, the complete proof "
            f"of at most {spec.proof_tokens} tokens, and EOT; `target_start` is the index of the "
            "proof's first token. `declarations.parquet` has the outcome of every declaration."
        ),
        "language": ["en"],
        "bibtex": _BIBTEX if mathlib else [],
        "sources": [
            "Lean files written for this project."
            if sample
            else f"{named} at commit {spec.commit}, folder {spec.root or '/'}."
        ],
    }
