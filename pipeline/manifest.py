"""Locks: what a build gave, and how to tell whether a folder still is that.

- `root` covers the spec, the source's content, the tokenizer, shard hashes and row hashes of side
  files; `content_root` covers rows alone. Library versions, dates and paths are in neither.
- `checksum` covers the whole lock, so an edited lock is noticed before it is believed; there is one
  way to write a lock, so a changed byte that changes no value is noticed too.
- A folder without a valid lock is not a dataset, and every reader says so.

Usage: `lock = read_lock(Path("out/lean-sample")); lock.root`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tangobench.errors import CorruptionError, MismatchError, TangobenchError, UsageError
from tangobench.pipeline import lock_fields
from tangobench.pipeline.hashing import digest
from tangobench.pipeline.lock_fields import FORMAT, LOCK_NAME, RUN_NAME
from tangobench.pipeline.spec import manifest_file

__all__ = [
    "FORMAT",
    "LOCK_NAME",
    "RUN_NAME",
    "Lock",
    "check_lock",
    "committed_lock",
    "content_root_of",
    "differences",
    "pretty_json",
    "read_lock",
    "require_root",
    "root_mismatch",
    "root_of",
    "seal",
    "short",
    "sign",
]

_ABSENT: Final = "(absent)"


@dataclass(frozen=True, slots=True)
class Lock:
    """A checked lock; `data` is the JSON object itself."""

    data: dict[str, Any]

    @property
    def name(self) -> str:
        """Dataset name."""
        return str(self.data["name"])

    @property
    def profile(self) -> str:
        """Profile the dataset was built with."""
        return str(self.data["profile"])

    @property
    def root(self) -> str:
        """The hash that stands for the whole build."""
        return str(self.data["root"])

    @property
    def content_root(self) -> str:
        """The hash over the rows alone."""
        return str(self.data["content_root"])

    @property
    def spec(self) -> dict[str, Any]:
        """The effective spec."""
        return dict(self.data["spec"])

    @property
    def configs(self) -> dict[str, dict[str, Any]]:
        """Row conventions by config: context, vocabulary, masked_target, pad."""
        return dict(self.data["configs"])

    @property
    def counts(self) -> dict[str, Any]:
        """Counts by stage."""
        return dict(self.data["counts"])

    @property
    def drops(self) -> dict[str, Any]:
        """What was dropped, by reason."""
        return dict(self.data["drops"])

    @property
    def notes(self) -> dict[str, Any]:
        """Audits and name tables."""
        return dict(self.data["notes"])

    @property
    def shards(self) -> list[dict[str, Any]]:
        """All shards in order."""
        return list(self.data["shards"])

    def shards_of(self, config: str, split: str) -> list[dict[str, Any]]:
        """The shards of one config and split, in order."""
        return [s for s in self.shards if s["config"] == config and s["split"] == split]

    def rows(self, config: str, split: str) -> int:
        """Number of rows of one config and split."""
        return sum(shard["rows"] for shard in self.shards_of(config, split))

    def splits(self, config: str) -> list[str]:
        """Names of a config's splits, training first."""
        return sorted({s["split"] for s in self.shards if s["config"] == config})

    def to_bytes(self) -> bytes:
        """The lock file's bytes."""
        return pretty_json(self.data).encode() + b"\n"


def seal(data: dict[str, Any]) -> dict[str, Any]:
    """The lock with its roots computed and no checksum yet."""
    # As a reader will see it: tuples become lists and all keys strings before they are hashed.
    data = json.loads(json.dumps(data, allow_nan=False))
    sealed = {"format": FORMAT, **data, "spec_sha256": digest(data["spec"])}
    return {**sealed, "content_root": content_root_of(sealed), "root": root_of(sealed)}


def sign(data: dict[str, Any]) -> Lock:
    """The finished lock."""
    return Lock({**data, "checksum": digest(data)})


def content_root_of(data: dict[str, Any]) -> str:
    """Hash over the rows of all shards in order, whatever file holds them."""
    return digest([[s["config"], s["split"], s["rows"], s["rows_sha256"]] for s in data["shards"]])


def root_of(data: dict[str, Any]) -> str:
    """Hash over what was asked for, what it was made from and what came out."""
    return digest(
        {
            "format": data["format"],
            "name": data["name"],
            "profile": data["profile"],
            "spec": data["spec"],
            "source": data["source"],
            "tokenizer": data["tokenizer"],
            "configs": data["configs"],
            "shards": [[s["path"], s["sha256"], s["rows_sha256"]] for s in data["shards"]],
            "side_files": [
                [s["path"], s["rows"], s["rows_sha256"]]
                for s in data["side_files"]
                if s["rows_sha256"]
            ],
        }
    )


