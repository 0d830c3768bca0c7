"""Your files as one file in FineWeb's form: `id dump url text date`, each document with its side.

- Files are taken in the order of their sha256, the same bytes once: names decide nothing.
- Training is the earlier dump, so a component with a training member is training, by the same
  rule that FineWeb's temporal split has.
- The converted file is scratch: the dataset's identity is that of your files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tangobench.errors import InputError, ResourceError
from tangobench.pipeline.core.hashing import sha256_file
from tangobench.pipeline.fineweb.own.readers import format_of, rows_of
from tangobench.pipeline.fineweb.own.spec import TRAIN, VALIDATION, Spec, in_order
from tangobench.pipeline.fineweb.sources import endpoint, find_paths
from tangobench.pipeline.fineweb.spec import dump_order

_COLUMNS: Final = ("id", "dump", "url", "text", "date")
_SCHEMA: Final = pa.schema([(name, pa.large_string()) for name in _COLUMNS])
_GROUP_BYTES: Final = 1 << 23
_GROUP_ROWS: Final = 8192
_WIDTH: Final = 1 << 64
_LONGEST_PATH: Final = 4095
# What `datasets` puts beside the data of a folder or a repository.
_NO_DATA: Final = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
_DATA: Final = ["*.parquet", "*.jsonl*", "*.csv*", "*.tsv*", "*.arrow", "*.json.gz"]


def find_files(source: str) -> list[Path]:
    """The readable files at a path, in a folder or of a glob; a dataset's name is downloaded."""
    fix = 'set files to a path, folder or glob, or to "hub:OWNER/NAME" for a dataset'
    if not source or len(source) > _LONGEST_PATH:
        what = "the manifest names no files" if not source else f"{source[:80]}… is no path"
        raise InputError(what, kind="source-missing", fix=fix)
    expanded = os.path.expanduser(source)  # noqa: PTH111 - Path's raises for an unknown user
    if source.startswith("hub:") and not Path(expanded).exists():
        return find_files(_download(source.removeprefix("hub:")))
    paths, named = find_paths(expanded, fix)
    found = sorted(p for p in paths if named or (p.name not in _NO_DATA and format_of(p)))
    unread = [path for path in found if not format_of(path)]
    if unread or not found:
        what = f"{unread[0]} is no" if unread else f"{source} holds no"
        fix = "name files that end in .parquet, .jsonl, .csv, .tsv or .arrow (also .gz, .zst)"
        what += " Parquet, JSONL, CSV, TSV or Arrow file"
        raise InputError(what, kind="source-empty", fix=fix)
    return found


def _download(name: str) -> str:
    repository, _, revision = name.partition("@")
    try:
        from huggingface_hub import snapshot_download

        get = partial(snapshot_download, repo_type="dataset", endpoint=endpoint())
        return str(get(repository, revision=revision or None, allow_patterns=_DATA))
    except Exception as error:  # the client raises its own, httpx's and OSError
        why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
        fix = "check its name, the network and HF_TOKEN, or download it and name the folder"
        what = f"the dataset {name} cannot be downloaded: {why}"
        raise ResourceError(what, kind="source-unreachable", fix=fix) from None


def convert(
    spec: Spec, paths: list[Path], target: Path
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Write the documents to `target`; the identity of the input and, for people, its names."""
    by_hash = {sha256_file(path): path for path in reversed(paths)}
    identity = []
    with pq.ParquetWriter(target, _SCHEMA, compression="zstd") as writer:
        for sha256, path in sorted(by_hash.items()):
            rows = 0
            for table in _tables(_documents(spec, path)):
                writer.write_table(table)
                rows += table.num_rows
            identity.append({"sha256": sha256, "size": path.stat().st_size, "rows": rows})
    return identity, {str(path): sha256 for sha256, path in by_hash.items()}


def _tables(documents: Iterator[tuple[str | None, ...]]) -> Iterator[pa.Table]:
    rows: list[tuple[str | None, ...]] = []
    size = 0
    for document in documents:
        rows.append(document)
        size += len(document[3] or "")
        if size >= _GROUP_BYTES or len(rows) == _GROUP_ROWS:
            yield _table(rows)
            rows, size = [], 0
    if rows:
        yield _table(rows)


def _table(rows: list[tuple[str | None, ...]]) -> pa.Table:
    arrays = [pa.array(column, pa.large_string()) for column in zip(*rows, strict=True)]
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)


Bad = Callable[[str, Any, str], InputError]


def _documents(spec: Spec, path: Path) -> Iterator[tuple[str | None, ...]]:
    columns = spec.columns.named()
    needed = [kind for kind in ("text", "id", spec.split.by) if kind in columns]
    for number, row in enumerate(rows_of(path, columns, needed), 1):
        bad = partial(_bad, path, number)
        text, url = _text(row, "text", bad), _text(row, "url", bad)
        ident = _ident(row["id"], bad) if "id" in row else _hashed(text or "", url or "")
        timed = row.get("time") is not None or spec.split.by == "time"
        date = _time(row.get("time"), bad) if timed else None
        yield ident, _side(spec, ident, date, row.get("dump"), bad), url, text, date


def _text(row: dict[str, Any], kind: str, bad: Bad) -> str | None:
    value = row.get(kind)
    if value is not None and not isinstance(value, str):
        raise bad(kind, value, "text")
    if value is not None and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise bad(kind, "half of a surrogate pair", "text in UTF-8")
    return value


def _hashed(text: str, url: str) -> str:
    return hashlib.sha256(f"{len(url)}:{url}{text}".encode()).hexdigest()


def _ident(value: Any, bad: Bad) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise bad("id", value, "text or a whole number")
    return _text({"id": str(value)}, "id", bad) or ""


def _time(value: Any, bad: Bad) -> str:
    try:
        return in_order(value)
    except (ValueError, TypeError, OverflowError, OSError):
        raise bad("time", value, "a time, such as 2024-01-31T12:00:00") from None


def _side(spec: Spec, ident: str, date: str | None, dump: Any, bad: Bad) -> str:
    if spec.split.by == "dump":
        if not isinstance(dump, str) or dump_order(dump) is None:
            raise bad("dump", dump, "CC-MAIN-YYYY-WW")
        return dump
    if spec.split.by == "time" and date is not None:
        return VALIDATION if date >= spec.split.moment() else TRAIN
    share = share_of(spec.seed, ident)
    return VALIDATION if share < spec.split.share else TRAIN


def share_of(seed: int, ident: str) -> float:
    """The hash of an id, from 0 to 1: documents below the share asked for are validation."""
    key = hashlib.sha256(f"{seed}:{ident}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(key[:8]) / _WIDTH


def _bad(path: Path, number: int, kind: str, value: Any, expected: str) -> InputError:
    what = f"{path}, row {number}: {kind} is {str(value)[:80]!r}, expected {expected}"
    fix = f"correct the row, or name another column as columns.{kind}"
    return InputError(what, kind=f"bad-{kind}", fix=fix, file=str(path), row=number)
