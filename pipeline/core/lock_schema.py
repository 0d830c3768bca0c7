"""What a lock must be: the shape of its fields, and that they agree with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import Field, JsonValue, TypeAdapter, ValidationError
from typing_extensions import TypeAliasType, TypedDict

from tangobench.pipeline.core.lock import (
    CARD_NAMES,
    LOCK_NAME,
    NAME,
    RUN_NAME,
    hashes_of,
    short,
)

_PLAIN_FILES: Final = {"card": CARD_NAMES, "tokenizer": ("tokenizer.json", "tiktoken.json")}
_STEP: Final = "[A-Za-z0-9_][A-Za-z0-9_.-]*"

Name = Annotated[str, Field(pattern=f"^{NAME}$")]
RelativePath = Annotated[str, Field(pattern=f"^{_STEP}(/{_STEP})*$", max_length=400)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=1 << 62)]
Positive = Annotated[int, Field(ge=1, lt=1 << 31)]
Tally = TypeAliasType("Tally", "Count | dict[str, Tally]")
Table = dict[str, JsonValue]


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
    rejected_files: list[Annotated[list[str], Field(min_length=2, max_length=2)]]


class _Lock(TypedDict):
    format: Literal["tangobench-lock/1"]
    name: Name
    profile: Name
    spec: Table
    spec_sha256: Sha256
    source: Table
    tokenizer: Table | None
    configs: Annotated[dict[Name, _Config], Field(min_length=1, max_length=1000)]
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


_SHAPE: Final = TypeAdapter(_Lock)


def faults(lock: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a lock: a field of another shape, then fields that contradict others."""
    try:
        _SHAPE.validate_python(lock, strict=True)
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
