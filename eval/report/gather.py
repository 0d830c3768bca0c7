"""What a report is made from: the datasets, results and measurements that exist in a folder.

- A folder without a lock is "not built yet"; a damaged one is an error, for a report must not show
  numbers of data that are not what their lock says.
- Results and measurements that come with the project are shown too; a run of the same name in the
  folder takes the place of the project's.
- Everything is sorted, so the report does not depend on the order of a directory listing.

Usage: `found = gather(Path("out")); found.datasets`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tangobench.catalogue import CATALOGUE
from tangobench.errors import InputError
from tangobench.eval.scoring.result_files import read_results, shipped_results
from tangobench.pipeline.core.files import read_untrusted
from tangobench.pipeline.core.lock import LOCK_NAME, Lock, committed_lock
from tangobench.pipeline.core.spec import PROFILES, manifest_file
from tangobench.pipeline.reading import Dataset, open_dataset


@dataclass(frozen=True, slots=True)
class Found:
    """All inputs of a report."""

    datasets: list[Dataset]
    results: list[dict[str, Any]]
    measurements: dict[str, dict[str, Any]]
    """Benchmark name to what its script wrote."""
    shipped: frozenset[str] = frozenset()
    """Runs whose results come with the project and not from the folder."""
    own_speed: dict[str, Any] = field(default_factory=dict)
    """What `model speed --save OUT/speed.json` measured on the user's machine."""

    def of(self, name: str) -> list[Dataset]:
        """The built profiles of a dataset, smallest first."""
        return [dataset for dataset in self.datasets if dataset.lock.name == name]


def gather(out: Path) -> Found:
    """Everything in `out` that a report can show."""
    datasets = [open_dataset(path.parent) for path in sorted(out.glob(f"*/{LOCK_NAME}"))]
    datasets.sort(key=lambda dataset: _order(dataset.lock))
    project = manifest_file("").parent
    folders = [out / "results", shipped_results()]
    measured = project / "bench" / "results"
    results = read_results(folders)
    own = {result["run"] for result in read_results(folders[:1])}
    speed = out / "speed.json"
    return Found(
        datasets,
        results,
        {path.stem: read_json(path) for path in sorted(measured.glob("*.json"))},
        frozenset(result["run"] for result in results) - own,
        read_json(speed) if speed.is_file() else {},
    )


def page_of(lock: Lock) -> str:
    """File name of a dataset's page."""
    return f"{lock.name}-{lock.profile}.html"


def committed_state(lock: Lock) -> str:
    """Whether the project ships a lock for this profile, and whether the roots agree."""
    committed = committed_lock(lock.name, lock.profile)
    if committed is None:
        return "absent"
    ours, theirs = ((x.root, x.content_root) for x in (lock, committed))
    return "equal" if ours == theirs else "different"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        value = json.loads(read_untrusted(path))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InputError(
            f"{path}: not a JSON object",
            kind="speed-unreadable",
            fix=f"measure again: tangobench model speed --save {path}",
        )
    return value


def _order(lock: Lock) -> tuple[int, str, int, str]:
    names, profile = list(CATALOGUE), lock.profile
    place = names.index(lock.name) if lock.name in names else len(names)
    rank = PROFILES.index(profile) if profile in PROFILES else len(PROFILES)
    return place, lock.name, rank, profile
