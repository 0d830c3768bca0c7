"""Locks: what a build gave, and how to tell whether a folder still is that.

- `root` covers the spec, the source's content, the tokenizer, shard hashes and row hashes of side
  files; `content_root` covers rows with their config and split. Both are compared wherever one is:
  `root` does not say which shard is which split. Library versions, dates and paths are in neither.
- `checksum` covers the whole lock. A folder without a valid lock is not a dataset.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NotRequired

from typing_extensions import TypeAliasType, TypedDict

from tangobench.errors import CorruptionError, MismatchError, TangobenchError, UsageError
from tangobench.pipeline.core import hashing
from tangobench.pipeline.core.files import Refused, read_untrusted
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.spec import manifest_file
from tangobench.pipeline.core.store import Bucket, Place

FORMAT: Final = "tangobench-lock/1"
LOCK_NAME: Final = "manifest.lock.json"
RUN_NAME: Final = "run.json"
CARD_NAMES: Final = ("README.md", "croissant.json")
NAME: Final = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"
"""Names of datasets, profiles, configs, splits and recipes: safe as a file name and in a link."""
_SHOWN: Final = 40

Groups = dict[tuple[str, str], list[dict[str, Any]]]


@dataclass(frozen=True)
class Lock:
    """A checked lock; `data` is the JSON object itself, and its fields are attributes."""

    data: dict[str, Any]

    def __getattr__(self, field: str) -> Any:
        try:
            return self.__dict__["data"][field]
        except KeyError:
            raise AttributeError(field) from None

    @functools.cached_property
    def _groups(self) -> Groups:
        return groups_of(self.shards)

    def shards_of(self, config: str, split: str) -> list[dict[str, Any]]:
        return self._groups.get((config, split), [])

    def rows(self, config: str, split: str) -> int:
        return sum(shard["rows"] for shard in self.shards_of(config, split))

    def splits(self, config: str) -> list[str]:
        """Names of a config's splits, training first."""
        return sorted(split for of, split in self._groups if of == config)

    def to_bytes(self) -> bytes:
        return hashing.DOCUMENT.spell(self.data)


def groups_of(shards: list[dict[str, Any]]) -> Groups:
    """Shards by config and split, in order."""
    found: Groups = {}
    for shard in shards:
        found.setdefault((shard["config"], shard["split"]), []).append(shard)
    return found


def seal(data: dict[str, Any]) -> dict[str, Any]:
    """The lock with its roots computed and no checksum yet."""
    # As a reader will see it: tuples become lists and all keys strings before they are hashed.
    data = json.loads(json.dumps(data, allow_nan=False))
    lock = {"format": FORMAT, **data}
    return {**lock, **hashes_of(lock)}


def hashes_of(data: dict[str, Any]) -> dict[str, str]:
    """The hashes of a lock that follow from its other fields."""
    own = {"spec_sha256": digest(data["spec"]), "content_root": content_root_of(data)}
    return {**own, "root": root_of(data)}


def sign(data: dict[str, Any]) -> Lock:
    return Lock({**data, "checksum": hashing.checksum(data)})


def content_root_of(data: dict[str, Any]) -> str:
    """Hash over the rows of all shards in order, whatever file holds them."""
    return digest([[s["config"], s["split"], s["rows"], s["rows_sha256"]] for s in data["shards"]])


def root_of(data: dict[str, Any]) -> str:
    """Hash over what was asked for, what it was made from and what came out."""
    plain = ("format", "name", "profile", "spec", "source", "tokenizer", "configs")
    tables = [side for side in data["side_files"] if side["rows_sha256"]]
    return digest(
        {
            **{name: data[name] for name in plain},
            "shards": [[s["path"], s["sha256"], s["rows_sha256"]] for s in data["shards"]],
            "side_files": [[s["path"], s["rows"], s["rows_sha256"]] for s in tables],
        }
    )


def read_lock(where: Place) -> Lock:
    """The lock of a dataset folder, or a lock file; refused unless it is whole and unedited."""
    is_file = where.name.endswith(".json") if isinstance(where, Bucket) else not where.is_dir()
    path = where if is_file else where / LOCK_NAME
    try:
        # A lock that the user names may be a link; one inside a dataset may not.
        raw = path.read() if isinstance(path, Bucket) else read_untrusted(path, links=is_file)
        body = hashing.unseal(raw)
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(where) from None
    except (Refused, hashing.Broken) as error:
        raise _damaged(path, str(getattr(error, "strerror", error))) from None
    except OSError as error:
        why = f"cannot read lock {path}: {error.strerror}"
        fix = "put a regular file there that you may read"
        raise UsageError(why, kind="lock-unreadable", fix=fix, path=str(path)) from None
    return check_lock({**body, "checksum": hashing.checksum(body)}, path)


