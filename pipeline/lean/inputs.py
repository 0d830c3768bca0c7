"""Where a Lean build reads: the repository of a source, and the files of its commit by split.

Usage: `git_dir, origin = repository(spec, "~/mathlib4")`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tangobench.errors import InputError
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.lean.fetch import open_repository, resolve_commit, without_password
from tangobench.pipeline.lean.git import File, Listing
from tangobench.pipeline.lean.sample import SAMPLE_COMMIT, sample_repository
from tangobench.pipeline.lean.spec import SPLITS, Spec, Split, splits_of
from tangobench.pipeline.tokenizer import keys


def resolve(spec: Spec, source: str | None) -> Spec:
    """The spec with the commit that its name (`HEAD`, a tag) means, and its tokenizer's sha256."""
    spec = keys.resolve(spec)
    where = source or spec.repository
    if where == "sample":
        return spec
    return dataclasses.replace(spec, commit=resolve_commit(where, spec.commit))


def repository(
    spec: Spec, source: str | None, reporter: Reporter | None = None
) -> tuple[Path, dict[str, Any]]:
    """The git directory of a source, and what run.json says about where it is."""
    where = source or spec.repository
    if where == "sample":
        return sample_repository(), {"kind": "sample"}
    try:
        git_dir = open_repository(where, spec.commit, root=spec.root, reporter=reporter)
    except InputError as error:
        if error.kind == "commit-missing" and spec.commit == SAMPLE_COMMIT:
            error.fix = "the sample's commit is not of this repository: add --commit HEAD"
        raise
    return git_dir, {"kind": "git", "repository": without_password(where)}


def files_by_split(listing: Listing, spec: Spec) -> dict[Split, list[File]]:
    """The files of each split, in path order; neither split nor anything held out is empty."""
    splits = splits_of([file.path for file in listing.files], spec)
    files = {s: [file for file in listing.files if splits[file.path] == s] for s in SPLITS}
    for item in spec.holdout:
        if not any(f.path == item or f.path.startswith(f"{item}/") for f in files["validation"]):
            example = listing.files[0].path
            raise InputError(
                f"held-out folder or file {item!r} has no files",
                kind="empty-holdout",
                fix="name folders and files as the repository does, such as "
                f"{example.rpartition('/')[0] or example!r}",
            )
    for split in SPLITS:
        if not files[split]:
            raise InputError(
                f"no file of commit {spec.commit} under {spec.root!r} is in {split}",
                kind="empty-split",
                fix="a project needs two .lean files, and --holdout must leave one: check the "
                "spec's root and holdout",
                split=split,
            )
    return files
