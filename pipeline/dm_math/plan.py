"""What drawing a math dataset takes, before it starts."""

from __future__ import annotations

from typing import Any, Final

from tangobench.pipeline.dm_math.combinations import Group
from tangobench.pipeline.dm_math.files import found_files
from tangobench.pipeline.dm_math.spec import Spec, TestsSpec
from tangobench.pipeline.dm_math.units import RARE, RAREST, cost_of, cut, seconds

_BYTES_PER_ROW: Final = 85  # measured: 76 tokens, 4 offset, 2 target_start, 1 combination


def plan(spec: Spec | TestsSpec, source: str | None, workers: int) -> dict[str, Any]:
    """What a build takes; the time is that of the machine the costs were measured on."""
    groups = spec.groups()
    rows = sum(group.rows for group in groups)
    needs = {
        "rows": rows,
        "read_bytes": 0,
        "disk_bytes": 2 * rows * _BYTES_PER_ROW,  # units and shards
        "memory_bytes": workers * 250_000_000,
    }
    if source is not None:
        files = found_files(source, groups)
        size = sum(args.size for args in files.values())
        line = f"files    {len(files):,} of {source}; each is checked line by line"
        return needs | {
            "read_bytes": size,
            "core_seconds": 5 + size / 20_000_000,
            "lines": [line],
        }
    units = [cut(group) for group in groups]
    times = [
        sum(seconds(group, unit) for unit in own) for group, own in zip(groups, units, strict=True)
    ]
    if isinstance(spec, Spec):
        shard = max(len(group.names) * min(group.step, group.each) for group in groups)
        needs["memory_bytes"] += workers * 4 * shard * _BYTES_PER_ROW
    describe = _combinations if isinstance(spec, Spec) else _tests
    return needs | {
        "core_seconds": sum(times),
        "lines": describe(groups, times, [len(own) for own in units]),
    }


def _combinations(groups: list[Group], times: list[float], units: list[int]) -> list[str]:
    train, validation = groups
    return [
        f"drawing  {len(train.names)} combinations, {sum(times) / 3600:.2f} core-hours in "
        f"{sum(units):,} units; a killed build resumes",
        f"train    {train.each:,} per combination, {times[0] / 3600:.2f} core-hours",
        f"valid.   {validation.each:,} per combination, {times[1] / 3600:.2f} core-hours "
        "(one draw in 16 is accepted)",
    ]


def _tests(groups: list[Group], times: list[float], units: list[int]) -> list[str]:
    module, _, part = RARE.partition("/")
    rare = sum(cost_of(RARE, "test") * group.each for group in groups if group.config == part)
    return [
        *(
            f"{group.config:<11}  {group.each:,} of each of {len(group.names)} modules in "
            f"{count:,} units, {time:.0f} s of one core"
            for group, time, count in zip(groups, times, units, strict=True)
        ),
        f"rare         {module} keeps one draw in {RAREST:,.0f}: {rare:.0f} s of these",
    ]