def _missing(where: Place) -> TangobenchError:
    if isinstance(where, Path) and not where.exists():
        fix = "check the path, or build it: tangobench build --help"
        return UsageError(f"{where} does not exist", kind="path-missing", fix=fix, path=str(where))
    why = f"{where} is not a dataset: it has no {LOCK_NAME}"
    fix = "run the build again: the same command resumes"
    inside = sorted(where.glob(f"*/{LOCK_NAME}")) if isinstance(where, Path) else []
    if inside:
        why += f"; datasets in it: {', '.join(lock.parent.name for lock in inside[:_SHOWN])}"
        fix = f"name one of them: {inside[0].parent}"
    return CorruptionError(why, kind="lock-missing", fix=fix, path=str(where / LOCK_NAME))


def check_lock(data: dict[str, Any], path: Place) -> Lock:
    for wrong in faults(data):
        raise _damaged(path, wrong)
    return Lock(data)


def _damaged(path: Place, why: str) -> CorruptionError:
    why, fix = f"lock {path} is damaged or edited: {why}", "restore it, or run the build again"
    return CorruptionError(why, kind="lock-corrupt", fix=fix, path=str(path))


def committed_lock(name: str, profile: str) -> Lock | None:
    """The lock that the project ships for a profile, if it could be built."""
    path = manifest_file(f"{name}.{profile}.lock.json")
    return read_lock(path) if path.is_file() else None


@functools.cache
def _committed_contents() -> dict[str, str]:
    """Content roots of all locks that the project ships, by root."""
    locks = map(read_lock, sorted(manifest_file("").glob("*.lock.json")))
    return {lock.root: lock.content_root for lock in locks}


def proven_content(data: Mapping[str, Any]) -> str | None:
    """The recorded content root; of earlier versions, that of the committed lock with its root."""
    return data.get("content_root") or _committed_contents().get(data["root"])


def shown_root(data: Mapping[str, Any]) -> str:
    """The root of a recorded dataset, for tables; says so if its splits are not proven."""
    return f"{data['root'][:16]}…{'' if proven_content(data) else ' (content not proven)'}"


def differences(ours: Any, theirs: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every field in which two JSON values differ: (dotted name, ours, theirs)."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            name = f"{where}.{key}" if where else key
            yield from differences(ours.get(key, "(absent)"), theirs.get(key, "(absent)"), name)
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
    require_data(lock, expected.data, where, fields)


def require_data(
    lock: Lock, expected: dict[str, Any], where: str, fields: list[str] | None = None
) -> None:
    """Refuse another dataset than the one that `expected` recorded by `root` and `content_root`."""
    root, content, fields = expected["root"], proven_content(expected), fields or []
    if content is None:
        why = f"{where}: its rows are not proven: the record of its dataset (root {root}) has no "
        why += "content root, and the project ships no lock with that root"
        fix = "train and score the run again"
        raise MismatchError(why, kind="content-not-proven", fix=fix, expected=root)
    more = [f"… {len(fields) - _SHOWN} more"] if fields[_SHOWN:] else []
    shown = "".join(f"\n  {field}" for field in fields[:_SHOWN] + more)
    for name, found, wanted in (
        ("root", lock.root, root),
        ("content root", lock.content_root, content),
    ):
        if found != wanted:
            kind, fix = name.replace(" ", "-"), "`tangobench diff` shows two locks field by field"
            details = {"found": found, "expected": wanted, "fields": fields}
            why = f"{where} has {name} {found}, expected {wanted}{shown}"
            raise MismatchError(why, kind=f"{kind}-mismatch", fix=fix, **details)


def short(value: Any, limit: int = 60) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


_PLAIN_FILES: Final = {"card": CARD_NAMES, "tokenizer": ("tokenizer.json", "tiktoken.json")}
_STEP: Final = "[A-Za-z0-9_][A-Za-z0-9_.-]*"


class Within:
    """Limits of a value; unlike pydantic's own `Field` they load nothing before a lock is read."""

    def __init__(self, **limits: Any) -> None:
        self._limits = limits

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), **self._limits}


