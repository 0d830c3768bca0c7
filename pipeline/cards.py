"""Dataset cards and Croissant metadata, filled only from the lock.

- The card's YAML names every config and its files; without it `load_dataset` cannot tell the two
  kinds of Lean rows apart.
- Croissant lists every shard with its sha256, so that other tools can refuse a damaged one.

Usage: `card_files(sealed_lock, {"title": …, "licence": …})` gives file names and bytes.
"""

from __future__ import annotations

import json
from typing import Any, Final

from tangobench.pipeline.manifest import pretty_json

CARD_NAMES: Final = ("README.md", "croissant.json")


def card_files(lock: dict[str, Any], card: dict[str, Any]) -> dict[str, bytes]:
    """The files that describe a dataset to people and programs."""
    return {
        CARD_NAMES[0]: _readme(lock, card).encode(),
        CARD_NAMES[1]: (pretty_json(_croissant(lock, card)) + "\n").encode(),
    }


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
    lines = [f"- {reason}: {count:,}" for reason, count in lock["drops"].items() if count]
    return lines or ["Nothing."]


def _croissant(lock: dict[str, Any], card: dict[str, Any]) -> dict[str, Any]:
    return {
        "@context": {
            "@language": "en",
            "@vocab": "https://schema.org/",
            "cr": "http://mlcommons.org/croissant/",
            "sc": "https://schema.org/",
            "dct": "http://purl.org/dc/terms/",
            "conformsTo": "dct:conformsTo",
        },
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": f"{lock['name']}-{lock['profile']}",
        "description": card["description"],
        "license": card["licence"],
        "version": lock["root"],
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": shard["path"],
                "name": shard["path"],
                "contentUrl": shard["path"],
                "contentSize": f"{shard['bytes']} B",
                "encodingFormat": "application/vnd.apache.arrow.stream",
                "sha256": shard["sha256"],
            }
            for shard in lock["shards"]
        ],
    }
