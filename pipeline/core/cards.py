"""Dataset cards and Croissant metadata, filled only from the lock.

- The card's YAML names every config and its files; without it `load_dataset` cannot tell the two
  kinds of Lean rows apart.
- Croissant lists every shard with its sha256 and gives each a record set of its own: `mlcroissant`
  then checks the hash before it reads. (Of a file set it reads local files unchecked, and it has
  no reader for Arrow streams: a record holds a shard's bytes.)
- No date is written, because equal builds must give equal files.

Usage: `card_files(sealed_lock, {"title": …, "licence": …})` gives file names and bytes.
"""

from __future__ import annotations

import json
from typing import Any, Final

from tangobench.pipeline.core.lock_schema import CARD_NAMES
from tangobench.pipeline.core.sealed import pretty_json

NOT_STATED: Final = "unknown"
"""The licence of rows whose input states none; `push` asks for one."""

_CITATION: Final = (
    "Joshua Nunley. TANGO: Token-Aggregated Nonlinear Gating Operators for Natural and Formal "
    "Language Modeling."
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
    **{
        name: f"cr:{name}"
        for name in (
            *("citeAs", "column", "equivalentProperty", "extract", "field", "fileObject"),
            *("fileProperty", "fileSet", "format", "includes", "isLiveDataset", "jsonPath", "key"),
            *("md5", "parentField", "path", "recordSet", "references", "regex", "repeated"),
            *("replace", "samplingRate", "separator", "source", "subField", "transform"),
        )
    },
}


def card_files(lock: dict[str, Any], card: dict[str, Any]) -> dict[str, bytes]:
    """The files that describe a dataset to people and programs."""
    return {
        CARD_NAMES[0]: _readme(lock, card).encode(),
        CARD_NAMES[1]: (pretty_json(_croissant(lock, card)) + "\n").encode(),
    }


def stated(card: dict[str, Any], title: str, licence: str, source: str) -> dict[str, Any]:
    """The card with what the user states about the rows, where that is not empty."""
    card = {**card, **({"title": title} if title else {})}
    if licence:
        card |= {"licence": licence, "licence_id": licence.lower()}
    if source:
        card |= {"sources": [source]}
    return card


