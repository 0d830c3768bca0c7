"""Provenance: what every number stands on, and the commands that check it.

- Roots, specs, source identities, tokenizers and library versions come from the locks.
- Timings, hosts and dates stay in each dataset's run.json; the site must not depend on them.

Usage: `provenance_context(gather(Path("out")))`.
"""

from __future__ import annotations

from typing import Any

from tangobench.eval.report_gather import Found, committed_state, page_of, title_of
from tangobench.pipeline.cards import flatten
from tangobench.pipeline.reading import Dataset


def provenance_context(found: Found) -> dict[str, Any]:
    """Everything that the provenance page shows."""
    return {"datasets": [_dataset(dataset) for dataset in found.datasets]}


def _dataset(dataset: Dataset) -> dict[str, Any]:
    lock = dataset.lock
    folder = f"{lock.name}-{lock.profile}"
    profile = "" if lock.profile == "sample" else f" --profile {lock.profile}"
    against = " --against committed" if committed_state(lock) != "absent" else ""
    return {
        "title": title_of(lock.name),
        "name": lock.name,
        "profile": lock.profile,
        "href": page_of(lock),
        "root": lock.root,
        "content_root": lock.content_root,
        "spec_sha256": lock.data["spec_sha256"],
        "state": committed_state(lock),
        "spec": flatten(lock.spec),
        "source": flatten(lock.data["source"]),
        "tokenizer": flatten(lock.data["tokenizer"] or {}),
        "environment": flatten(lock.data["environment"]),
        "shards": len(lock.shards),
        "commands": [
            f"tangobench build {lock.name}{profile}",
            f"tangobench verify out/{folder}{against}",
        ],
    }
