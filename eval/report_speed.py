"""The page of side-by-side measurements: one line per job and peer, from what the benchmarks wrote.

- Benchmark files may have `rows` with a peer: job, peer, ratio, aim, ours, theirs, command and
  versions; a ratio is theirs over ours unless the aim says "at most".
- An aim is judged from its own words, and a missed one is shown as missed.

Usage: `speed_context(found)["files"]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from tangobench.eval.charts import Table
from tangobench.eval.report_gather import Found

Row = dict[str, Any]

TITLES: Final = {
    "dedup": "Exact deduplication",
    "dm_math": "DeepMind Mathematics",
    "encoding": "GPT-2 encoding",
    "fineweb": "FineWeb-Edu",
    "flows": "Orchestration",
    "lean": "Mathlib",
    "loader": "Reading rows",
    "model": "Models",
    "near": "Near-duplicate audit",
    "urls": "URL normalisation",
}


def speed_context(found: Found) -> dict[str, Any]:
    """Everything that the speed page shows."""
    measured = {
        name: of_file
        for name, result in found.measurements.items()
        if (of_file := [row for row in result.get("rows", []) if "peer" in row])
    }
    rows = [row for of_file in measured.values() for row in of_file]
    return {
        "files": [
            {
                "name": name,
                "title": TITLES.get(name, name),
                "table": _table(of_file),
                "commands": list(dict.fromkeys(row["command"] for row in of_file)),
                "versions": _versions(of_file),
            }
            for name, of_file in measured.items()
        ],
        "compared": len(rows),
        "missed": sum(reached(row) is False for row in rows),
    }


def reached(row: Row) -> bool | None:
    """Whether a row meets its aim; None if it has no number to meet."""
    found = re.fullmatch(r"(≥|≤|at least|at most) *([0-9.]+) *[×x]?", row["aim"].strip())
    if found is None:
        return None
    bound = float(found[2])
    return bool(row["ratio"] <= bound if found[1] in ("≤", "at most") else row["ratio"] >= bound)


def _table(rows: Iterable[Row]) -> Table:
    words = {True: "reached", False: "missed", None: "–"}
    return Table(
        head=["Job", "Compared with", "Ratio", "Aim", "Verdict", "Here", "There"],
        rows=[
            [
                row["job"],
                row["peer"],
                f"{row['ratio']:,.3g}",
                row["aim"],
                words[reached(row)],
                row["ours"],
                row["theirs"],
            ]
            for row in rows
        ],
    )


def _versions(rows: Iterable[Row]) -> str:
    versions = {name: version for row in rows for name, version in row["versions"].items()}
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
