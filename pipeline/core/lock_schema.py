"""The shape of a lock: its fields, their types and ranges, and how they must agree.

- A lock from elsewhere is believed only after this: names become paths and links, counts become
  sizes of arrays, and a fault found here is one line instead of a traceback.
- Hashes are checked in `lock`, rows against the lock in `contents`.

Usage: `if wrong := first_fault(json.loads(raw)): ...`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError
from typing_extensions import TypeAliasType, TypedDict

FORMAT: Final = "tangobench-lock/1"
LOCK_NAME: Final = "manifest.lock.json"
RUN_NAME: Final = "run.json"
CARD_NAMES: Final = ("README.md", "croissant.json")
TOKENIZER_NAMES: Final = ("tokenizer.json", "tiktoken.json")
_PLAIN_FILES: Final = {"card": CARD_NAMES, "tokenizer": TOKENIZER_NAMES}
NAME: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\Z"
"""Names of datasets, profiles, configs, splits and recipes: safe as a file name and in a link."""
_PATH: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*\Z"

Name = Annotated[str, Field(pattern=NAME)]
RelativePath = Annotated[str, Field(pattern=_PATH, max_length=400)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}\Z")]
Count = Annotated[int, Field(ge=0, lt=1 << 62)]
Positive = Annotated[int, Field(ge=1, lt=1 << 31)]
Tally = TypeAliasType("Tally", "Count | dict[str, Tally]")
_STRICT: Final = ConfigDict(strict=True, regex_engine="python-re")


class Config(TypedDict):
    """How rows of a config are read."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    context: Positive
    vocabulary: Positive
    masked_target: Count | None
    pad: Count


class ShardEntry(TypedDict):
    """One shard."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
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


class SideEntry(TypedDict):
    """A file beside the shards."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    path: RelativePath
    kind: Name
    bytes: Count
    sha256: Sha256
    rows: Count
    rows_sha256: Sha256 | Literal[""]


class Notes(TypedDict, total=False):
    """Audits, tables of names, and whatever else a dataset notes."""

    __pydantic_config__ = ConfigDict(strict=True, extra="allow")  # type: ignore[misc]
    combinations: list[str]
    leakage: dict[str, JsonValue]


class LockData(TypedDict):
    """The whole lock."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    format: Literal["tangobench-lock/1"]
    name: Name
    profile: Name
    spec: dict[str, JsonValue]
    spec_sha256: Sha256
    source: dict[str, JsonValue]
    tokenizer: dict[str, JsonValue] | None
    configs: Annotated[dict[Name, Config], Field(min_length=1, max_length=1000)]
    counts: dict[str, JsonValue]
    drops: dict[str, Tally]
    notes: Notes
    shards: list[ShardEntry]
    side_files: list[SideEntry]
    environment: dict[str, str]
    provenance: NotRequired[dict[str, JsonValue]]
    content_root: Sha256
    root: Sha256
    checksum: Sha256


_LOCK: Final = TypeAdapter(LockData)


def first_fault(lock: Any) -> str | None:
    """What is wrong with the shape of a lock, or None."""
    if not isinstance(lock, dict) or lock.get("format") != FORMAT:
        return f"it is no {FORMAT} object"
    try:
        _LOCK.validate_python(lock)
    except ValidationError as error:
        return _explained(error)
    return next(_disagreements(lock), None)


def _explained(error: ValidationError) -> str:
    """The first fault, with the path of its field."""
    first = error.errors(include_url=False, include_context=False, include_input=True)[0]
    where = ".".join(str(step) for step in first["loc"] if not str(step).startswith("function"))
    found = repr(first["input"])
    shown = found if len(found) <= 60 else f"{found[:59]}…"
    return f"field {where!r}: {first['msg']}, found {shown}"


def _disagreements(lock: dict[str, Any]) -> Iterator[str]:
    for name, config in lock["configs"].items():
        for field in ("pad", "masked_target"):
            if (config[field] or 0) >= config["vocabulary"]:
                yield f"field 'configs.{name}.{field}' is outside of the vocabulary"
    for shard in lock["shards"]:
        yield from _shard_faults(shard, lock["configs"])
    for entry in lock["side_files"]:
        yield from _side_faults(entry)
    yield from _tokenizer_faults(lock)
    seen = {LOCK_NAME, RUN_NAME}
    for path in (entry["path"] for entry in lock["shards"] + lock["side_files"]):
        if path in seen:
            yield f"path {path!r} occurs twice"
        seen.add(path)


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
    if any((kind == plain) != (path in names) for plain, names in _PLAIN_FILES.items()):
        yield f"field 'kind' of side file {path!r} is {kind!r}, which its path is not"
    elif kind in _PLAIN_FILES and (entry["rows"] or entry["rows_sha256"]):
        yield f"field 'rows' of side file {path!r}: a {kind} has no rows"
    elif kind not in _PLAIN_FILES and not entry["rows_sha256"]:
        yield f"field 'rows_sha256' of side file {path!r} is empty"
    elif kind not in _PLAIN_FILES and not (
        path == f"{kind}.parquet" or (path.startswith(f"{kind}/") and path.endswith(".parquet"))
    ):
        yield f"field 'kind' of side file {path!r} is {kind!r}, which its path is not"


def _tokenizer_faults(lock: dict[str, Any]) -> Iterator[str]:
    """A tokenizer that is a file of the folder is the one that the root covers."""
    identity = lock["tokenizer"] or {}
    named = [identity["file"]] if "file" in identity else []
    found = {e["path"]: e["sha256"] for e in lock["side_files"] if e["kind"] == "tokenizer"}
    if list(found) != named or (named and found[named[0]] != identity.get("sha256")):
        yield "field 'tokenizer' names another file than the side files hold"
