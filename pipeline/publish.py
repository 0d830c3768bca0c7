"""Publishing: shards first, the lock last; and checking a published folder.

- Files are put in place one by one, each whole; the lock appears atomically after all of them.
- Publishing over the same root repairs what is damaged; another spec or root is refused.
- `verify` reports the first thing that is missing, truncated, damaged, swapped or extra.

Usage: `lock = publish(Path("out/lean-sample"), "lean", "sample", spec, result, job)`.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tangobench.errors import MismatchError, TangobenchError, UsageError
from tangobench.pipeline.build import Job, Result
from tangobench.pipeline.cards import card_files
from tangobench.pipeline.files import PARTIAL, remove_partials, write_atomic
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
from tangobench.pipeline.reading import broken, map_checked
from tangobench.pipeline.store import Store

_LIBRARIES: Final = ("numpy", "polars", "pyarrow", "tiktoken", "sympy", "mathematics_dataset")


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
    folder.mkdir(parents=True, exist_ok=True)
    for place in [folder, *{(folder / s["path"]).parent for s in sealed["shards"]}]:
        remove_partials(place)
    sources = {shard.path: shard.record.address for shard in result.shards}
    sources |= {side.path: side.address for side in result.side_files}
    for entry in sealed["shards"] + sealed["side_files"]:
        _place(folder, entry, job.store, sources[entry["path"]])
    cards = card_files(sealed, result.card)
    for path, data in cards.items():
        write_atomic(folder / path, data)
    sealed["side_files"] += [
        _side_entry(path, "card", data, 0, "") for path, data in sorted(cards.items())
    ]
    lock = sign(sealed)
    _remove_strays(folder, lock)
    write_atomic(folder / RUN_NAME, (pretty_json(run) + "\n").encode())
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
        versions[library] = importlib.metadata.version(library)
    return versions


def _refuse_other_root(folder: Path, lock: Lock) -> None:
    try:
        existing = read_lock(folder)
    except TangobenchError:
        return
    require_root(lock, existing, f"this build (not the one in {folder})")


def _place(folder: Path, entry: dict[str, Any], store: Store, address: str) -> None:
    path = folder / entry["path"]
    there = path.is_file() and path.stat().st_size == entry["bytes"]
    if there and sha256_file(path) == entry["sha256"]:
        return
    data = store.read(address)
    if sha256_bytes(data) != entry["sha256"]:
        raise broken(path, "corrupt", "its copy in the unit store is damaged", "unit")
    write_atomic(path, data)


def _remove_strays(folder: Path, lock: Lock) -> None:
    """Remove shards of an interrupted publication; refuse files that are not ours."""
    for path in extra_files(folder, lock):
        if path.suffix not in {".arrow", ".parquet"} and not path.name.startswith(PARTIAL):
            raise UsageError(
                f"{path} does not belong to this dataset",
                kind="foreign-file",
                fix="move it elsewhere, or choose another --out",
            )
        path.unlink()


def extra_files(folder: Path, lock: Lock) -> Iterator[Path]:
    """Files in the folder that the lock does not know."""
    known = {entry["path"] for entry in lock.shards + lock.data["side_files"]}
    known |= {LOCK_NAME, RUN_NAME}
    for path in sorted(folder.rglob("*")):
        if not path.is_dir() and path.relative_to(folder).as_posix() not in known:
            yield path


def verify(folder: Path) -> Lock:
    """Check every byte of a dataset folder against its lock; the first fault is an error."""
    lock = read_lock(folder)
    expected = {entry["sha256"]: entry["path"] for entry in lock.shards}
    for entry in lock.shards:
        _verify_shard(folder, entry, expected)
    for entry in lock.data["side_files"]:
        map_checked(folder, entry, entry["kind"])
    for path in extra_files(folder, lock):
        raise broken(path, "extra", "the lock does not know it", _kind_of(path))
    return lock


def _verify_shard(folder: Path, entry: dict[str, Any], expected: dict[str, str]) -> None:
    try:
        map_checked(folder, entry)
    except TangobenchError as error:
        path = folder / entry["path"]
        other = expected.get(sha256_file(path)) if path.is_file() else None
        if other is not None:
            raise broken(path, "swapped", f"it holds the bytes of {other}") from None
        raise error


def _kind_of(path: Path) -> str:
    return "shard" if path.suffix == ".arrow" else "file"
