"""Provenance: what every number rests on, and the commands that check it.

- Roots, specs, source identities, tokenizers and library versions come from the locks.
- Timings, hosts and dates stay in each dataset's run.json; the site must not depend on them.

Usage: `provenance_context(gather(Path("out")))`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from tangobench.catalogue import title_of
from tangobench.errors import TangobenchError
from tangobench.eval.comparison.runs import groups
from tangobench.eval.report.charts import Table
from tangobench.eval.report.gather import Found, committed_state, page_of
from tangobench.pipeline import api
from tangobench.pipeline.core.cards import flatten
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.lock import Lock, committed_lock
from tangobench.pipeline.core.spec import as_dict
from tangobench.pipeline.reading import Dataset

# Code hash to the first commit whose sources give it, for runs made before commits were recorded.
_COMMITS: Final = {
    "805bb6fc42f8": "df73ded3798eb2885944b6f59424b246679bd25c",
    "3091c83a2960": "58fe4d3a25b605e26061e96ed566c1907435bc44",
}


def provenance_context(found: Found) -> dict[str, Any]:
    """Everything that the provenance page shows."""
    return {
        "datasets": [_dataset(dataset) for dataset in found.datasets],
        "runs": _runs(found.results),
        "mixed": mixed_code(found.results),
    }


def _runs(results: list[dict[str, Any]]) -> Table:
    """What every scored run was trained on, what it became and which code made it."""
    return Table(
        columns=("Run", "Steps", "Data root", "Lock", "Checkpoint sha256", "Code sha256", "Commit"),
        rows=[
            (
                result["run"],
                f"{result['step']:,}",
                f"{result['data']['root'][:16]}…",
                _lock_of(result["data"]),
                f"{result['checkpoint_sha256'][:16]}…",
                f"{result['trained_with']['code_sha256'][:16]}…",
                commit_of(result["trained_with"]),
            )
            for result in results
        ],
    )


def _lock_of(data: dict[str, str]) -> str:
    """The committed lock with the root of a run's data."""
    name, profile = data["name"], data.get("profile", "")
    committed = committed_lock(name, profile)
    same = committed is not None and committed.root == data["root"]
    return f"manifests/{name}.{profile}.lock.json" if same else "in the dataset folder"


def commit_of(made_with: dict[str, Any]) -> str:
    """The commit that a run recorded, or the first one in this history with the same code."""
    found = made_with.get("commit") or _COMMITS.get(made_with["code_sha256"][:12])
    return "–" if found is None else str(found)[:12] + ("+" if str(found).endswith("+") else "")


def mixed_code(results: list[dict[str, Any]]) -> list[str]:
    """A sentence for each group of compared runs that more than one version of the code trained."""
    found = []
    for group in groups(results):
        used = Counter(
            run["trained_with"]["code_sha256"][:12]
            for runs in group.by_model.values()
            for run in runs
        )
        if len(used) > 1:
            versions = ", ".join(f"{count} by {code}…" for code, count in sorted(used.items()))
            title = f"{title_of(group.dataset)}, {group.family} runs"
            found.append(f"{title}: trained by {len(used)} versions of the code ({versions}).")
    return found


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
