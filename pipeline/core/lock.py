"""Locks: what a build gave, and how to tell whether a folder still is that.

- `root` covers the spec, the source's content, the tokenizer, shard hashes and row hashes of side
  files; `content_root` covers rows with their config and split. Both are compared wherever one is:
  `root` does not say which shard is which split. Library versions, dates and paths are in neither.
- `checksum` covers the whole lock, so an edited lock is noticed before it is believed; there is one
  way to write a lock, so a changed byte that changes no value is noticed too.
- A folder without a valid lock is not a dataset, and every reader says so.

Usage: `lock = read_lock(Path("out/lean-sample")); lock.root`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tangobench.errors import CorruptionError, MismatchError, UsageError
from tangobench.pipeline.core import lock_schema, sealed
from tangobench.pipeline.core.files import Refused, read_untrusted
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.lock_schema import FORMAT, LOCK_NAME, RUN_NAME
from tangobench.pipeline.core.remote import Bucket, Place
from tangobench.pipeline.core.spec import manifest_file

__all__ = [
    "FORMAT",
    "LOCK_NAME",
    "RUN_NAME",
    "Lock",
    "check_lock",
    "committed_lock",
    "content_root_of",
    "differences",
    "proven_content",
    "read_lock",
    "require_committed_content",
    "require_data",
    "require_root",
    "root_of",
    "seal",
    "short",
    "shown_root",
    "sign",
]

_ABSENT: Final = "(absent)"
_SHOWN: Final = 40


@dataclass(frozen=True)
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
        """The hash that identifies the whole build."""
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
        return list(self._groups.get((config, split), ()))

    @functools.cached_property
    def _groups(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """Shards by config and split, sorted once: a lock may have many splits."""
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for shard in self.data["shards"]:
            found.setdefault((shard["config"], shard["split"]), []).append(shard)
        return found

    def rows(self, config: str, split: str) -> int:
        """Number of rows of one config and split."""
        return sum(shard["rows"] for shard in self.shards_of(config, split))

    def splits(self, config: str) -> list[str]:
        """Names of a config's splits, training first."""
        return sorted(split for of, split in self._groups if of == config)

    def to_bytes(self) -> bytes:
        """The lock file's bytes."""
        return sealed.DOCUMENT.spell(self.data)


def seal(data: dict[str, Any]) -> dict[str, Any]:
    """The lock with its roots computed and no checksum yet."""
    # As a reader will see it: tuples become lists and all keys strings before they are hashed.
    data = json.loads(json.dumps(data, allow_nan=False))
    lock = {"format": FORMAT, **data, "spec_sha256": digest(data["spec"])}
    return {**lock, "content_root": content_root_of(lock), "root": root_of(lock)}


def sign(data: dict[str, Any]) -> Lock:
    """The finished lock."""
    return Lock({**data, "checksum": sealed.checksum(data)})


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


def read_lock(where: Place) -> Lock:
    """The lock of a dataset folder, or a lock file; refused unless it is whole and unedited."""
    is_file = where.name.endswith(".json") if isinstance(where, Bucket) else not where.is_dir()
    path = where if is_file else where / LOCK_NAME
    try:
        # A lock that the user names may be a link; one inside a dataset may not.
        raw = path.read() if isinstance(path, Bucket) else read_untrusted(path, links=is_file)
    except (FileNotFoundError, NotADirectoryError):
        if isinstance(where, Path) and not where.exists():
            raise UsageError(
                f"{where} does not exist",
                kind="path-missing",
                fix="check the path, or build it first: tangobench build --help",
                path=str(where),
            ) from None
        raise CorruptionError(
            f"{where} is not a dataset: it has no {LOCK_NAME}",
            kind="lock-missing",
            fix="run the build again: the same command resumes",
            path=str(path),
        ) from None
    except Refused as error:
        raise _damaged(path, str(error.strerror)) from None
    except OSError as error:
        raise UsageError(
            f"cannot read lock {path}: {error.strerror}",
            kind="lock-unreadable",
            fix="put a regular file there that you may read",
            path=str(path),
        ) from None
    try:
        body = sealed.unseal(raw)
    except sealed.Broken as error:
        raise _damaged(path, str(error)) from None
    return check_lock({**body, "checksum": sealed.checksum(body)}, path)


