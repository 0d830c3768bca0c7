"""The dataset `dm_math_tests`: interpolation and extrapolation of DeepMind Mathematics.

- Configs `interpolate` (56 modules) and `extrapolate` (15), one split `test` each; row r is example
  r // n of module r % n, n modules in the config.
- The examples come from the generator, or with `--source` from the official files.
- A question is accepted as for validation, by its hash: none can be in any training set of
  `dm_math`. The build counts those on the wrong side all the same and refuses to publish any.

Usage: `tangobench build dm_math_tests --profile paper`
"""

from __future__ import annotations

from typing import Any, Final

from tangobench.errors import CorruptionError
from tangobench.pipeline.core.build import Job, Record, Result, ShardFile
from tangobench.pipeline.core.shards import shard_name
from tangobench.pipeline.dm_math import summary
from tangobench.pipeline.dm_math.build import (
    config_of,
    draw_units,
    generator_identity,
    tokenizer_identity,
    whole,
)
from tangobench.pipeline.dm_math.combinations import PARTS, TEST_NAMES, Part
from tangobench.pipeline.dm_math.files import MathFile, read_files, scan_files
from tangobench.pipeline.dm_math.files import identity as files_identity
from tangobench.pipeline.dm_math.stages import (
    ASSEMBLE,
    DRAW,
    SIDES,
    AssembleArgs,
    DrawResult,
    SidesArgs,
    SidesResult,
)
from tangobench.pipeline.dm_math.suite.spec import Spec
from tangobench.pipeline.dm_math.units import Placement, costs_of_tests, cut

_SPLIT: Final = "test"


def build(spec: Spec, source: str | None, job: Job) -> Result:
    """Draw, audit and assemble both parts."""
    if source is None:
        drawn, placed = _draw(spec, job)
        identity, origin = generator_identity(), {"generator": "installed package"}
    else:
        found = scan_files(source, TEST_NAMES, job)
        drawn, placed = _read(spec, found, job)
        identity, origin = files_identity(found), {"files": source}
    sides = _audit(spec, placed, job)
    results = [DrawResult.of(record) for record in drawn]
    table = _rejected(results)
    totals = {column: sum(row[column] for row in table.values()) for column in summary.REJECTIONS}
    return Result(
        source=identity,
        origin=origin,
        tokenizer=tokenizer_identity(),
        configs={part: config_of(spec.context) for part in PARTS},
        counts=_counts(spec, table, sides),
        drops=summary.reasons(totals),
        notes={
            "combinations": list(TEST_NAMES),
            "row_order": "row r is example r // n of module r % n, n modules in the config",
            "per_module_columns": list(summary.REJECTIONS),
            "per_module": {name: list(row.values()) for name, row in table.items()},
            "questions_that_training_may_have": sum(side.misplaced for side in sides),
            "longest_row": max(result.longest for result in results),
        },
        shards=[_assemble(spec, part, placed[part], job) for part in PARTS],
        card=summary.TESTS_CARD,
    )


def _first(part: Part) -> int:
    """The number of a part's first module among TEST_NAMES."""
    return TEST_NAMES.index(f"{PARTS[part][0]}/{part}")


def _draw(spec: Spec, job: Job) -> tuple[list[Record], dict[Part, Placement]]:
    """All records, and where each part's examples are: one stage, so that no worker waits."""
    units, counts = [], {}
    cuts = {part: cut(costs_of_tests(part), spec.per_module(part)) for part in PARTS}
    for part in PARTS:
        names = [f"{module}/{part}" for module in PARTS[part]]
        made = draw_units(spec.seed, _SPLIT, names, costs_of_tests(part), cuts[part])
        units += made
        counts[part] = len(made)
    records = job.run(DRAW, units)
    addresses = iter([record.address for record in records])
    return records, {
        part: Placement(cuts[part], [next(addresses) for _ in range(counts[part])])
        for part in PARTS
    }


def _read(
    spec: Spec, files: list[MathFile], job: Job
) -> tuple[list[Record], dict[Part, Placement]]:
    """The same from the official files: one unit per module."""
    records: list[Record] = []
    placed = {}
    for part in PARTS:
        own = files[_first(part) : _first(part) + len(PARTS[part])]
        read = read_files(own, _SPLIT, spec.per_module(part), job)
        placed[part] = whole(spec.per_module(part), read)
        records += read
    return records, placed


def _audit(spec: Spec, placed: dict[Part, Placement], job: Job) -> list[SidesResult]:
    """Distinct questions of each part; refuses one whose hash belongs to training."""
    units = []
    for part in PARTS:
        each = spec.per_module(part)
        found = tuple(placed[part].find(number, 0, each) for number in range(len(PARTS[part])))
        units.append(SIDES.unit(part, SidesArgs(tuple(f for one in found for f in one))))
    results = [SidesResult.of(record) for record in job.run(SIDES, units)]
    for part, result in zip(PARTS, results, strict=True):
        if result.misplaced:
            raise CorruptionError(
                f"{part}: {result.misplaced} questions may be in training",
                kind="splits-overlap",
                fix="the unit store is damaged: remove it and build again",
            )
    return results


def _rejected(results: list[DrawResult]) -> dict[str, dict[str, int]]:
    """Rejected draws by module and reason."""
    table = {name: dict.fromkeys(summary.REJECTIONS, 0) for name in TEST_NAMES}
    for result in results:
        for name, counts in result.rejected.items():
            for column, count in zip(summary.REJECTIONS, counts, strict=True):
                table[name][column] += count
    return table


def _counts(
    spec: Spec, table: dict[str, dict[str, int]], sides: list[SidesResult]
) -> dict[str, Any]:
    counts: dict[str, Any] = {}
    for part, side in zip(PARTS, sides, strict=True):
        rows = len(PARTS[part]) * spec.per_module(part)
        rejected = sum(sum(table[f"{module}/{part}"].values()) for module in PARTS[part])
        counts[part] = {
            "modules": len(PARTS[part]),
            "rows": rows,
            "draws": rows + rejected,
            "repeated_questions": rows - side.distinct,
        }
    return counts


def _assemble(spec: Spec, part: Part, placed: Placement, job: Job) -> ShardFile:
    path = f"{part}/{shard_name(_SPLIT, 0, 1)}"
    numbers = range(len(PARTS[part]))
    found = tuple(placed.find(number, 0, spec.per_module(part)) for number in numbers)
    args = AssembleArgs(found, spec.batch_rows, _first(part))
    (record,) = job.run(ASSEMBLE, [ASSEMBLE.unit(path, args)])
    return ShardFile(path, part, _SPLIT, record)
