"""The shape of a lock: which fields it has, and what is wrong with one that came from elsewhere.

- Nothing in a lock is believed before its shape is checked: a hostile lock is refused, it neither
  crashes a reader nor leads it out of the dataset's folder.
- Only shape is checked here; hashes are checked in `manifest`.

Usage: `if wrong := first_fault(json.loads(raw)): ...`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

FORMAT: Final = "tangobench-lock/1"
LOCK_NAME: Final = "manifest.lock.json"
RUN_NAME: Final = "run.json"
_LOCK_KEYS: Final[dict[str, Any]] = {
    "format": str,
    "name": str,
    "profile": str,
    "spec": dict,
    "spec_sha256": str,
    "source": dict,
    "tokenizer": (dict, type(None)),
    "configs": dict,
    "counts": dict,
    "drops": dict,
    "notes": dict,
    "shards": list,
    "side_files": list,
    "environment": dict,
    "content_root": str,
    "root": str,
    "checksum": str,
}
_SHARD_KEYS: Final[dict[str, Any]] = {
    "path": str,
    "config": str,
    "split": str,
    "rows": int,
    "tokens": int,
    "bytes": int,
    "sha256": str,
    "rows_sha256": str,
    "batch_rows": int,
    "batch_offsets": list,
}
_SIDE_KEYS: Final[dict[str, Any]] = {
    "path": str,
    "kind": str,
    "bytes": int,
    "sha256": str,
    "rows": int,
    "rows_sha256": str,
}
_CONFIG_KEYS: Final[dict[str, Any]] = {
    "context": int,
    "vocabulary": int,
    "masked_target": (int, type(None)),
    "pad": int,
}


def first_fault(lock: Any) -> str | None:
    """What is wrong with the shape of a lock, or None."""
    return next(_faults(lock), None)


def _faults(lock: Any) -> Iterator[str]:
    if not isinstance(lock, dict) or lock.get("format") != FORMAT:
        yield f"it is no {FORMAT} object"
        return
    yield from _field_faults(lock, _LOCK_KEYS, "the lock")
    for name, config in lock["configs"].items():
        yield from _field_faults(config, _CONFIG_KEYS, f"config {name!r}")
    for shard in lock["shards"]:
        yield from _field_faults(shard, _SHARD_KEYS, "a shard")
        yield from _batch_faults(shard, lock["configs"])
    for entry in lock["side_files"]:
        yield from _field_faults(entry, _SIDE_KEYS, "a side file")
    yield from _path_faults(lock["shards"] + lock["side_files"])


def _field_faults(found: Any, fields: dict[str, Any], what: str) -> Iterator[str]:
    if not isinstance(found, dict):
        yield f"{what} is no object"
        return
    for name, kind in fields.items():
        value = found.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            yield f"field {name!r} of {what} is missing or of another type"
        elif isinstance(value, int) and value < 0:
            yield f"field {name!r} of {what} is negative"


def _batch_faults(shard: dict[str, Any], configs: dict[str, Any]) -> Iterator[str]:
    offsets, step, path = shard["batch_offsets"], shard["batch_rows"], shard["path"]
    if shard["config"] not in configs:
        yield f"shard {path!r} is of an unknown config"
    if step < 1 or len(offsets) != -(-shard["rows"] // step):
        yield f"the batches of shard {path!r} do not give its rows"
    if not all(type(offset) is int and 0 <= offset < shard["bytes"] for offset in offsets):
        yield f"a batch of shard {path!r} lies outside of it"


def _path_faults(entries: list[dict[str, Any]]) -> Iterator[str]:
    seen = {LOCK_NAME, RUN_NAME}
    for path in (entry["path"] for entry in entries):
        if path in seen or "\0" in path or "\\" in path or {"", ".", ".."} & set(path.split("/")):
            yield f"path {path!r} leaves the folder or occurs twice"
        seen.add(path)
