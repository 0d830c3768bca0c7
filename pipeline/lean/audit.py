"""What validation shares with training: proofs, statements and nearly equal files.

- A proof or statement is repeated if its text, without the white space around it, occurs in
  training. Most repeated proofs are short (`rfl`), so the counts are given by length too.
- A validation file nearly equals a training file if at least `near` of its sampled 16-token
  shingles occur in that one file.
- The audit only reads hashes; what is dropped is decided by the spec.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tangobench.pipeline.core.shards import unpack_texts
from tangobench.pipeline.lean.encode import SAMPLED_BITS
from tangobench.pipeline.lean.rows import Arrays, Batch, NDArray, proof_lengths
from tangobench.pipeline.lean.spec import Spec

LONG: Final = 30  # tokens; shorter proofs recur by nature
_PREFIX_BITS: Final = 20
_PREFIX_SHIFT: Final = np.uint64(SAMPLED_BITS - _PREFIX_BITS)
_FEWEST: Final = 8  # sampled shingles below which a share says nothing


def audit(
    train: Sequence[Arrays], validation: Sequence[Arrays], batches: Sequence[Batch], spec: Spec
) -> tuple[list[Batch], dict[str, Any]]:
    """The validation batches, marked and without what the spec drops; counts of what is shared.

    Proofs and statements are counted where the proof is short enough to be a row.
    """
    proofs, statements = (
        _repeated(train, validation, key) for key in ("proof_hash", "statement_hash")
    )
    near, pairs = _near_files(train, validation, spec.near)
    marked = []
    for number, (batch, arrays) in enumerate(zip(batches, validation, strict=True)):
        marks = {"proofs": proofs[number], "statements": statements[number]}
        marks["files"] = near[number][arrays["file"]]
        none = np.zeros(len(arrays["file"]), np.bool_)
        dropped = np.logical_or.reduce([none, *(marks[what] for what in spec.drop)])
        left_out = near[number] if "files" in spec.drop else none[:0]
        masks = (left_out, dropped, marks["proofs"], marks["statements"])
        found = (np.flatnonzero(mask).tolist() for mask in masks)
        marked.append(Batch(batch.address, batch.split, *found))
    lengths = np.concatenate([*map(proof_lengths, validation)])
    fits = lengths <= spec.proof_tokens
    long = fits & (lengths > LONG)
    return marked, {
        "validation_proofs": int(fits.sum()),
        "proofs_also_in_training": int((fits & np.concatenate(proofs)).sum()),
        f"validation_proofs_over_{LONG}_tokens": int(long.sum()),
        f"proofs_over_{LONG}_tokens_also_in_training": int((long & np.concatenate(proofs)).sum()),
        "statements_also_in_training": int((fits & np.concatenate(statements)).sum()),
        "near_files": [[a, b, round(share, 3)] for a, b, share in pairs],
    }


def _repeated(train: Sequence[Arrays], validation: Sequence[Arrays], key: str) -> list[NDArray]:
    known = np.sort(np.concatenate([arrays[key] for arrays in train]))
    # Two searches are faster than `np.isin` on hashes.
    sides = ((np.searchsorted(known, a[key], s) for s in ("left", "right")) for a in validation)
    return [low < high for low, high in sides]


def _near_files(
    train: Sequence[Arrays], validation: Sequence[Arrays], near: float
) -> tuple[list[NDArray], list[tuple[str, str, float]]]:
    """Which files of each validation batch; its path, that of training and the share in both."""
    paths = [path for arrays in validation for path in unpack_texts(arrays, "path")]
    sizes = np.concatenate([np.diff(arrays["shingle_offsets"]) for arrays in validation])
    hashes = np.concatenate([arrays["shingle"] for arrays in validation])
    order = np.argsort(hashes, kind="stable")
    hashes, owners = hashes[order], np.repeat(np.arange(len(sizes)), sizes)[order]
    best: dict[int, tuple[float, str]] = {}
    for arrays in train:
        names = unpack_texts(arrays, "path")
        others, files, shared = _shared(arrays, hashes, owners)
        shares = shared / sizes[files]
        nearly = np.flatnonzero((sizes[files] >= _FEWEST) & (shares >= near))
        for other, file, share in zip(
            others[nearly].tolist(), files[nearly].tolist(), shares[nearly].tolist(), strict=True
        ):
            if share > best.get(file, (0.0, ""))[0]:
                best[file] = (share, names[other])
    pairs = [(paths[i], name, share) for i, (share, name) in sorted(best.items())]
    flags = np.isin(np.arange(len(sizes)), list(best))
    ends = np.cumsum([len(arrays["shingle_offsets"]) - 1 for arrays in validation])
    return np.split(flags, ends[:-1]), pairs


def _shared(arrays: Arrays, hashes: NDArray, owners: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """Training file, validation file and number of shingles in both, where there is any."""
    sizes = np.diff(arrays["shingle_offsets"])
    possible = np.zeros(1 << _PREFIX_BITS, np.bool_)  # most shingles are in no validation file
    possible[hashes >> _PREFIX_SHIFT] = True
    mine = np.flatnonzero(possible[arrays["shingle"] >> _PREFIX_SHIFT])
    low = np.searchsorted(hashes, arrays["shingle"][mine], "left")
    counts = np.searchsorted(hashes, arrays["shingle"][mine], "right") - low
    files = np.repeat(np.repeat(np.arange(len(sizes)), sizes)[mine], counts)
    at = np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    width = max(1, len(owners))
    pairs, shared = np.unique(files * width + owners[at], return_counts=True)
    return pairs // width, pairs % width, shared