def check_lock(data: Any, path: Place) -> Lock:
    """Refuse a lock whose fields, checksum or roots do not fit together."""
    if wrong := lock_schema.first_fault(data):
        raise _damaged(path, wrong)
    body = {key: value for key, value in data.items() if key != "checksum"}
    for name, expected in (
        ("checksum", sealed.checksum(body)),
        ("spec_sha256", digest(data["spec"])),
        ("content_root", content_root_of(data)),
        ("root", root_of(data)),
    ):
        if data[name] != expected:
            raise _damaged(path, f"{name} is {data[name][:16]}…, its fields give {expected[:16]}…")
    return Lock(data)


def _damaged(path: Place, why: str) -> CorruptionError:
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


@functools.cache
def _committed_contents() -> dict[str, str]:
    """Content roots of all locks that the project ships, by root."""
    paths = sorted(manifest_file("").glob("*.lock.json"))
    locks = [read_lock(path) for path in paths]
    return {lock.root: lock.content_root for lock in locks}


def proven_content(data: Mapping[str, Any]) -> str | None:
    """The content root of what was recorded of a dataset: its own, or the committed lock's.

    Checkpoints and results of earlier versions hold a root alone, which does not say which shard
    belongs to which split; None if the project ships no lock with that root.
    """
    return data.get("content_root") or _committed_contents().get(data["root"])


def shown_root(data: Mapping[str, Any]) -> str:
    """The root of a recorded dataset, for tables; says so if its splits are not proven."""
    return f"{data['root'][:16]}…{'' if proven_content(data) else ' (content not proven)'}"


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


def require_committed_content(lock: Lock, where: str) -> None:
    """Refuse a lock with the root of a committed one and other contents, such as swapped splits."""
    if lock.root in _committed_contents():
        require_data(lock, {"root": lock.root}, where)


def require_root(lock: Lock, expected: Lock, where: str) -> None:
    """Refuse a lock with another root or content root than expected, showing what differs."""
    if (lock.root, lock.content_root) == (expected.root, expected.content_root):
        return
    fields = [
        f"{name}: {short(ours)} here, {short(theirs)} expected"
        for name, ours, theirs in differences(lock.data, expected.data)
        if not name.startswith(("environment", "checksum"))
    ]
    require_data(
        lock, {"root": expected.root, "content_root": expected.content_root}, where, fields
    )


def require_data(
    lock: Lock, expected: dict[str, Any], where: str, fields: list[str] | None = None
) -> None:
    """Refuse another dataset than the one that `expected` recorded by `root` and `content_root`.

    `root` does not cover which shard is which split; `content_root` does.
    """
    content, fields = proven_content(expected), fields or []
    if content is None:
        raise MismatchError(
            f"{where}: the record of its dataset (root {expected['root']}) has no content root, "
            "and the project ships no lock with that root: which rows were validation is not "
            "proven",
            kind="content-not-proven",
            fix="train and score the run again",
            expected=expected["root"],
        )
    shown = "".join(f"\n  {field}" for field in fields[:_SHOWN])
    shown += f"\n  … {len(fields) - _SHOWN} more" if fields[_SHOWN:] else ""
    for name, found, wanted in (
        ("root", lock.root, expected["root"]),
        ("content root", lock.content_root, content),
    ):
        if found != wanted:
            raise MismatchError(
                f"{where} has {name} {found}, expected {wanted}{shown}",
                kind=f"{name.replace(' ', '-')}-mismatch",
                fix="`tangobench diff` shows two locks field by field",
                found=found,
                expected=wanted,
                fields=fields,
            )


def short(value: Any, limit: int = 60) -> str:
    """A value on one line."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
