"""What drawing the DeepMind Mathematics dataset takes, before it starts.

Usage: `plan(spec, None, workers=2)["lines"]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tangobench.pipeline.dm_math.combinations import NAMES, SPLITS
from tangobench.pipeline.dm_math.files import found_files
from tangobench.pipeline.dm_math.spec import Spec
from tangobench.pipeline.dm_math.units import costs_of, cut, seconds

BYTES_PER_ROW: Final = 85  # measured: 76 tokens, 4 offset, 2 target_start, 1 combination


def plan(spec: Spec, source: str | None, workers: int) -> dict[str, Any]:
    """What a build takes; the time is that of the machine the costs were measured on."""
    rows = sum(len(NAMES) * spec.per_combination(split) for split in SPLITS)
    if source is not None:
        return from_files(rows, source, NAMES, workers)
    costs = {split: costs_of(split) for split in SPLITS}
    units = {split: cut(costs[split], spec.per_combination(split)) for split in SPLITS}
    times = {split: sum(seconds(costs[split], unit) for unit in units[split]) for split in SPLITS}
    core_seconds = sum(times.values())
    shard_bytes = len(NAMES) * min(spec.shard_indices, spec.train_per_combination) * BYTES_PER_ROW
    return {
        "rows": rows,
        "read_bytes": 0,
        "disk_bytes": 2 * rows * BYTES_PER_ROW,  # units and shards
        "memory_bytes": workers * (250_000_000 + 4 * shard_bytes),
        "core_seconds": core_seconds,
        "lines": [
            f"drawing  {len(NAMES)} combinations, {core_seconds / 3600:.2f} core-hours in "
            f"{sum(map(len, units.values())):,} units; a killed build resumes",
            f"train    {spec.train_per_combination:,} per combination, "
            f"{times['train'] / 3600:.2f} core-hours",
            f"valid.   {spec.validation_per_combination:,} per combination, "
            f"{times['validation'] / 3600:.2f} core-hours (one draw in 16 is accepted)",
        ],
    }


def from_files(rows: int, source: str, names: Sequence[str], workers: int) -> dict[str, Any]:
    """What a build takes that reads the official files instead of drawing."""
    size = sum(args.size for args in found_files(source, names))
    return {
        "rows": rows,
        "read_bytes": size,
        "disk_bytes": 2 * rows * BYTES_PER_ROW,
        "memory_bytes": workers * 250_000_000,
        "core_seconds": 5 + size / 20_000_000,
        "lines": [f"files    {len(names):,} of {source}; each is checked line by line"],
    }
