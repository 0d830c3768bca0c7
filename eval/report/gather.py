"""What a report is made from, and the page that says what every number rests on.

- A folder without a lock is "not built yet"; a damaged one is an error.
- Results and measurements that come with the project are shown too, unless the folder has a run of
  the same name.
- Timings, hosts and dates stay in each dataset's run.json: the site must not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tangobench.catalogue import CATALOGUE, title_of
from tangobench.errors import InputError, TangobenchError
from tangobench.eval.costs.speed import read_speed
from tangobench.eval.render import Table, tabled
from tangobench.eval.scoring.result_files import read_results, shipped_results
from tangobench.pipeline import api
from tangobench.pipeline.core.cards import flatten
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.lock import LOCK_NAME, Lock, committed_lock
from tangobench.pipeline.core.spec import PROFILES, as_dict, manifest_file
from tangobench.pipeline.reading import Dataset, open_dataset

# Code hash to the first commit whose sources give it, for runs made before commits were recorded.
_COMMITS: Final = {
    "805bb6fc42f8": "df73ded3798eb2885944b6f59424b246679bd25c",
    "3091c83a2960": "58fe4d3a25b605e26061e96ed566c1907435bc44",
}
# Commits of shipped runs that were rewritten before they were merged: no commit has their code.
_REWRITTEN: Final = ("2c5db40d5661", "245fb604137c")


@dataclass(frozen=True, slots=True)
class Found:
    """All inputs of a report."""

    datasets: list[Dataset]
    results: list[dict[str, Any]]
    shipped_speed: dict[str, Any]
    """What `make bench-speed` measured on the project's machine."""
    shipped: frozenset[str] = frozenset()
    """Runs whose results come with the project and not from the folder."""
    own_speed: dict[str, Any] = field(default_factory=dict)
    """What `model speed --save OUT/speed.json` measured on the user's machine."""

    def of(self, name: str) -> list[Dataset]:
        """The built profiles of a dataset, smallest first."""
        return [dataset for dataset in self.datasets if dataset.lock.name == name]


def gather(out: Path) -> Found:
    datasets = [open_dataset(path.parent) for path in sorted(out.glob(f"*/{LOCK_NAME}"))]
    results = read_results([out / "results", shipped_results()])
    own = {result["run"] for result in read_results([out / "results"])}
    return Found(
        sorted(datasets, key=lambda dataset: _order(dataset.lock)),
        results,
        _speed(manifest_file("").parent / "bench" / "results" / "speed.json"),
        frozenset(result["run"] for result in results) - own,
        _speed(out / "speed.json"),
    )


def _order(lock: Lock) -> tuple[int, str, int, str]:
    names, profiles = [*CATALOGUE, lock.name], [*PROFILES, lock.profile]
    return names.index(lock.name), lock.name, profiles.index(lock.profile), lock.profile


def _speed(path: Path) -> dict[str, Any]:
    try:
        return read_speed(path) if path.is_file() else {}
    except ValueError as error:
        raise InputError(
            f"{path} holds no measurements: {error}",
            kind="speed-unreadable",
            fix=f"measure again: tangobench model speed --save {path}",
        ) from None


def page_of(lock: Lock) -> str:
    return f"{lock.name}-{lock.profile}.html"


def build_command(name: str, profile: str = "sample") -> str:
    return f"tangobench build {name}" + ("" if profile == "sample" else f" --profile {profile}")


def committed_state(lock: Lock) -> str:
    """Whether the project ships a lock for this profile, and whether the roots agree."""
    committed = committed_lock(lock.name, lock.profile)
    if committed is None:
        return "absent"
    ours, theirs = ((x.root, x.content_root) for x in (lock, committed))
    return "equal" if ours == theirs else "different"


def provenance_context(found: Found) -> dict[str, Any]:
    shipped = [run for run in found.results if run["run"] in found.shipped]
    return {
        "datasets": [_provenance(dataset.lock) for dataset in found.datasets],
        "runs": _runs([run for run in found.results if run not in shipped]),
        "shipped_runs": _runs(shipped),
    }


def _provenance(lock: Lock) -> dict[str, Any]:
    state = committed_state(lock)
    against = " --against committed" if state != "absent" else ""
    pins = {
        "Effective spec": lock.spec,
        "Source identity": lock.data["source"],
        "Tokenizer": lock.data["tokenizer"] or {},
        "Versions at build time (not part of the root)": lock.data["environment"],
    }
    return {
        "title": title_of(lock.name),
        "lock": lock,
        "href": page_of(lock),
        "state": state,
        "own_spec": not follows_profile(lock),
        "pins": {label: flatten(values) for label, values in pins.items()},
        "commands": [
            build_command(lock.name, lock.profile),
            f"tangobench verify out/{lock.name}-{lock.profile}{against}",
        ],
    }


def follows_profile(lock: Lock) -> bool:
    """Whether the spec is the project's own for this profile: the command alone rebuilds it."""
    try:
        spec = api.Request(name=lock.name, profile=lock.profile).spec()
    except TangobenchError:
        return False
    return bool(digest(as_dict(spec)) == lock.data["spec_sha256"])


def _runs(results: list[dict[str, Any]]) -> Table | None:
    """What every scored run was trained on, what it became and which code made it."""

    def lock(data: dict[str, Any]) -> str:
        committed = committed_lock(data["name"], data.get("profile", ""))
        if committed is None or committed.root != data["root"]:
            return "not committed"
        return f"{data['name']}.{data['profile']}"

    cells: dict[str, Callable[[dict[str, Any]], str]] = {
        "Run": lambda run: run["run"],
        "Steps": lambda run: f"{run['step']:,}",
        "Data root": lambda run: f"{run['data']['root'][:12]}…",
        "Committed lock": lambda run: lock(run["data"]),
        "Checkpoint": lambda run: f"{run['checkpoint_sha256'][:12]}…",
        "Code": lambda run: f"{run['trained_with']['code_sha256'][:12]}…",
        "Commit": lambda run: commit_of(run["trained_with"]),
    }
    return tabled("", results, cells) if results else None


def commit_of(made_with: dict[str, Any]) -> str:
    """The commit that a run recorded, or the first one in this history with the same code."""
    found = made_with.get("commit") or _COMMITS.get(made_with["code_sha256"][:12])
    if found is None:
        return "–"
    mark = "+" if str(found).endswith("+") else "*" if str(found)[:12] in _REWRITTEN else ""
    return str(found)[:12] + mark
