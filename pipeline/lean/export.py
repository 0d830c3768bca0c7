"""Proofs of a commit as JSON lines, for people and other programs.

- One line per declaration, in path and file order; offsets are bytes into the file at that commit.
- A file appears whole or not at all.
- Memory is bounded: files are read some megabytes at a time, larger ones are left out and counted.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tangobench.errors import InputError
from tangobench.pipeline.core.files import atomic_file
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.lean.fetch import open_repository, resolve_commit
from tangobench.pipeline.lean.git import File, batches, list_files, read_files
from tangobench.pipeline.lean.lexer import Unterminated
from tangobench.pipeline.lean.proofs import PROOF_KINDS, extract

MAX_BYTES: Final = 8_000_000  # of a file, as in the spec
_BYTES_AT_ONCE: Final = 4_000_000


def export(
    source: str,
    commit: str,
    out: str,
    pattern: str | None = None,
    kinds: Collection[str] = PROOF_KINDS,
    *,
    max_bytes: int = MAX_BYTES,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Write the declarations of a commit; what was written and what was left out."""
    commit = resolve_commit(source, commit)
    git_dir = open_repository(source, commit, reporter=reporter)
    listing = list_files(git_dir, commit, "", max_bytes=max_bytes)
    chosen = [f for f in listing.files if not pattern or fnmatch.fnmatchcase(f.path, pattern)]
    if not chosen:
        message = f"no file of commit {commit} matches {pattern!r}"
        fix = f"match whole paths, such as {listing.files[0].path!r}"
        raise InputError(message, kind="no-lean-files", fix=fix)
    rejected: list[list[str]] = []
    count = 0
    sink = contextlib.nullcontext(sys.stdout.buffer) if out == "-" else atomic_file(Path(out))
    with sink as file:
        for part in batches(chosen, _BYTES_AT_ONCE):
            rows = [*_rows(git_dir, part, kinds, rejected)]
            file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
            count += len(rows)
    return {
        "commit": commit,
        "files": len(chosen) - len(rejected),
        "declarations": count,
        "rejected": listing.rejected,
        "rejected_files": rejected,
    }


def _rows(
    git_dir: Path, files: Sequence[File], kinds: Collection[str], rejected: list[list[str]]
) -> Iterator[dict[str, Any]]:
    for file, data in zip(files, read_files(git_dir, files), strict=True):
        try:
            data.decode()
            found = extract(data, kinds)
        except UnicodeDecodeError as error:
            rejected.append([file.path, f"not UTF-8 at byte {error.start}"])
        except Unterminated as error:
            rejected.append([file.path, str(error)])
        else:
            for declaration in found:
                *fields, (_, style) = declaration._asdict().items()
                proof = declaration.proof(data)
                yield {"file": file.path, **dict(fields), "proof": proof, "style": style}
