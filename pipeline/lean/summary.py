"""What a Lean lock says: identity of the input, counts, drops and the dataset card.

Usage: `Result(source=identity(listing, spec), counts=counts(...), card=card(spec), ...)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tangobench.pipeline.core.build import ShardFile
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.lean.encode import STYLES, TokensResult
from tangobench.pipeline.lean.fetch import is_url
from tangobench.pipeline.lean.git import Listing
from tangobench.pipeline.lean.rows import proof_lengths
from tangobench.pipeline.lean.spec import KINDS, SPLITS, Spec, Split

NDArray = np.ndarray[Any, Any]
Arrays = dict[str, NDArray]

MATHLIB: Final = "https://github.com/leanprover-community/mathlib4"
MATHLIB_COMMIT: Final = "cf8e23a62939ed7cc530fbb68e83539730f32f86"
_QUANTILES: Final = {"median": 0.5, "p90": 0.9, "p99": 0.99}


def identity(listing: Listing, spec: Spec) -> dict[str, Any]:
    """What was read, by content."""
    return {
        "commit": listing.commit,
        "tree": listing.tree,
        "root": spec.root,
        "files": len(listing.files),
        "bytes": sum(file.size for file in listing.files),
        "files_sha256": digest([[file.path, file.blob] for file in listing.files]),
    }


def counts(
    batches: Mapping[Split, Sequence[TokensResult]],
    arrays: Mapping[Split, Sequence[Arrays]],
    shards: Sequence[ShardFile],
) -> dict[str, Any]:
    """Files, declarations, rows and lengths of each split."""
    return {
        split: {
            **{
                key: sum(getattr(result, key) for result in batches[split])
                for key in ("files", "bytes", "tokens", "declarations")
            },
            "kinds": _tally(arrays[split], "kind", KINDS),
            "styles": _tally(arrays[split], "style", STYLES),
            "proof_length": _lengths(arrays[split]),
            "rows": {
                name: sum(
                    shard.record.result["shard"]["rows"]
                    for shard in shards
                    if (shard.config, shard.split) == (name, split)
                )
                for name in ("source", "proof")
            },
        }
        for split in SPLITS
    }


def drops(
    rejected: Mapping[str, int],
    arrays: Mapping[Split, Sequence[Arrays]],
    dropped: Mapping[Split, Sequence[NDArray]],
    proof_tokens: int,
) -> dict[str, int]:
    """Files and proofs that were left out, by reason."""
    found = {f"file {reason}": count for reason, count in sorted(rejected.items())}
    for split in SPLITS:
        lengths = all_lengths(arrays[split])
        repeated = np.concatenate([*dropped[split], np.zeros(0, np.bool_)])
        found[f"{split} proof too long"] = int((lengths > proof_tokens).sum())
        found[f"{split} proof repeated"] = int((repeated & (lengths <= proof_tokens)).sum())
    return found


def all_lengths(arrays: Sequence[Arrays]) -> NDArray:
    """Proof lengths in tokens over all batches."""
    return np.concatenate([*(proof_lengths(a) for a in arrays), np.zeros(0, np.int64)])


def _lengths(arrays: Sequence[Arrays]) -> dict[str, int]:
    lengths = np.sort(all_lengths(arrays))
    if not len(lengths):
        return {}
    # The element at a rank, not an interpolation: an integer on every machine.
    found = {name: int(lengths[int(q * (len(lengths) - 1))]) for name, q in _QUANTILES.items()}
    return {**found, "longest": int(lengths[-1])}


def _tally(arrays: Sequence[Arrays], key: str, names: Sequence[str]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in arrays:
        total.update({names[i]: int(n) for i, n in enumerate(np.bincount(part[key]).tolist())})
    return {name: total[name] for name in names if total[name]}


_BIBTEX: Final = [
    "@inproceedings{mathlib,",
    "  author = {{The mathlib Community}},",
    "  title = {The {Lean} Mathematical Library},",
    "  booktitle = {CPP},",
    "  year = {2020}",
    "}",
]


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
