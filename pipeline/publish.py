"""Publishing: shards first, the lock last; and checking a published folder.

- Files are put in place each whole, in any order; the lock appears atomically after all of them.
- Publishing over the same root repairs what is damaged; another spec or root is refused, and so is
  a folder with files that no build of ours made.
- `verify` reports the first thing that is missing, renamed, truncated, damaged, swapped or extra,
  and a lock whose counts and hashes are not those of the rows, of shards and side files alike.

Usage: `lock = publish(Path("out/lean-sample"), "lean", "sample", spec, result, job)`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from tangobench.errors import (
    CorruptionError,
    MismatchError,
    TangobenchError,
    UsageError,
    without_secrets,
)
from tangobench.pipeline.build import Job, Result
from tangobench.pipeline.cards import CARD_NAMES, card_files
from tangobench.pipeline.files import PARTIAL, explain_os_errors, write_atomic
from tangobench.pipeline.hashing import digest, sha256_bytes, sha256_file
from tangobench.pipeline.manifest import (
    LOCK_NAME,
    RUN_NAME,
    Lock,
    pretty_json,
    read_lock,
    require_root,
    seal,
    sign,
)
from tangobench.pipeline.reading import Shard, broken
from tangobench.pipeline.side_tables import SideTable
from tangobench.pipeline.store import Store

_LIBRARIES: Final = ("numpy", "polars", "pyarrow", "tiktoken", "sympy", "mathematics_dataset")
_WRITERS: Final = 4
# Names that builds give: anything else in a dataset folder was put there by somebody.
_OURS: Final = re.compile(
    rf"{re.escape(PARTIAL)}.*|[a-z_]+-\d{{5}}-of-\d{{5}}\.arrow|[a-z_]+(-\d{{5}})?\.parquet",
    re.DOTALL,
)


def refuse_other_spec(folder: Path, spec: dict[str, Any]) -> None:
    """Refuse a folder that holds a dataset of another spec."""
    try:
        existing = read_lock(folder)
    except TangobenchError:
        return  # nothing published, or damaged: publishing puts it right
    wanted = digest(spec)
    if existing.data["spec_sha256"] != wanted:
        raise MismatchError(
            f"{folder} holds a dataset of spec {existing.data['spec_sha256']}, this is spec "
            f"{wanted}",
            kind="spec-mismatch",
            fix="choose another --out, or remove that folder",
            found=existing.data["spec_sha256"],
            expected=wanted,
        )


def publish(
    folder: Path,
    name: str,
    profile: str,
    spec: dict[str, Any],
    result: Result,
    job: Job,
    run: dict[str, Any],
) -> Lock:
    """Put a finished build in place and return its lock.

    `run` holds timings, host, paths and dates: all that may differ between equal builds.
    """
    sealed = seal(_lock_data(name, profile, spec, result, job.store))
    _refuse_other_root(folder, sign({**sealed}))
    sources = {shard.path: shard.record.address for shard in result.shards}
    sources |= {side.path: side.address for side in result.side_files}
    files = sealed["shards"] + sealed["side_files"]
    with explain_os_errors(folder, sum(entry["bytes"] for entry in files)):
        folder.mkdir(parents=True, exist_ok=True)
        _remove_strays(folder, {*sources, *CARD_NAMES})
        _place_all(folder, files, job.store, sources)
        cards = card_files(sealed, result.card)
        for path, data in cards.items():
            write_atomic(folder / path, data)
        sealed["side_files"] += [
            _side_entry(path, "card", data, 0, "") for path, data in sorted(cards.items())
        ]
        lock = sign(sealed)
        # Arguments of the command line need not be UTF-8; JSON can carry them escaped.
        text = without_secrets(pretty_json(run)) + "\n"
        write_atomic(folder / RUN_NAME, text.encode("utf-8", "backslashreplace"))
        write_atomic(folder / LOCK_NAME, lock.to_bytes())
    return lock


def _lock_data(
    name: str, profile: str, spec: dict[str, Any], result: Result, store: Store
) -> dict[str, Any]:
    return {
        "name": name,
        "profile": profile,
        "spec": spec,
        "source": result.source,
        "tokenizer": result.tokenizer,
        "configs": result.configs,
        "counts": result.counts,
        "drops": result.drops,
        "notes": result.notes,
        "shards": [
            {"path": s.path, "config": s.config, "split": s.split, **s.record.result["shard"]}
            for s in result.shards
        ],
        "side_files": [
            _side_entry(s.path, s.kind, store.read(s.address), s.rows, s.rows_sha256)
            for s in result.side_files
        ],
        "environment": environment(),
    }


def _side_entry(path: str, kind: str, data: Any, rows: int, rows_sha256: str) -> dict[str, Any]:
    return {
        "path": path,
        "kind": kind,
        "bytes": memoryview(data).nbytes,
        "sha256": sha256_bytes(data),
        "rows": rows,
        "rows_sha256": rows_sha256,
    }


def environment() -> dict[str, str]:
    """Versions that should not matter, recorded in case they do."""
    versions = {"python": platform.python_version()}
    for library in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    return versions


def _refuse_other_root(folder: Path, lock: Lock) -> None:
    try:
        existing = read_lock(folder)
    except TangobenchError:
        return
    require_root(lock, existing, f"this build (not the one in {folder})")


def _place_all(
    folder: Path, entries: list[dict[str, Any]], store: Store, sources: dict[str, str]
) -> None:
    """Put files in place, a few at a time: hashing and waiting for the disk overlap."""
    with ThreadPoolExecutor(_WRITERS) as pool:
        for _ in pool.map(lambda e: _place(folder, e, store, sources[e["path"]]), entries):
            pass


def _place(folder: Path, entry: dict[str, Any], store: Store, address: str) -> None:
    path = folder / entry["path"]
    if _holds(path, entry):
        return
    data = store.read(address)
    if sha256_bytes(data) != entry["sha256"]:
        raise broken(path, "corrupt", "its copy in the unit store is damaged", "unit")
    store.place(address, data, path)


def _remove_strays(folder: Path, known: set[str]) -> None:
    """Remove what an interrupted publication left; refuse files that are not ours."""
    strays = list(extra_files(folder, known))
    for path in strays:
        if not _OURS.fullmatch(path.name):
            raise UsageError(
                f"{path} does not belong to this dataset",
                kind="foreign-file",
                fix="move it elsewhere, or choose another --out",
                path=str(path),
            )
    for path in strays:
        path.unlink()


def extra_files(folder: Path, known: set[str]) -> Iterator[Path]:
    """Files in the folder that are not known by their relative path."""
    known = known | {LOCK_NAME, RUN_NAME}
    for path in sorted(folder.rglob("*")):
        is_file = path.is_symlink() or not path.is_dir()
        if is_file and path.relative_to(folder).as_posix() not in known:
            yield path


def verify(folder: Path) -> Lock:
    """Check every byte of a dataset folder against its lock; the first fault is an error."""
    lock = read_lock(folder)
    entries = lock.shards + lock.data["side_files"]
    extra = list(extra_files(folder, {entry["path"] for entry in entries}))
    for entry in lock.shards:
        _verify_shard(folder, entry, lock, extra)
    for entry in lock.data["side_files"]:
        SideTable(folder, entry).check_rows()
    for path in extra:
        raise broken(path, "extra", "the lock does not know it", _kind_of(path))
    return lock


def _verify_shard(folder: Path, entry: dict[str, Any], lock: Lock, extra: list[Path]) -> None:
    path = folder / entry["path"]
    try:
        Shard(folder, entry).check_rows()
    except CorruptionError as error:
        if error.kind == "shard-unreadable":
            raise
        if path.is_file():
            found = sha256_file(path)
            for other in lock.shards:
                if other["sha256"] == found and found != entry["sha256"]:
                    raise broken(path, "swapped", f"it holds {other['path']}") from None
        for other_path in extra:
            if not path.is_file() and _holds(other_path, entry):
                raise broken(path, "renamed", f"{other_path.name} holds its bytes") from None
        raise


def _holds(path: Path, entry: dict[str, Any]) -> bool:
    there = path.is_file() and path.stat().st_size == entry["bytes"]
    return there and sha256_file(path) == entry["sha256"]


def _kind_of(path: Path) -> str:
    return "shard" if path.suffix == ".arrow" else "file"
