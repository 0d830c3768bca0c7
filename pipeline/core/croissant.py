"""Croissant metadata: every file with its sha256, every column of every table as a field.

- Each shard is also a record set of one record, its bytes: `mlcroissant` has no reader for Arrow
  streams, and of a file set it reads local files unchecked; of a file object it checks the hash.
- Side tables are Parquet, which it reads by column.
- `datePublished` is the date of the format, the same in every build: equal builds give equal files.

Usage: `croissant(lock, card, {"default": {"tokens": pa.list_(pa.uint16())}})`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from tangobench.catalogue import COLUMNS

_PUBLISHED: Final = "2026-11-16"
_CITATION: Final = (
    "Joshua Nunley. TANGO: Token-Aggregated Nonlinear Gating Operators for Natural and Formal "
    "Language Modeling."
)
_OURS: Final = (
    *("arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "extract", "field"),
    *("fileObject", "fileProperty", "fileSet", "format", "includes", "isArray", "isLiveDataset"),
    *("jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex"),
    *("repeated", "replace", "samplingRate", "separator", "source", "subField", "transform"),
)
# The standard context of Croissant, whole: validators warn of any other.
_CONTEXT: Final = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "description": {"@container": "@language"},
    "name": {"@container": "@language"},
    **{name: f"cr:{name}" for name in _OURS},
}
_KINDS: Final = {
    "bool": "sc:Boolean",
    "double": "cr:Float64",
    "float": "cr:Float32",
    **{f"{u}int{n}": f"cr:{u.upper()}Int{n}" for u in ("", "u") for n in (8, 16, 32, 64)},
}


def croissant(
    lock: dict[str, Any], card: dict[str, Any], columns: Mapping[str, Mapping[str, pa.DataType]]
) -> dict[str, Any]:
    """The metadata as JSON-LD; `columns` by config and kind of side table."""
    tables = [side for side in lock["side_files"] if side["rows_sha256"]]
    kinds = dict.fromkeys([*(s["config"] for s in lock["shards"]), *(t["kind"] for t in tables)])
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": f"{lock['name']}-{lock['profile']}",
        "description": card["description"],
        "license": card["licence_id"],
        "citeAs": _CITATION,
        "datePublished": _PUBLISHED,
        "creator": {"@type": "sc:Organization", "name": "tangobench"},
        "identifier": f"sha256:{lock['root']}",
        "version": f"{lock['format'].rpartition('/')[2]}.0.0",
        "distribution": [
            *(_file(entry) for entry in (*lock["shards"], *tables)),
            *(_file_set(kind, lock) for kind in kinds if kind in columns),
        ],
        "recordSet": [
            _splits(lock),
            *(_columns(kind, columns[kind]) for kind in kinds if kind in columns),
            *(_shard_bytes(shard) for shard in lock["shards"]),
        ],
    }


def _file(entry: dict[str, Any]) -> dict[str, Any]:
    # The second name of a shard is what mlcroissant can read whole, as bytes.
    is_shard = "split" in entry
    kinds = ["application/vnd.apache.arrow.stream", "text/plain"]
    return {
        "@type": "cr:FileObject",
        "@id": entry["path"],
        "name": entry["path"],
        "contentUrl": entry["path"],
        "contentSize": f"{entry['bytes']} B",
        "encodingFormat": kinds if is_shard else "application/x-parquet",
        "sha256": entry["sha256"],
    }


def _file_set(kind: str, lock: dict[str, Any]) -> dict[str, Any]:
    """All files of a config or side table."""
    shards = [shard["path"] for shard in lock["shards"] if shard["config"] == kind]
    paths = shards or [side["path"] for side in lock["side_files"] if side["kind"] == kind]
    folder, _, name = paths[0].rpartition("/")
    ending = "*.arrow" if shards else "*.parquet" if folder else name
    return {
        "@type": "cr:FileSet",
        "@id": f"files-of-{kind}",
        "name": f"files-of-{kind}",
        "encodingFormat": "application/vnd.apache.arrow.stream" if shards
        else "application/x-parquet",
        "includes": f"{folder}/{ending}" if folder else ending,
    }  # fmt: skip


def _columns(kind: str, columns: Mapping[str, pa.DataType]) -> dict[str, Any]:
    """The rows of a config or side table, a field per column."""
    fields = [_field(kind, name, column) for name, column in columns.items()]
    return {
        "@type": "cr:RecordSet",
        "@id": kind,
        "name": kind,
        "description": f"The rows of {kind}.",
        "field": fields,
    }


def _field(kind: str, name: str, column: pa.DataType) -> dict[str, Any]:
    is_list = pa.types.is_list(column) or pa.types.is_fixed_size_list(column)
    plain = column.value_type if is_list else column
    shape = column.list_size if pa.types.is_fixed_size_list(column) else -1
    return {
        "@type": "cr:Field",
        "@id": f"{kind}/{name}",
        "name": name,
        "description": COLUMNS.get(name, name),
        "dataType": _KINDS.get(str(plain), "sc:Text"),
        **({"isArray": True, "arrayShape": str(shape)} if is_list else {}),
        "source": {"fileSet": {"@id": f"files-of-{kind}"}, "extract": {"column": name}},
    }


def _splits(lock: dict[str, Any]) -> dict[str, Any]:
    """Rows and tokens of every split, as inline records."""
    kinds = {"config": "sc:Text", "split": "sc:Text", "rows": "sc:Integer", "tokens": "sc:Integer"}
    totals: dict[tuple[str, str], list[int]] = {}
    for shard in lock["shards"]:
        total = totals.setdefault((shard["config"], shard["split"]), [0, 0])
        total[0] += shard["rows"]
        total[1] += shard["tokens"]
    return {
        "@type": "cr:RecordSet",
        "@id": "splits",
        "name": "splits",
        "description": "Rows and tokens of every split.",
        "field": [
            {"@type": "cr:Field", "@id": f"splits/{name}", "name": name, "dataType": kind}
            for name, kind in kinds.items()
        ],
        "data": [
            {f"splits/{name}": value for name, value in zip(kinds, (*key, *total), strict=True)}
            for key, total in totals.items()
        ],
    }


def _shard_bytes(shard: dict[str, Any]) -> dict[str, Any]:
    name = shard["path"].removesuffix(".arrow")
    field = {
        "@type": "cr:Field",
        "@id": f"{name}/content",
        "name": "content",
        "dataType": "sc:Text",
        "source": {"fileObject": {"@id": shard["path"]}, "extract": {"fileProperty": "content"}},
    }
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "description": f"One record: the bytes of {shard['path']}, an Arrow IPC stream of "
        f"{shard['rows']:,} rows; read it with pyarrow.ipc.open_stream.",
        "field": [field],
    }
