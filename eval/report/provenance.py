"""Provenance: what every number stands on, and the commands that check it.

- Roots, specs, source identities, tokenizers and library versions come from the locks.
- Timings, hosts and dates stay in each dataset's run.json; the site must not depend on them.

Usage: `provenance_context(gather(Path("out")))`.
"""

from __future__ import annotations

from typing import Any

from tangobench.catalogue import title_of
from tangobench.errors import TangobenchError
from tangobench.eval.report.charts import Table
from tangobench.eval.report.gather import Found, committed_state, page_of
from tangobench.pipeline import api
from tangobench.pipeline.core.cards import flatten
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.lock import Lock, shown_root
from tangobench.pipeline.core.spec import as_dict
from tangobench.pipeline.reading import Dataset


def provenance_context(found: Found) -> dict[str, Any]:
    """Everything that the provenance page shows."""
    return {
        "datasets": [_dataset(dataset) for dataset in found.datasets],
        "runs": _runs(found.results),
    }


def _runs(results: list[dict[str, Any]]) -> Table:
    """What every scored run was trained on, what it became and which code made it."""
    return Table(
        columns=("Run", "Steps", "Data root", "Checkpoint sha256", "Code sha256"),
        rows=[
            (
                result["run"],
                f"{result['step']:,}",
                shown_root(result["data"]),
                f"{result['checkpoint_sha256'][:16]}…",
                f"{result['trained_with']['code_sha256'][:16]}…",
            )
            for result in results
        ],
    )


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
        "own_spec": not follows_profile(lock),
        "commands": [
            f"tangobench build {lock.name}{profile}",
            f"tangobench verify out/{folder}{against}",
        ],
    }


def follows_profile(lock: Lock) -> bool:
    """Whether the spec is the project's own for this profile: the command alone rebuilds it."""
    try:
        spec = api.Request(name=lock.name, profile=lock.profile).spec()
    except TangobenchError:
        return False
    return bool(digest(as_dict(spec)) == lock.data["spec_sha256"])
