"""Folders as values: what a test compares."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tangobench.pipeline.core.files import PARTIAL
from tangobench.pipeline.core.lock import RUN_NAME


def hashes(folder: Path) -> dict[str, str]:
    """Relative path to sha256 of every file but run.json, which tells times."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != RUN_NAME
    }


def temporary_files(folder: Path) -> list[Path]:
    """Whatever a writer has not finished."""
    units = folder / ".units" / "tmp"
    return [*folder.rglob(f"{PARTIAL}*"), *(p for p in units.rglob("*") if p.is_file())]
