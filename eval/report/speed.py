"""The page of side-by-side measurements: one line per job and peer, from what the benchmarks wrote.

- Benchmark files may have `rows` with a peer: job, peer, ratio, aim, ours, theirs, command and
  versions; a ratio is theirs over ours unless the aim says "at most".
- An aim is judged from its own words, and a missed one is shown as missed.
- `growth.json` also has every job's points over two orders of magnitude: two charts; `fineweb.json`
  what this machine can do at most.

Usage: `speed_context(found)["files"]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from tangobench.catalogue import CATALOGUE, title_of
from tangobench.eval.report.charts import Axis, Figure, Series, Table, lines
from tangobench.eval.report.gather import Found

Row = dict[str, Any]

TITLES: Final = {
    "dedup": "Exact deduplication",
    "encoding": "GPT-2 encoding",
    "flows": "Orchestration",
    "growth": "Growth with the input",
    "loader": "Reading rows",
    "model": "Models",
    "near": "Near-duplicate audit",
    "urls": "URL normalisation",
}
_GROWING: Final = {
    **{name: f"{data.label} build" for name, data in CATALOGUE.items()},
    "training": "training, 12 steps",
    "verify": "verify",
}
_BOUNDS: Final = {
    "memcpy_mb_per_second": "copying memory",
    "xxh3_128_mb_per_second": "keys (xxh3, 128 bits)",
    "sha256_mb_per_second": "sha256",
    "durable_write_mb_per_second": "writing a file durably",
    "parquet_text_mb_per_second": "decoding text from Parquet",
    "encoder_mb_per_second": "GPT-2 encoding",
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
                "title": TITLES.get(name) or title_of(name),
                "table": _table(of_file),
                "figures": growth_figures(found.measurements[name]) if name == "growth" else [],
                "commands": list(dict.fromkeys(row["command"] for row in of_file)),
                "versions": _versions(of_file),
            }
            for name, of_file in measured.items()
        ],
        "bounds": bounds(found.measurements.get("fineweb", {}).get("bounds")),
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


def bounds(measured: dict[str, Any] | None) -> Table | None:
    """What one core can do at most in each of the parts that builds are made of."""
    if measured is None:
        return None
    return Table(
        columns=["One core", "MB/s"],
        rows=[[_BOUNDS[key], f"{measured[key]:,.0f}"] for key in _BOUNDS if key in measured],
    )


def growth_figures(measured: dict[str, Any]) -> list[Figure]:
    """CPU seconds and peak memory of every job against the size of its input."""
    names = [name for name in _GROWING if name in measured]

    def series(column: int) -> list[Series]:
        return [
            Series(
                key=name,
                label=_GROWING[name],
                x=[point[0] / measured[name]["points"][0][0] for point in measured[name]["points"]],
                y=[point[column] for point in measured[name]["points"]],
            )
            for name in names
        ]

    across = Axis(label="times the smallest input (log scale)", log=True)
    inputs = "; ".join(
        f"{_GROWING[n]}: {measured[n]['points'][0][0]:,} {measured[n]['unit']}" for n in names
    )
    return [
        lines(
            "CPU time against input",
            series(1),
            x=across,
            y=Axis(label="CPU seconds, one worker (log scale)", log=True, rounded=True),
            description="CPU seconds of every job from one to a hundred times its smallest input.",
            note=f"Start-up is the flat part. The smallest inputs: {inputs}.",
            points=True,
        ),
        lines(
            "Peak memory against input",
            series(2),
            x=across,
            y=Axis(label="private memory, MB (log scale)", log=True, rounded=True),
            description="Peak private memory of every job from one to a hundred times its input.",
            note="Shards are memory-mapped and belong to the system.",
            points=True,
        ),
    ]


def _table(rows: Iterable[Row]) -> Table:
    words = {True: "reached", False: "missed", None: "–"}
    return Table(
        columns=["Job", "Compared with", "Ratio", "Aim", "Verdict", "Here", "There"],
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