def read_lock(where: Path) -> Lock:
    """The lock of a dataset folder, or a lock file; refused unless it is whole and unedited."""
    path = where / LOCK_NAME if where.is_dir() else where
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise CorruptionError(
            f"{where} is not a dataset: it has no {LOCK_NAME}",
            kind="lock-missing",
            fix="run the build again: the same command resumes",
            path=str(path),
        ) from None
    except OSError as error:
        raise UsageError(
            f"cannot read lock {path}: {os.strerror(error.errno or 0)}",
            kind="lock-unreadable",
            fix="make it readable",
            path=str(path),
        ) from None
    try:
        lock = check_lock(json.loads(raw), path)
        if lock.to_bytes() != raw:
            raise _damaged(path, "its values are right but not its bytes")
    except ValueError:
        raise _damaged(path, "it is not JSON, or holds values that JSON does not have") from None
    except RecursionError:
        raise _damaged(path, "it is nested too deeply") from None
    return lock


def check_lock(data: Any, path: Path) -> Lock:
    """Refuse a lock whose fields, checksum or roots do not fit together."""
    if wrong := lock_fields.first_fault(data):
        raise _damaged(path, wrong)
    found = digest({key: value for key, value in data.items() if key != "checksum"})
    if found != data["checksum"]:
        raise _damaged(path, f"its checksum is {data['checksum'][:16]}…, its content {found[:16]}…")
    for name, expected in (
        ("spec_sha256", digest(data["spec"])),
        ("content_root", content_root_of(data)),
        ("root", root_of(data)),
    ):
        if data[name] != expected:
            raise _damaged(path, f"{name} is {data[name][:16]}…, its fields give {expected[:16]}…")
    return Lock(data)


def _damaged(path: Path, why: str) -> CorruptionError:
    return CorruptionError(
        f"lock {path} is damaged or edited: {why}",
        kind="lock-corrupt",
        fix="restore it, or run the build again",
        path=str(path),
    )


def committed_lock(name: str, profile: str) -> Lock | None:
    """The lock that the project ships for a profile, if it could be built."""
    path = manifest_file(f"{name}.{profile}.lock.json")
    return read_lock(path) if path.is_file() else None


def differences(ours: Any, theirs: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every field in which two JSON values differ: (dotted name, ours, theirs)."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            name = f"{where}.{key}" if where else key
            yield from differences(ours.get(key, _ABSENT), theirs.get(key, _ABSENT), name)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(left, right, f"{where}[{index}]")
    elif ours != theirs or type(ours) is not type(theirs):
        yield where, ours, theirs


def require_root(lock: Lock, expected: Lock, where: str) -> None:
    """Refuse a lock with another root than expected, showing what differs."""
    if lock.root == expected.root:
        return
    fields = [
        f"{name}: {short(ours)} here, {short(theirs)} expected"
        for name, ours, theirs in differences(lock.data, expected.data)
        if not name.startswith(("environment", "checksum"))
    ]
    raise root_mismatch(where, lock.root, expected.root, fields)


def root_mismatch(where: str, found: str, expected: str, fields: list[str]) -> TangobenchError:
    """The error for another root than expected."""
    shown = "\n  ".join(fields[:40]) + (f"\n  … {len(fields) - 40} more" if fields[40:] else "")
    return MismatchError(
        f"{where} has root {found}, expected {expected}" + (f"\n  {shown}" if fields else ""),
        kind="root-mismatch",
        fix="`tangobench diff` shows two locks field by field",
        found=found,
        expected=expected,
        fields=fields,
    )


def short(value: Any, limit: int = 60) -> str:
    """A value on one line."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def pretty_json(value: Any, indent: str = "") -> str:
    """Readable, diffable JSON: sorted keys, one per line, lists of scalars on one line."""
    deeper = indent + " "
    if isinstance(value, dict) and value:
        items = [
            f"{deeper}{json.dumps(key, ensure_ascii=False)}: {pretty_json(value[key], deeper)}"
            for key in sorted(value)
        ]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        items = [deeper + pretty_json(item, deeper) for item in value]
        return "[\n" + ",\n".join(items) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)
