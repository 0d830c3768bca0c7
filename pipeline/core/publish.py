"""Publishing and checking a dataset folder: shards first, the lock last; every byte is verified.

- In an object store each file is one PUT, and the lock's is conditional (If-None-Match): of two
  publishers one wins, and the other succeeds too if its root is the same.
- Publishing over the same root repairs what is damaged; another spec or root is refused, and so is
  a folder with files that no build of ours made.
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
from tangobench.pipeline.core.build import Job, Result
from tangobench.pipeline.core.cards import card_files, facts_of
from tangobench.pipeline.core.files import PARTIAL, explain_os_errors, map_untrusted, write_atomic
from tangobench.pipeline.core.hashing import digest, sha256_bytes
from tangobench.pipeline.core.lock import (
    CARD_NAMES,
    LOCK_NAME,
    RUN_NAME,
    Lock,
    differences,
    read_lock,
    require_committed_content,
    require_root,
    seal,
    short,
    sign,
)
from tangobench.pipeline.core.remote import Bucket, Place
from tangobench.pipeline.core.sealed import pretty_json
from tangobench.pipeline.core.shard_reader import Shard, SideTable, broken, shard_rules
from tangobench.pipeline.core.store import Store

_LIBRARIES: Final = ("numpy", "polars", "pyarrow", "tiktoken", "sympy", "mathematics_dataset")
_RECORDED: Final = ("source", "tokenizer", "configs", "counts", "drops", "notes")
_WRITERS: Final = 4
# Names that builds give: anything else in a dataset folder was put there by somebody.
_OURS: Final = re.compile(
    rf"{re.escape(PARTIAL)}.*|[a-z_]+-\d{{5}}-of-\d{{5}}\.arrow|[a-z_]+(-\d{{5}})?\.parquet"
    r"|tokenizer\.json|tiktoken\.json",
    re.DOTALL,
)


def verify(folder: Place) -> Lock:
    """Check every byte of a dataset folder against its lock; the first fault is an error."""
    lock = read_lock(folder)
    entries = lock.shards + lock.side_files
    extra = list(_extra_files(folder, {entry["path"] for entry in entries}))
    for entry in lock.shards:
        _verify_shard(folder, entry, lock, extra)
    for entry in lock.side_files:
        SideTable(folder, entry, lock.name).check_rows()
    for path in extra:
        kind = "shard" if path.name.endswith(".arrow") else "file"
        raise broken(path, "extra", "the lock does not know it", kind)
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
            if found is None and _holds(other_path, entry):
                raise broken(path, "renamed", f"{other_path.name} holds its bytes") from None
        raise


def _extra_files(folder: Place, known: set[str]) -> Iterator[Place]:
    """Files in the folder that are not known by their relative path."""
    known = known | {LOCK_NAME, RUN_NAME}
    if isinstance(folder, Bucket):
        yield from (folder / name for name in folder.files() if name not in known)
        return
    for path in sorted(folder.rglob("*")):
        is_file = path.is_symlink() or not path.is_dir()
        if is_file and path.relative_to(folder).as_posix() not in known:
            yield path


def _holds(path: Place, entry: dict[str, Any]) -> bool:
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


def refuse_other_spec(folder: Place, spec: dict[str, Any]) -> None:
    """Refuse a folder that holds a dataset of another spec."""
    try:
        existing = read_lock(folder)
    except TangobenchError:
        return  # nothing published, or damaged: publishing puts it right
    wanted = digest(spec)
    if existing.data["spec_sha256"] != wanted:
        found = differences(existing.data["spec"], spec)
        keys = "".join(f"\n  {k}: {short(a, 60)} there, {short(b, 60)} here" for k, a, b in found)
        raise MismatchError(
            f"{folder} holds a dataset of spec {existing.data['spec_sha256']}, this is spec "
            f"{wanted}{keys}",
            kind="spec-mismatch",
            fix="choose another --out, or remove that folder",
            found=existing.data["spec_sha256"],
            expected=wanted,
        )


def publish(
    folder: Place,
    name: str,
    profile: str,
    spec: dict[str, Any],
    result: Result,
    job: Job,
    run: dict[str, Any],
) -> Lock:
    """Put a finished build in place; `run` holds what may differ between equal builds."""
    sealed = seal(_lock_data(name, profile, spec, result, job.store))
    _refuse_other_root(folder, sign({**sealed}))
    sources = {shard.path: shard.record.address for shard in result.shards}
    sources |= {side.path: side.address for side in result.side_files}
    files = [*sealed["shards"], *sealed["side_files"]]
    facts = facts_of(sealed, lambda path: job.store.read(sources[path]))
    small = card_files(sealed, result.card, facts)
    sealed["side_files"] += [
        _side_entry(path, "card", data, 0, "") for path, data in sorted(small.items())
    ]
    lock = sign(sealed)
    # Arguments of the command line need not be UTF-8; JSON can carry them escaped.
    text = without_secrets(pretty_json(run)) + "\n"
    small[RUN_NAME] = text.encode("utf-8", "backslashreplace")
    if isinstance(folder, Bucket):
        return _put_there(folder, files, job.store, sources, small, lock)
    with explain_os_errors(folder, sum(entry["bytes"] for entry in files)):
        folder.mkdir(parents=True, exist_ok=True)
        _remove_strays(folder, {*sources, *CARD_NAMES})
        _place_all(folder, files, job.store, sources)
        for path, data in small.items():
            write_atomic(folder / path, data)
        write_atomic(folder / LOCK_NAME, lock.to_bytes())
    return lock


def _put_there(
    folder: Bucket,
    files: list[dict[str, Any]],
    store: Store,
    sources: dict[str, str],
    small: dict[str, bytes],
    lock: Lock,
) -> Lock:
    """Publish to a bucket: at every moment no dataset is there or a whole one."""
    try:
        return verify(folder)  # the same root, whole: another publisher was here
    except CorruptionError:
        (folder / LOCK_NAME).remove()  # from here to the last PUT there is no dataset
    _place_all(folder, files, store, sources)
    for path, data in small.items():
        (folder / path).write(data)
    try:
        (folder / LOCK_NAME).write(lock.to_bytes(), new=True)
    except FileExistsError:
        _refuse_other_root(folder, lock)
        return read_lock(folder)
    return lock


def _lock_data(
    name: str, profile: str, spec: dict[str, Any], result: Result, store: Store
) -> dict[str, Any]:
    return {
        **{"name": name, "profile": profile, "spec": spec},
        **{field: getattr(result, field) for field in _RECORDED},
        **({"provenance": result.provenance} if result.provenance else {}),
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


def _refuse_other_root(folder: Place, lock: Lock) -> None:
    try:
        existing = read_lock(folder)
    except TangobenchError:
        return
    require_root(lock, existing, f"this build (not the one in {folder})")


def _place_all(
    folder: Place, entries: list[dict[str, Any]], store: Store, sources: dict[str, str]
) -> None:
    """Put files in place, a few at a time: hashing and waiting for the disk overlap."""
    with ThreadPoolExecutor(_WRITERS) as pool:
        for _ in pool.map(lambda e: _place(folder, e, store, sources[e["path"]]), entries):
            pass


def _place(folder: Place, entry: dict[str, Any], store: Store, address: str) -> None:
    path = folder / entry["path"]
    if _holds(path, entry):
        return
    data = store.read(address)
    if sha256_bytes(data) != entry["sha256"]:
        raise broken(path, "corrupt", "its copy in the unit store is damaged", "unit")
    store.place(address, data, path)


def _remove_strays(folder: Path, known: set[str]) -> None:
    """Remove what an interrupted publication left; refuse files that are not ours."""
    strays = [path for path in _extra_files(folder, known) if isinstance(path, Path)]
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
