"""Proofs of a commit as JSON lines, for people and other programs.

- One line per declaration, in path and file order; offsets are bytes into the file at that commit.
- The output appears whole or not at all.

Usage: `export("mathlib4", commit, "proofs.jsonl")`.
"""

from __future__ import annotations

import fnmatch
import io
import json
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tangobench.errors import InputError
from tangobench.pipeline.files import write_atomic
from tangobench.pipeline.lean_fetch import open_repository
from tangobench.pipeline.lean_git import File, list_files, read_files
from tangobench.pipeline.lean_lexer import Unterminated
from tangobench.pipeline.lean_proofs import PROOF_KINDS, extract

_FILES_AT_ONCE: Final = 200
FIELDS: Final = (
    *("file", "kind", "name", "line", "decl_start", "kw_start", "proof_start", "proof_end"),
    *("proof", "style"),
)


def export(
    source: str,
    commit: str,
    out: str,
    pattern: str | None = None,
    kinds: Collection[str] = PROOF_KINDS,
) -> dict[str, Any]:
    """Write the declarations of a commit; what was written and what was left out."""
    git_dir = open_repository(source, commit)
    listing = list_files(git_dir, commit, "")
    chosen = [f for f in listing.files if not pattern or fnmatch.fnmatchcase(f.path, pattern)]
    if not chosen:
        raise InputError(
            f"no file of commit {commit} matches {pattern!r}",
            kind="no-lean-files",
            fix=f"match whole paths, such as {listing.files[0].path!r}",
        )
    rejected: list[list[str]] = []
    lines = io.StringIO()
    count = 0
    for row in _rows(git_dir, chosen, kinds, rejected):
        lines.write(json.dumps(row, ensure_ascii=False) + "\n")
        count += 1
    if out == "-":
        sys.stdout.write(lines.getvalue())
    else:
        write_atomic(Path(out), lines.getvalue().encode())
    return {
        "files": len(chosen) - len(rejected),
        "declarations": count,
        "rejected": listing.rejected,
        "rejected_files": rejected,
    }


def _rows(
    git_dir: Path, files: Sequence[File], kinds: Collection[str], rejected: list[list[str]]
) -> Iterator[dict[str, Any]]:
    for start in range(0, len(files), _FILES_AT_ONCE):
        part = files[start : start + _FILES_AT_ONCE]
        for file, data in zip(part, read_files(git_dir, part), strict=True):
            try:
                data.decode()
                found = extract(data, kinds)
            except UnicodeDecodeError as error:
                rejected.append([file.path, f"not UTF-8 at byte {error.start}"])
            except Unterminated as error:
                rejected.append([file.path, str(error)])
            else:
                for declaration in found:
                    own = {"file": file.path, "proof": declaration.proof(data)}
                    yield {name: own.get(name) or getattr(declaration, name) for name in FIELDS}
