"""A lock as a short table, for the terminal and for the Prefect UI.

- Rows, tokens and shards by config and split, then what was dropped, then the two roots.

Usage: `for row in lock_table(lock): print(row["what"], row["value"])`.
"""

from __future__ import annotations

from typing import Any

from tangobench.pipeline.manifest import Lock


def lock_table(lock: Lock) -> list[dict[str, str]]:
    """The lock as rows of `what` and `value`."""
    rows: list[dict[str, str]] = []
    for config, split in dict.fromkeys((s["config"], s["split"]) for s in lock.shards):
        shards = lock.shards_of(config, split)
        name = split if config == "default" else f"{config} {split}"
        rows += [
            {"what": f"{name} rows", "value": f"{sum(s['rows'] for s in shards):,}"},
            {"what": f"{name} tokens", "value": f"{sum(s['tokens'] for s in shards):,}"},
            {"what": f"{name} shards", "value": f"{len(shards):,}"},
        ]
    rows += [{"what": f"dropped: {k}", "value": _shown(v)} for k, v in lock.drops.items()]
    rows.append({"what": "content root", "value": lock.content_root})
    return [*rows, {"what": "root", "value": lock.root}]


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
