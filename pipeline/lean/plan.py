"""What a Lean build reads, writes and takes, before it starts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

from tangobench.errors import InputError
from tangobench.pipeline.core.lock import committed_lock
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.core.spec import PROFILES, as_dict
from tangobench.pipeline.lean import fetch
from tangobench.pipeline.lean.git import File, Listing, list_files
from tangobench.pipeline.lean.spec import SPLITS, Spec, Split, splits_of

_MATHLIB_BYTES: Final = 60_094_008


def resolve(spec: Spec, source: str | None) -> Spec:
    """The spec with the commit that its name (`HEAD`, a tag) means."""
    where = source or spec.repository
    if where == "sample":
        return spec
    return dataclasses.replace(spec, commit=fetch.resolve_commit(where, spec.commit))


def listed(
    spec: Spec, source: str | None, reporter: Reporter | None = None
) -> tuple[Path, Listing, dict[Split, list[File]]]:
    """The git directory of a source, and the files of its commit by split, in path order."""
    where = source or spec.repository
    try:
        git_dir = fetch.open_repository(where, spec.commit, root=spec.root, reporter=reporter)
    except InputError as error:
        if error.kind == "commit-missing" and spec.commit == fetch.SAMPLE_COMMIT:
            error.fix = "the sample's commit is not of this repository: add --commit HEAD"
        raise
    listing = list_files(git_dir, spec.commit, spec.root, max_bytes=spec.max_file_bytes)
    splits = splits_of([file.path for file in listing.files], spec)
    files = {s: [file for file in listing.files if splits[file.path] == s] for s in SPLITS}
    for item in spec.holdout:
        if not any(f.path == item or f.path.startswith(f"{item}/") for f in files["validation"]):
            paths = [file.path for file in listing.files]
            meant = next((path for path in paths if path.endswith(f"/{item}")), paths[0])
            fix = f"name folders and files as the repository does, such as {meant!r}"
            message = f"held-out folder or file {item!r} has no files"
            raise InputError(message, kind="empty-holdout", fix=fix)
    for split in (split for split in SPLITS if not files[split]):
        message = f"no file of commit {spec.commit} under {spec.root!r} is in {split}"
        fix = (
            "a project needs two .lean files, and --holdout must leave one: check root and holdout"
        )
        raise InputError(message, kind="empty-split", fix=fix, split=split)
    return git_dir, listing, files


def plan(spec: Spec, source: str | None, workers: int) -> dict[str, Any]:
    """What a build takes; a repository that is not here yet is taken to be Mathlib's size."""
    where, wanted = source or spec.repository, as_dict(spec)
    shipped = (committed_lock("lean", profile) for profile in PROFILES)
    # The committed lock of this spec has the exact numbers.
    known = next((lock for lock in shipped if lock and lock.spec == wanted), None)
    if fetch.is_url(where):
        size, count = known.data["source"]["bytes"] if known else _MATHLIB_BYTES, 0
        line = f"fetch    {fetch.without_password(where)} at {spec.commit[:12]}"
    else:
        _, listing, files = listed(spec, source)
        size, count = sum(file.size for file in listing.files), len(listing.files)
        counts = " + ".join(f"{len(files[split]):,} {split}" for split in SPLITS)
        line = f"files    {counts} under {spec.root or '/'} at {spec.commit[:12]}"
    # Measured on Mathlib: 120,549 rows from 60 MB; a small project has a few per file.
    guess = max(3 * count, size // 500)
    return {
        "rows": sum(s["rows"] for s in known.shards) if known else guess,
        "read_bytes": size,
        "disk_bytes": 11 * size,  # rows are 6 to 9 times the text, other units 2
        "memory_bytes": workers * 500_000_000,
        "core_seconds": 5 + size / 4_000_000,
        "lines": [line],
    }
