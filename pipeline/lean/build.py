"""The Lean dataset: source files and proof completion from one commit, split by file.

- The commit decides the input: same commit, same spec, same root, wherever it was cloned from.
- Two configs: `source` (pieces of a file) and `proof` (prompt, complete proof, EOT), and a table
  with the outcome of every declaration.
- Workers read the git directory themselves: it must be visible to all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from tangobench.pipeline.core.build import Job, Record, Result, ShardFile, SideFile
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.shards import shard_name, unpack
from tangobench.pipeline.lean import git, rows
from tangobench.pipeline.lean.audit import audit
from tangobench.pipeline.lean.encode import TOKENS, TokensArgs, TokensResult
from tangobench.pipeline.lean.fetch import is_url, without_password
from tangobench.pipeline.lean.plan import listed
from tangobench.pipeline.lean.proofs import STYLES
from tangobench.pipeline.lean.spec import KINDS, SPLITS, Spec, Split
from tangobench.pipeline.tokenizer.use import Choice, choose

MATHLIB: Final = "https://github.com/leanprover-community/mathlib4"
MATHLIB_COMMIT: Final = "cf8e23a62939ed7cc530fbb68e83539730f32f86"
# Batches per shard: about 14 and 20 MB of rows.
_BATCHES: Final[dict[rows.What, int]] = {"source": 8, "proof": 2}
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
    git_dir, listing, files = listed(spec, source, job.reporter)
    where = source or spec.repository
    origin = {"kind": "git", "repository": without_password(where)}
    if where == "sample":
        origin = {"kind": "sample"}
    chosen = choose(spec, job)
    tokenizer = chosen.load(job.store)
    records = _encode(spec, files, git_dir, chosen, job)
    results = {s: [record.result for record in records[s]] for s in SPLITS}
    arrays = {s: [unpack(job.store.read(r.address)) for r in records[s]] for s in SPLITS}
    batches = {s: [rows.Batch(r.address, s, [], [], [], []) for r in records[s]] for s in SPLITS}
    held = (arrays["validation"], batches["validation"])
    batches["validation"], leakage = audit(arrays["train"], *held, spec)
    table, shards = _write(spec, batches, results, chosen, job)
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
        notes={"leakage": leakage, "rejected_files": sorted(unreadable)},
        shards=shards,
        side_files=[table, *chosen.side_files()],
        card=card(spec, origin, tokenizer.title),
        provenance={"lean_toolchain": listing.toolchain} if listing.toolchain else {},
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
        units.append(TOKENS.unit(label, args, weight=sum(file.size for file in batch)))
    records: dict[Split, list[Record[TokensResult]]] = {split: [] for split in SPLITS}
    for (split, _), record in zip(cuts, job.run(TOKENS, units), strict=True):
        records[split].append(record)
    return records


def _write(
    spec: Spec,
    batches: dict[Split, list[rows.Batch]],
    results: dict[Split, list[TokensResult]],
    chosen: Choice,
    job: Job,
) -> tuple[SideFile, list[ShardFile]]:
    """The table and all shards, in one stage: no worker waits for the last unit of a kind."""
    sizes = (spec.context, spec.prompt_tokens, spec.proof_tokens)
    weights = {split: [result["tokens"] for result in results[split]] for split in SPLITS}
    every = tuple(batch for split in SPLITS for batch in batches[split])
    table = rows.WriteArgs("table", *sizes, every, chosen)
    units = [rows.WRITE.unit(rows.TABLE_FILE, table, weight=sum(weights["train"]) / 2)]
    named = []
    for (what, step), split in product(_BATCHES.items(), SPLITS):
        starts = range(0, len(batches[split]), step)
        for index, start in enumerate(starts):
            path = f"{what}/{shard_name(split, index, len(starts))}"
            own = tuple(batches[split][start : start + step])
            args = rows.WriteArgs(what, *sizes, own, chosen)
            weight = sum(weights[split][start : start + step])
            units.append(rows.WRITE.unit(path, args, weight=weight))
            named.append((path, what, split))
    written, *records = job.run(rows.WRITE, units)
    side = SideFile(rows.TABLE_FILE, "declarations", written.address, **written.result)
    return side, [ShardFile(*of, record) for of, record in zip(named, records, strict=True)]


def _counts(
    split: Split,
    results: Sequence[Mapping[str, Any]],
    arrays: Sequence[rows.Arrays],
    shards: Sequence[ShardFile],
) -> dict[str, Any]:
    lengths = np.sort(np.concatenate([*map(rows.proof_lengths, arrays)]))
    ranks = {n: int(q * (len(lengths) - 1)) for n, q in _QUANTILES.items() if len(lengths)}
    own = [(s.config, s.record.result["shard"]["rows"]) for s in shards if s.split == split]
    summed = ("files", "bytes", "tokens", "declarations")
    return {
        **{key: sum(result[key] for result in results) for key in summed},
        "kinds": _tally(arrays, "kind", KINDS),
        "styles": _tally(arrays, "style", STYLES),
        # The element at a rank, not an interpolation: an integer on every machine.
        "proof_length": {name: int(lengths[rank]) for name, rank in ranks.items()},
        "rows": {config: sum(n for c, n in own if c == config) for config in _BATCHES},
    }


def _tally(arrays: Sequence[rows.Arrays], key: str, names: Sequence[str]) -> dict[str, int]:
    total = np.bincount(np.concatenate([part[key] for part in arrays]), minlength=len(names))
    return {name: count for name, count in zip(names, total.tolist(), strict=True) if count}


def _dropped(
    split: Split, arrays: Sequence[rows.Arrays], batches: Sequence[rows.Batch], proof_tokens: int
) -> dict[str, int]:
    """Proofs that were left out, by reason."""
    fits = [rows.proof_lengths(part) <= proof_tokens for part in arrays]
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
