"""What drawing the test parts of DeepMind Mathematics takes, before it starts.

Usage: `plan(spec, None, workers=2)["lines"]`.
"""

from __future__ import annotations

from typing import Any

from tangobench.pipeline.dm_math.combinations import PARTS, TEST_NAMES
from tangobench.pipeline.dm_math.plan import BYTES_PER_ROW, from_files
from tangobench.pipeline.dm_math.suite.spec import Spec
from tangobench.pipeline.dm_math.units import RARE, RAREST, costs_of_tests, cut, seconds


def plan(spec: Spec, source: str | None, workers: int) -> dict[str, Any]:
    """What a build takes; the time is that of the machine the costs were measured on."""
    rows = sum(len(PARTS[part]) * spec.per_module(part) for part in PARTS)
    if source is not None:
        return from_files(rows, source, TEST_NAMES, workers)
    costs = {part: costs_of_tests(part) for part in PARTS}
    units = {part: cut(costs[part], spec.per_module(part)) for part in PARTS}
    times = {part: sum(seconds(costs[part], unit) for unit in units[part]) for part in PARTS}
    rare = costs["extrapolate"][PARTS["extrapolate"].index(RARE)] * spec.extrapolate_per_module
    return {
        "rows": rows,
        "read_bytes": 0,
        "disk_bytes": 2 * rows * BYTES_PER_ROW,
        "memory_bytes": workers * 250_000_000,
        "core_seconds": sum(times.values()),
        "lines": [
            *(
                f"{part:<11}  {spec.per_module(part):,} of each of {len(PARTS[part])} modules in "
                f"{len(units[part]):,} units, {times[part]:.0f} s of one core"
                for part in PARTS
            ),
            f"rare         {RARE} keeps one draw in {RAREST:,.0f}: {rare:.0f} s of these",
        ],
    }
