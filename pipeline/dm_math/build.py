"""The DeepMind Mathematics datasets, `dm_math` and `dm_math_tests`: draw, audit and assemble.

- A group (a split, or a test part) has equally many examples of each of its n combinations; row r
  is example r // n of combination r % n.
- The question's hash decides its side, so no question of training can be in validation or in a
  test; the build reads all questions back all the same and refuses to publish a misplaced one.
- Repeats inside a group are kept (the paper samples with replacement) and counted.
"""

from itertools import chain
from typing import Any, Final

from tangobench.errors import CorruptionError
from tangobench.pipeline.core.build import Job, Result, ShardFile, Stage, Unit
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.shards import shard_name
from tangobench.pipeline.dm_math import files, generator, stages, summary, vocabulary
from tangobench.pipeline.dm_math.combinations import AnySplit, Group
from tangobench.pipeline.dm_math.spec import Spec, TestsSpec
from tangobench.pipeline.dm_math.stages import ASSEMBLE, AUDIT, DRAW
from tangobench.pipeline.dm_math.units import Found, Piece, Placement, cut, seconds

_AUDITED: Final = 12  # combinations per unit: a second of work at the paper's size

Examples = tuple[Group, Placement, list[stages.DrawResult]]
Questions = tuple[str, AnySplit, tuple[Found, ...]]


def build(spec: Spec | TestsSpec, source: str | None, job: Job) -> Result:
    """Draw (or read from the official files), audit and assemble."""
    groups = spec.groups()
    if source is None:
        identity, origin = generator.identity(), {"generator": "installed package"}
        cuts = [cut(group) for group in groups]
        examples = _run(DRAW, groups, cuts, _draw_units(spec.seed, groups, cuts, identity), job)
    else:
        found = files.scan_files(source, groups, job)
        identity, origin = files.identity(found), {"files": source}
        whole = [[[Piece(n, 0, g.each)] for n in range(len(g.names))] for g in groups]
        examples = _run(files.READ, groups, whole, files.read_units(found, groups), job)
    distinct = _audit(examples, job)
    tallies = [summary.tally(group, results, distinct) for group, _, results in examples]
    config = {
        "context": spec.context,
        "vocabulary": len(vocabulary.SYMBOLS),
        "masked_target": None,
        "pad": vocabulary.PAD,
    }
    symbols = list(vocabulary.SYMBOLS)
    return Result(
        source=identity,
        origin=origin,
        tokenizer={
            **{"name": "dm_math", "vocabulary": len(symbols)},
            **{"symbols": symbols, "sha256": digest(symbols)},
        },
        configs={group.config: config for group in groups},
        drops=summary.drops(tallies),
        shards=_assemble(examples, spec.batch_rows, job),
        **(summary.combinations if isinstance(spec, Spec) else summary.tests)(tallies),
    )


def _draw_units(
    seed: int, groups: list[Group], cuts: list[list[list[Piece]]], identity: dict[str, Any]
) -> list[Unit]:
    units = []
    for group, own in zip(groups, cuts, strict=True):
        for pieces in own:
            named = tuple((group.names[p.combination], p.start, p.stop) for p in pieces)
            first, last = named[0], named[-1]
            label = f"{group.split} {first[0]} {first[1]} – {last[0]} {last[2]}"
            args = stages.DrawArgs(identity, seed, group.split, named)
            module = last[0].partition("/")[0]
            units.append(DRAW.unit(label, args, seconds(group, pieces), module))
    return units


def _run(
    stage: Stage[Any, stages.DrawResult],
    groups: list[Group],
    cuts: list[list[list[Piece]]],
    units: list[Unit],
    job: Job,
) -> list[Examples]:
    """The examples of all groups, in one stage, so that no worker waits."""
    records = iter(job.run(stage, units))
    examples: list[Examples] = []
    for group, own in zip(groups, cuts, strict=True):
        drawn = [next(records) for _ in own]
        placed = Placement(own, [record.address for record in drawn])
        examples.append((group, placed, [record.result for record in drawn]))
    return examples


def _audit(examples: list[Examples], job: Job) -> dict[tuple[str, AnySplit], int]:
    """Distinct questions of each combination (of each part, for tests) by split."""
    sets: list[Questions] = []
    for group, placed, _ in examples:
        found = [placed.find(number, 0, group.each) for number in range(len(group.names))]
        if group.config == "default":
            sets += [(name, group.split, f) for name, f in zip(group.names, found, strict=True)]
        else:
            sets.append((group.config, group.split, tuple(chain.from_iterable(found))))
    parts = [tuple(sets[first : first + _AUDITED]) for first in range(0, len(sets), _AUDITED)]
    units = [AUDIT.unit(f"{part[0][1]} {part[0][0]}", stages.AuditArgs(part)) for part in parts]
    audited = [entry for r in job.run(AUDIT, units) for entry in r.result["sets"]]
    for name, split, _, misplaced in audited:
        if misplaced:
            raise CorruptionError(
                f"{name}: {misplaced} questions of {split} belong to the other side",
                kind="splits-overlap",
                fix="the unit store is damaged: remove it and build again",
            )
    return {(name, split): distinct for name, split, distinct, _ in audited}


def _assemble(examples: list[Examples], batch_rows: int, job: Job) -> list[ShardFile]:
    named, units = [], []
    for group, placed, _ in examples:
        folder = "" if group.config == "default" else f"{group.config}/"
        starts = range(0, group.each, group.step)
        for index, start in enumerate(starts):
            path = folder + shard_name(group.split, index, len(starts))
            stop = min(start + group.step, group.each)
            found = tuple(placed.find(n, start, stop) for n in range(len(group.names)))
            units.append(ASSEMBLE.unit(path, stages.AssembleArgs(found, batch_rows, group.first)))
            named.append((path, group.config, group.split))
    records = job.run(ASSEMBLE, units)
    return [ShardFile(*of, record) for of, record in zip(named, records, strict=True)]