Name = Annotated[str, Within(pattern=f"^{NAME}$")]
RelativePath = Annotated[str, Within(pattern=f"^{_STEP}(/{_STEP})*$", max_length=400)]
Sha256 = Annotated[str, Within(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, Within(ge=0, lt=1 << 62)]
Positive = Annotated[int, Within(ge=1, lt=1 << 31)]
Tally = TypeAliasType("Tally", "Count | dict[str, Tally]")
Table = dict[str, Any]


class _Config(TypedDict):
    context: Positive
    vocabulary: Positive
    masked_target: Count | None
    pad: Count


class _Shard(TypedDict):
    path: RelativePath
    config: Name
    split: Name
    rows: Count
    tokens: Count
    bytes: Count
    sha256: Sha256
    rows_sha256: Sha256
    batch_rows: Positive
    batch_offsets: list[Count]


class _SideFile(TypedDict):
    path: RelativePath
    kind: Name
    bytes: Count
    sha256: Sha256
    rows: Count
    rows_sha256: Sha256 | Literal[""]


class _Notes(TypedDict, total=False):
    combinations: list[str]
    leakage: Table
    rejected_files: list[Annotated[list[str], Within(min_length=2, max_length=2)]]


class _Lock(TypedDict):
    format: Literal["tangobench-lock/1"]
    name: Name
    profile: Name
    spec: Table
    spec_sha256: Sha256
    source: Table
    tokenizer: Table | None
    configs: Annotated[dict[Name, _Config], Within(min_length=1, max_length=1000)]
    counts: Table
    drops: dict[str, Tally]
    notes: _Notes
    shards: list[_Shard]
    side_files: list[_SideFile]
    environment: dict[str, str]
    provenance: NotRequired[Table]
    content_root: Sha256
    root: Sha256
    checksum: Sha256


@functools.cache
def _shape() -> Any:
    from pydantic import TypeAdapter  # 0.1 s

    return TypeAdapter(_Lock)


def faults(lock: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a lock: a field of another shape, then fields that contradict others."""
    from pydantic import ValidationError

    try:
        _shape().validate_python(lock, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=True)[0]
        where, found = ".".join(map(str, first["loc"])), short(repr(first["input"]))
        yield f"field {where!r}: {first['msg']}, found {found}"
    for name, expected in hashes_of(lock).items():
        if lock[name] != expected:
            yield f"{name} is {lock[name][:16]}…, its fields give {expected[:16]}…"
    for name, config in lock["configs"].items():
        for field in ("pad", "masked_target"):
            if (config[field] or 0) >= config["vocabulary"]:
                yield f"field 'configs.{name}.{field}' is outside of the vocabulary"
    for shard in lock["shards"]:
        yield from _shard_faults(shard, lock["configs"])
    for entry in lock["side_files"]:
        yield from _side_faults(entry)
    # A tokenizer that is a file of the folder is the one that the root covers.
    identity = lock["tokenizer"] or {}
    named = {identity["file"]: identity.get("sha256")} if "file" in identity else {}
    kept = {e["path"]: e["sha256"] for e in lock["side_files"] if e["kind"] == "tokenizer"}
    if kept != named:
        yield "field 'tokenizer' names another file than the side files hold"
    paths = [entry["path"] for entry in lock["shards"] + lock["side_files"]]
    for path, times in Counter([LOCK_NAME, RUN_NAME, *paths]).items():
        if times > 1:
            yield f"path {path!r} occurs twice"


def _shard_faults(shard: dict[str, Any], configs: dict[str, Any]) -> Iterator[str]:
    offsets, what = shard["batch_offsets"], f"of shard {shard['path']!r}"
    if shard["config"] not in configs:
        yield f"field 'config' {what} is none of 'configs'"
    if not shard["path"].endswith(".arrow"):
        yield f"field 'path' {what} does not end in .arrow"
    if len(offsets) != -(-shard["rows"] // shard["batch_rows"]):
        yield f"field 'batch_offsets' {what} has {len(offsets)} batches, its rows need others"
    if any(a >= b for a, b in pairwise([*offsets, shard["bytes"]])):
        yield f"field 'batch_offsets' {what} does not increase to its size"
    if not shard["rows"] <= shard["tokens"] <= shard["bytes"]:
        yield f"fields 'rows', 'tokens' and 'bytes' {what} do not fit each other"


def _side_faults(entry: dict[str, Any]) -> Iterator[str]:
    """A table is `KIND.parquet` or in the folder KIND, with row hashes; other files have none."""
    path, kind = entry["path"], entry["kind"]
    if kind in _PLAIN_FILES:
        fits, wrong = path in _PLAIN_FILES[kind], entry["rows"] or entry["rows_sha256"]
    else:
        in_folder = path.startswith(f"{kind}/") and path.endswith(".parquet")
        fits, wrong = in_folder or path == f"{kind}.parquet", not entry["rows_sha256"]
    if not fits:
        yield f"field 'kind' of side file {path!r} is {kind!r}, which its path is not"
    if wrong:
        yield f"fields 'rows' and 'rows_sha256' of side file {path!r} do not fit its kind {kind!r}"