def flatten(value: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested keys as readable labels; long lists by their length."""
    found: list[tuple[str, Any]] = []
    for key, item in value.items():
        label = f"{prefix}{str(key).replace('_', ' ')}"
        if isinstance(item, dict):
            found += flatten(item, f"{label} · ")
        elif isinstance(item, list):
            few = len(item) <= 8 and all(isinstance(part, str | int | float) for part in item)
            found.append((label, ", ".join(map(str, item)) if few else f"{len(item):,} entries"))
        else:
            found.append((label, item))
    return found


def _readme(lock: dict[str, Any], card: dict[str, Any]) -> str:
    return "\n".join(
        [
            "---",
            f"license: {card['licence_id']}",
            f"pretty_name: {json.dumps(card['title'], ensure_ascii=False)}",  # a colon is no key
            "configs:",
            *_yaml_configs(lock),
            "---",
            f"# {card['title']}",
            "",
            card["description"],
            "",
            f"Profile `{lock['profile']}`, root `{lock['root']}`, content root "
            f"`{lock['content_root']}`.",
            "",
            "| config | split | rows | tokens | shards |",
            "|---|---|---:|---:|---:|",
            *_split_rows(lock),
            "",
            "## Rows",
            "",
            *_row_lines(lock),
            "",
            "## Reading",
            "",
            *_reading_lines(lock),
            "",
            "## Dropped",
            "",
            *_drop_lines(lock),
            "",
            "## Sources and licences",
            "",
            *(f"- {source}" for source in card["sources"]),
            f"- Licence of the rows: {card['licence']}.",
            "",
        ]
    )


def _yaml_configs(lock: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for config in lock["configs"]:
        lines += [f"- config_name: {config}", "  data_files:"]
        for split, shards in _by_split(lock, config).items():
            lines.append(f"  - split: {split}")
            folder = "/".join(shards[0]["path"].split("/")[:-1])
            lines.append(f"    path: {folder + '/' if folder else ''}{split}-*.arrow")
    return lines


def _by_split(lock: dict[str, Any], config: str) -> dict[str, list[dict[str, Any]]]:
    splits: dict[str, list[dict[str, Any]]] = {}
    for shard in lock["shards"]:
        if shard["config"] == config:
            splits.setdefault(shard["split"], []).append(shard)
    return splits


def _split_rows(lock: dict[str, Any]) -> list[str]:
    return [
        f"| {config} | {split} | {sum(s['rows'] for s in shards):,} "
        f"| {sum(s['tokens'] for s in shards):,} | {len(shards)} |"
        for config in lock["configs"]
        for split, shards in _by_split(lock, config).items()
    ]


def _row_lines(lock: dict[str, Any]) -> list[str]:
    lines = []
    for name, config in lock["configs"].items():
        masked = config["masked_target"]
        lines.append(
            f"- `{name}`: at most {config['context']:,} tokens of a vocabulary of "
            f"{config['vocabulary']:,}"
            + ("" if masked is None else f"; token {masked} is never a prediction target")
            + "."
        )
    return lines


def _reading_lines(lock: dict[str, Any]) -> list[str]:
    config = next(iter(lock["configs"]))
    first = lock["shards"][0]["path"] if lock["shards"] else "train-00000-of-00001.arrow"
    named = "" if config == "default" else f', "{config}"'
    return [
        "```python",
        "import datasets, polars",
        f'rows = datasets.load_dataset("path/to/this/folder"{named})',
        f'rows = datasets.Dataset.from_file("{first}")  # zero-copy',
        f'rows = polars.read_ipc_stream("{first}")',
        "```",
        "",
        "Arrow does not notice a flipped bit: `tangobench verify FOLDER` checks every file.",
    ]


def _drop_lines(lock: dict[str, Any]) -> list[str]:
    lines = [f"- {reason}: {count:,}" for reason, count in flatten(lock["drops"]) if count]
    return lines or ["Nothing."]


def _croissant(lock: dict[str, Any], card: dict[str, Any]) -> dict[str, Any]:
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": f"{lock['name']}-{lock['profile']}",
        "description": card["description"],
        "license": card["licence_id"],
        "citeAs": _CITATION,
        "creator": {"@type": "sc:Organization", "name": "tangobench"},
        "identifier": f"sha256:{lock['root']}",
        "version": f"{lock['format'].rpartition('/')[2]}.0.0",
        "distribution": [_file_object(shard) for shard in lock["shards"]],
        "recordSet": [_splits(lock), *(_shard_bytes(shard) for shard in lock["shards"])],
    }


def _file_object(shard: dict[str, Any]) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": shard["path"],
        "name": shard["path"],
        "contentUrl": shard["path"],
        "contentSize": f"{shard['bytes']} B",
        # The second name is what mlcroissant can read whole, as bytes.
        "encodingFormat": ["application/vnd.apache.arrow.stream", "text/plain"],
        "sha256": shard["sha256"],
    }


def _splits(lock: dict[str, Any]) -> dict[str, Any]:
    """Rows and tokens of every split, as inline records."""
    kinds = {"config": "sc:Text", "split": "sc:Text", "rows": "sc:Integer", "tokens": "sc:Integer"}
    data = [
        {
            "splits/config": config,
            "splits/split": split,
            "splits/rows": sum(shard["rows"] for shard in shards),
            "splits/tokens": sum(shard["tokens"] for shard in shards),
        }
        for config in lock["configs"]
        for split, shards in _by_split(lock, config).items()
    ]
    return {
        "@type": "cr:RecordSet",
        "@id": "splits",
        "name": "splits",
        "description": "Rows and tokens of every split.",
        "field": [
            {"@type": "cr:Field", "@id": f"splits/{name}", "name": name, "dataType": kind}
            for name, kind in kinds.items()
        ],
        "data": data,
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
