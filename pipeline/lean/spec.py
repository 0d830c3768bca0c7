"""What the Lean dataset should be, and the split that follows from it.

- A file's split is a function of its path and the spec alone: by a salted hash of the path, or,
  with `holdout`, by the folders and files named there.
- One exception, for small projects: if the hash leaves a side empty, the file with the smallest
  hash becomes validation, or the one with the largest training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tangobench.pipeline.core.spec import bad_value
from tangobench.pipeline.tokenizer import TokenizerKeys

Split = Literal["train", "validation"]
SPLITS: Final[tuple[Split, ...]] = ("train", "validation")
KINDS: Final = ("theorem", "lemma", "instance", "example")
DROPPABLE: Final = ("proofs", "statements", "files")


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec(TokenizerKeys):
    """What to read, how to split it and how long rows are."""

    repository: str
    commit: str
    root: str
    context: int
    prompt_tokens: int
    proof_tokens: int
    kinds: tuple[str, ...]
    validation_share: float
    salt: str
    holdout: tuple[str, ...]
    drop: tuple[str, ...]
    near: float
    max_file_bytes: int
    batch_bytes: int

    def __post_init__(self) -> None:
        # One spelling per meaning: `Mathlib` and `Mathlib/` must not give two roots.
        object.__setattr__(self, "root", f"{self.root.strip('/')}/" if self.root.strip("/") else "")
        object.__setattr__(self, "holdout", tuple(folder.rstrip("/") for folder in self.holdout))
        for key in ("prompt_tokens", "proof_tokens", "max_file_bytes", "batch_bytes"):
            if getattr(self, key) < 1:
                raise bad_value(key, getattr(self, key), "a count of at least 1")
        longest = self.prompt_tokens + self.proof_tokens + 1
        if self.context < longest:
            raise bad_value("context", self.context, f"at least {longest}: prompt, proof and EOT")
        for key, allowed in (("kinds", KINDS), ("drop", DROPPABLE)):
            for value in getattr(self, key):
                if value not in allowed:
                    raise bad_value(key, value, f"some of {', '.join(allowed)}")
        if not self.kinds:
            raise bad_value("kinds", [], f"some of {', '.join(KINDS)}")
        if not 0 < self.validation_share < 1:
            raise bad_value("validation_share", self.validation_share, "between 0 and 1")
        if not 0 < self.near <= 1:
            raise bad_value("near", self.near, "a share of at most 1")


def split_of(path: str, spec: Spec) -> Split:
    """Where a file belongs: decided by its path alone."""
    if spec.holdout:
        held = any(path == item or path.startswith(f"{item}/") for item in spec.holdout)
        return "validation" if held else "train"
    return "validation" if _hash(path, spec) / 2**64 < spec.validation_share else "train"


def splits_of(paths: Sequence[str], spec: Spec) -> dict[str, Split]:
    """The split of every file; with two files or more the hash leaves no side empty."""
    found = {path: split_of(path, spec) for path in paths}
    if spec.holdout or len(found) < len(SPLITS):
        return found
    ordered = sorted(found, key=lambda path: _hash(path, spec))
    if "validation" not in found.values():
        found[ordered[0]] = "validation"
    elif "train" not in found.values():
        found[ordered[-1]] = "train"
    return found


def _hash(path: str, spec: Spec) -> int:
    return int.from_bytes(hashlib.sha256(f"{spec.salt}\0{path}".encode()).digest()[:8], "big")
