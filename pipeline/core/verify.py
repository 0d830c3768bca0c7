"""Checking a published folder: every byte of every file against the lock.

- `verify` reports the first thing that is missing, renamed, truncated, damaged, swapped or extra,
  and a lock whose counts and hashes are not those of the rows, of shards and side files alike.

- A dataset in an object store is always read there, never from this machine's cache.

Usage: `lock = verify(Path("out/lean-sample"))`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tangobench.errors import CorruptionError
from tangobench.pipeline.core.files import map_untrusted
from tangobench.pipeline.core.hashing import sha256_bytes
from tangobench.pipeline.core.lock import (
    LOCK_NAME,
    RUN_NAME,
    Lock,
    read_lock,
    require_committed_content,
)
from tangobench.pipeline.core.remote import Bucket, Place
from tangobench.pipeline.core.shard_reader import Shard, SideTable, broken, shard_rules


def verify(folder: Place) -> Lock:
    """Check every byte of a dataset folder against its lock; the first fault is an error."""
    lock = read_lock(folder)
    entries = lock.shards + lock.side_files
    extra = list(extra_files(folder, {entry["path"] for entry in entries}))
    for entry in lock.shards:
        _verify_shard(folder, entry, lock, extra)
    for entry in lock.side_files:
        SideTable(folder, entry, lock.name).check_rows()
    for path in extra:
        raise broken(path, "extra", "the lock does not know it", _kind_of(path))
    require_committed_content(lock, str(folder))
    return lock


def _verify_shard(folder: Place, entry: dict[str, Any], lock: Lock, extra: list[Place]) -> None:
    path = folder / entry["path"]
    try:
        Shard(folder, entry, shard_rules(lock, entry["config"])).check_rows()
    except CorruptionError as error:
        if error.kind == "shard-unreadable":
            raise
        found = _sha256_at(path)
        for other in lock.shards:
            if other["sha256"] == found and found != entry["sha256"]:
                raise broken(path, "swapped", f"it holds {other['path']}") from None
        for other_path in extra:
            if found is None and holds(other_path, entry):
                raise broken(path, "renamed", f"{other_path.name} holds its bytes") from None
        raise


def extra_files(folder: Place, known: set[str]) -> Iterator[Place]:
    """Files in the folder that are not known by their relative path."""
    known = known | {LOCK_NAME, RUN_NAME}
    if isinstance(folder, Bucket):
        yield from (folder / name for name in folder.files() if name not in known)
        return
    for path in sorted(folder.rglob("*")):
        is_file = path.is_symlink() or not path.is_dir()
        if is_file and path.relative_to(folder).as_posix() not in known:
            yield path


def holds(path: Place, entry: dict[str, Any]) -> bool:
    """True if the file has the bytes of a lock's entry."""
    try:
        size = path.stat()[0] if isinstance(path, Bucket) else path.lstat().st_size
    except OSError:
        return False
    return bool(size == entry["bytes"]) and _sha256_at(path) == entry["sha256"]


def _sha256_at(path: Place) -> str | None:
    """sha256 of the file, None if there is none; a link is none."""
    try:
        return sha256_bytes(path.read() if isinstance(path, Bucket) else map_untrusted(path))
    except OSError:
        return None


def _kind_of(path: Place) -> str:
    return "shard" if path.name.endswith(".arrow") else "file"
