"""Units of similar time, and what a whole build takes.

- A unit is an index range: the same examples of every combination, so all take equally long.
- Costs only place the cuts: they decide neither a row nor a root.
"""

from __future__ import annotations

from typing import Any, Final

from tangobench.pipeline.core.progress import duration, units
from tangobench.pipeline.dm_math.spec import AnySplit, Group, Spec, TestsSpec

_BYTES_PER_ROW: Final = 85  # measured: 76 tokens, 4 offset, 2 target_start, 1 combination
UNIT_SECONDS: Final = 4.0
# One draw in 16 is a validation question, 15 in 16 are training questions.
_ATTEMPTS: Final[dict[AnySplit, float]] = {"train": 16 / 15, "validation": 16.0, "test": 16.0}
RARE: Final = "comparison__sort_more/extrapolate"  # 1 answer in 200 has at most 30 characters
RAREST: Final = 3200.0  # its draws per accepted example

# Microseconds on one core for a draw of each combination of a config; the rare one's apart.
_MICROSECONDS: Final = {"default": 82_620, "interpolate": 27_540, "extrapolate": 4_510}
_RARE_SECONDS: Final = 210e-6 * RAREST


def seconds(group: Group) -> float:
    """Expected time of one accepted example of each combination of a group."""
    rare = _RARE_SECONDS if RARE in group.names else 0.0
    return _MICROSECONDS[group.config] * 1e-6 * _ATTEMPTS[group.split] + rare


def cut(group: Group) -> list[list[tuple[int, int]]]:
    """The index ranges that are the units of each shard of a group."""
    step = max(1, round(UNIT_SECONDS / seconds(group)))
    return [[(i, min(i + step, b)) for i in range(a, b, step)] for a, b in group.shards()]


def plan(spec: Spec | TestsSpec, source: str | None, workers: int) -> dict[str, Any]:
    """What a build takes; the time is that of the machine the costs were measured on."""
    groups = spec.groups()
    rows = sum(len(group.names) * group.each for group in groups)
    needs = {
        "rows": rows,
        "read_bytes": 0,
        "disk_bytes": 2 * rows * _BYTES_PER_ROW,  # units and shards
        "memory_bytes": workers * 250_000_000,
    }
    if source is not None:
        from tangobench.pipeline.dm_math.files import read_units  # loads the generator and SymPy

        sizes = [file.size for file in {unit.args[0].file for unit in read_units(source, groups)}]
        line = f"files    {len(sizes):,} of {source}; each is checked line by line"
        core = 5 + sum(sizes) / 20_000_000
        return needs | {"read_bytes": sum(sizes), "core_seconds": core, "lines": [line]}
    if isinstance(spec, Spec):
        shard = max(len(group.names) * min(group.step, group.each) for group in groups)
        needs["memory_bytes"] += workers * 4 * shard * _BYTES_PER_ROW
    lines, times = [], []
    for group in groups:
        times.append(group.each * seconds(group))
        label = group.split if isinstance(spec, Spec) else group.config
        count = units(sum(map(len, cut(group))))
        lines.append(
            f"{label:<11}  {group.each:,} of each of {len(group.names)} in {count}, "
            f"{duration(times[-1])} of one core"
            + ("" if group.split == "train" else "; one draw in 16 is accepted")
        )
        if RARE in group.names:
            rare = f"{RARE.partition('/')[0]} keeps one draw in {RAREST:,.0f}"
            time = duration(group.each * _RARE_SECONDS)
            lines.append(f"{'':<11}  {rare}: {time} of these")
    return needs | {"core_seconds": sum(times), "lines": lines}
