"""Publishing a dataset folder: shards first, the lock last.

- In an object store each file is one PUT, and the lock's is conditional (If-None-Match): of two
  publishers one wins, and the other succeeds too if its root is the same.
- Publishing over the same root repairs what is damaged; another spec or root is refused, and so is
  a folder with files that no build of ours made.
"""

from __future__ import annotations

import contextlib
import platform
import re
from pathlib import Path
from typing import Any, Final

from tangobench.errors import (
    CorruptionError,
    MismatchError,
    TangobenchError,
    UsageError,
    without_secrets,
)
from tangobench.pipeline.core import lock as locks
from tangobench.pipeline.core.build import Job, Result, SideFile
from tangobench.pipeline.core.cards import card_files, facts_of
from tangobench.pipeline.core.files import PARTIAL, explain_os_errors, write_atomic
from tangobench.pipeline.core.hashing import digest, pretty_json, sha256_bytes
from tangobench.pipeline.core.lock import LOCK_NAME, Lock, read_lock, short
from tangobench.pipeline.core.shard_reader import (
    extra_files,
    holds,
    in_threads,
    verify,
)
from tangobench.pipeline.core.store import Bucket, Place, Store

_LIBRARIES: Final = ("numpy", "polars", "pyarrow", "tiktoken", "sympy", "mathematics_dataset")
_RECORDED: Final = ("source", "tokenizer", "configs", "counts", "drops", "notes")
# Names that builds give: anything else in a dataset folder was put there by somebody.
_OURS: Final = re.compile(
    rf"{re.escape(PARTIAL)}.*|[a-z_]+-\d{{5}}-of-\d{{5}}\.arrow|[a-z_]+(-\d{{5}})?\.parquet"
    r"|tokenizer\.json|tiktoken\.json",
    re.DOTALL,
)


def refuse_other_spec(folder: Place, spec: dict[str, Any], source: str | None) -> None:
    """Refuse a folder that holds a dataset of another spec, or of files instead of a generator."""
    try:
        existing = read_lock(folder)
    except TangobenchError:
        return  # nothing published, or damaged: publishing puts it right
    found, wanted = existing.spec_sha256, digest(spec)
    if found != wanted:
        keys = locks.differences(existing.spec, spec)
        lines = (f"\n  {k}: {short(a)} there, {short(b)} here" for k, a, b in keys)
        why = f"{folder} holds a dataset of spec {found}, this is spec {wanted}{''.join(lines)}"
        fix = "choose another --out, or remove that folder"
        raise MismatchError(why, kind="spec-mismatch", fix=fix, found=found, expected=wanted)
    if source is None and "contents" in existing.source:
        why = f"{folder} was built from the files {existing.source['files']}"
        fix = "give the same --source, or choose another --out"
        raise MismatchError(why, kind="source-mismatch", fix=fix)


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
    named = {"name": name, "profile": profile, "spec": spec}
    sealed = locks.seal({**named, **_recorded(result, job.store)})
    _refuse_other_root(folder, locks.sign({**sealed}))
    files = [*sealed["shards"], *sealed["side_files"]]
    small = card_files(sealed, result.card, *facts_of(sealed, job.store.read))
    sealed["side_files"] += [
        _side_entry(SideFile(path, "card", sha256_bytes(data), 0, ""), data)
        for path, data in sorted(small.items())
    ]
    lock = locks.sign(sealed)
    # Arguments of the command line need not be UTF-8; JSON can carry them escaped.
    text = without_secrets(pretty_json(run)) + "\n"
    small[locks.RUN_NAME] = text.encode("utf-8", "backslashreplace")
    if isinstance(folder, Bucket):
        return _put_there(folder, files, job.store, small, lock)
    with explain_os_errors(folder, sum(entry["bytes"] for entry in files)):
        folder.mkdir(parents=True, exist_ok=True)
        _remove_strays(folder, {entry["path"] for entry in lock.shards + lock.side_files})
        _place_all(folder, files, job.store)
        for path, data in small.items():
            write_atomic(folder / path, data)
        write_atomic(folder / LOCK_NAME, lock.to_bytes())
    return lock


def _put_there(
    folder: Bucket, files: list[dict[str, Any]], store: Store, small: dict[str, bytes], lock: Lock
) -> Lock:
    """Publish to a bucket: at every moment no dataset is there or a whole one."""
    try:
        return verify(folder)  # the same root, whole: another publisher was here
    except CorruptionError:
        (folder / LOCK_NAME).remove()  # from here to the last PUT there is no dataset
    _place_all(folder, files, store)
    for path, data in small.items():
        (folder / path).write(data)
    try:
        (folder / LOCK_NAME).write(lock.to_bytes(), new=True)
    except FileExistsError:
        _refuse_other_root(folder, lock)
        return read_lock(folder)
    return lock


def _recorded(result: Result, store: Store) -> dict[str, Any]:
    """What a lock says of a build's result."""
    shards = [
        {"path": s.path, "config": s.config, "split": s.split, **s.record.result["shard"]}
        for s in result.shards
    ]
    sides = [_side_entry(side, store.read(side.address)) for side in result.side_files]
    found = {field: getattr(result, field) for field in _RECORDED}
    found |= {"provenance": result.provenance} if result.provenance else {}
    return {**found, "shards": shards, "side_files": sides, "environment": environment()}


def _side_entry(side: SideFile, data: Any) -> dict[str, Any]:
    own = {name: getattr(side, name) for name in ("path", "kind", "rows", "rows_sha256")}
    return {**own, "bytes": memoryview(data).nbytes, "sha256": side.address}


def environment() -> dict[str, str]:
    """Versions that should not matter, recorded in case they do."""
    from importlib import metadata  # with email and sockets: not in whatever verifies

    versions = {"python": platform.python_version()}
    for library in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[library] = metadata.version(library)
    return versions


def _refuse_other_root(folder: Place, lock: Lock) -> None:
    try:
        existing = read_lock(folder)
    except TangobenchError:
        return
    locks.require_root(lock, existing, f"this build (not the one in {folder})")


def _place_all(folder: Place, entries: list[dict[str, Any]], store: Store) -> None:
    """Put files in place. A file's sha256 is its address in the store, and this run has hashed the
    object: when its unit wrote it, when the unit was found finished, or as a bucket's is read.
    """

    def put(entry: dict[str, Any]) -> None:
        if not holds(folder / entry["path"], entry):
            store.place(entry["sha256"], folder / entry["path"])

    in_threads(put, entries)


def _remove_strays(folder: Path, known: set[str]) -> None:
    """Remove what an interrupted publication left; refuse files that are not ours."""
    strays = [path for path in extra_files(folder, known) if isinstance(path, Path)]
    for path in strays:
        if not _OURS.fullmatch(path.name):
            why = f"{path} does not belong to this dataset"
            fix = "move it elsewhere, or choose another --out"
            raise UsageError(why, kind="foreign-file", fix=fix, path=str(path))
    for path in strays:
        path.unlink()
