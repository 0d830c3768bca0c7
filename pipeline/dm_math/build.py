"""The DeepMind Mathematics dataset: spec, build, plan, and the outcome of a question.

- 168 combinations (56 modules × easy, medium, hard) in equal numbers, drawn from the official
  generator; row r of a split is example r // 168 of combination r % 168.
- The question's hash decides its split, so train and validation cannot share one; the build
  counts shared questions all the same and refuses to publish any.
- Repeats inside training are kept (the paper samples with replacement) and counted.

Usage: `tangobench build dm_math --profile mini`
"""

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from tangobench.errors import CorruptionError, InputError
from tangobench.pipeline.core.build import Job, Record, Result, ShardFile, Unit
from tangobench.pipeline.core.hashing import digest, sha256_file
from tangobench.pipeline.core.shards import shard_name
from tangobench.pipeline.dm_math import files, generator, summary, vocabulary
from tangobench.pipeline.dm_math.combinations import NAMES, SPLITS, AnySplit, Split
from tangobench.pipeline.dm_math.spec import Spec
from tangobench.pipeline.dm_math.stages import (
    ASSEMBLE,
    AUDIT,
    DRAW,
    AssembleArgs,
    AuditArgs,
    AuditResult,
    DrawArgs,
    DrawResult,
)
from tangobench.pipeline.dm_math.units import Piece, Placement, costs_of, cut, seconds

_AUDITED: Final = 12  # combinations per unit: a second of work at the paper's size


def build(spec: Spec, source: str | None, job: Job) -> Result:
    """Draw, audit and assemble."""
    drawn, placed, identity, origin = _examples(spec, source, job)
    distinct = _audit(spec, placed, job)
    rows = {split: spec.per_combination(split) for split in SPLITS}
    results = {split: [DrawResult.of(record) for record in drawn[split]] for split in SPLITS}
    rejected = {split: [result.rejected for result in results[split]] for split in SPLITS}
    table = summary.combination_table(rows, rejected, distinct)
    return Result(
        source=identity,
        origin=origin,
        tokenizer=tokenizer_identity(),
        configs={"default": config_of(spec.context)},
        counts=summary.counts(rows, table),
        drops=summary.drops(table),
        notes={
            "combinations": list(NAMES),
            "row_order": "row r is example r // 168 of combination r % 168",
            "per_combination_columns": list(summary.COLUMNS),
            "per_combination": {name: list(row.values()) for name, row in table.items()},
            "small_spaces": summary.small_spaces(rows, table),
            "longest_row": max(result.longest for split in SPLITS for result in results[split]),
        },
        shards=[shard for split in SPLITS for shard in _assemble(spec, split, placed[split], job)],
        card=summary.CARD,
    )


def _examples(
    spec: Spec, source: str | None, job: Job
) -> tuple[dict[Split, list[Record]], dict[Split, Placement], dict[str, Any], dict[str, str]]:
    """Records and places of the examples of each split, identity and origin of their source."""
    if source is not None:
        found = files.scan_files(source, NAMES, job)
        each = {split: spec.per_combination(split) for split in SPLITS}
        read = {split: files.read_files(found, split, each[split], job) for split in SPLITS}
        placed = {split: whole(each[split], read[split]) for split in SPLITS}
        return read, placed, files.identity(found), {"files": source}
    units = {split: cut(costs_of(split), spec.per_combination(split)) for split in SPLITS}
    drawn = {split: _draw(spec, split, units[split], job) for split in SPLITS}
    placed = {
        split: Placement(units[split], [record.address for record in drawn[split]])
        for split in SPLITS
    }
    return drawn, placed, generator_identity(), {"generator": "installed package"}


def whole(each: int, records: Sequence[Record]) -> Placement:
    """Where examples are if each combination is a unit of its own."""
    pieces = [[Piece(number, 0, each)] for number in range(len(records))]
    return Placement(pieces, [record.address for record in records])


def generator_identity() -> dict[str, Any]:
    """What decides the rows besides the spec."""
    return {
        "generator": generator.PACKAGE,
        "version": importlib.metadata.version(generator.PACKAGE),
        "files_sha256": _package_digest(),
        "sympy": importlib.metadata.version("sympy"),
        "patch": generator.PATCH_VERSION,
    }


@cache
def _package_digest() -> str:
    """Digest of the generator's own source files, tests left out."""
    found = importlib.util.find_spec(generator.PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise InputError(
            f"package {generator.PACKAGE} is not installed",
            kind="generator-missing",
            fix="make setup",
        )
    root = Path(found.submodule_search_locations[0])
    every = sorted(p.relative_to(root).as_posix() for p in root.rglob("*.py"))
    kept = [name for name in every if not name.endswith("_test.py")]
    return digest([[name, sha256_file(root / name)] for name in kept])


def tokenizer_identity() -> dict[str, Any]:
    """The vocabulary of every math dataset."""
    return {
        "name": "dm_math",
        "vocabulary": len(vocabulary.SYMBOLS),
        "symbols": list(vocabulary.SYMBOLS),
        "sha256": digest(list(vocabulary.SYMBOLS)),
    }


def config_of(context: int) -> dict[str, Any]:
    """What a reader must know of a config's rows."""
    return {
        "context": context,
        "vocabulary": len(vocabulary.SYMBOLS),
        "masked_target": None,
        "pad": vocabulary.PAD,
    }


def draw_units(
    seed: int,
    split: AnySplit,
    names: Sequence[str],
    costs: Sequence[float],
    units: Sequence[Sequence[Piece]],
) -> list[Unit]:
    """The units of the first stage."""
    identity = generator_identity()
    made = []
    for pieces in units:
        named = tuple((names[piece.combination], piece.start, piece.stop) for piece in pieces)
        first, last = named[0], named[-1]
        label = f"{split} {first[0]} {first[1]} – {last[0]} {last[2]}"
        args = DrawArgs(identity, seed, split, named)
        module = last[0].partition("/")[0]
        made.append(DRAW.unit(label, args, seconds(costs, pieces), module))
    return made


def _draw(spec: Spec, split: Split, units: list[list[Piece]], job: Job) -> list[Record]:
    return job.run(DRAW, draw_units(spec.seed, split, NAMES, costs_of(split), units))


def _audit(spec: Spec, placed: dict[Split, Placement], job: Job) -> dict[tuple[str, str], int]:
    """Distinct questions of each combination by split; refuses questions in both."""
    units = []
    for first in range(0, len(NAMES), _AUDITED):
        found = tuple(
            (NAMES[number], split, placed[split].find(number, 0, spec.per_combination(split)))
            for number in range(first, min(first + _AUDITED, len(NAMES)))
            for split in SPLITS
        )
        units.append(AUDIT.unit(NAMES[first], AuditArgs(found)))
    results = [AuditResult.of(record) for record in job.run(AUDIT, units)]
    for name, count in (entry for result in results for entry in result.shared):
        if count:
            raise CorruptionError(
                f"{name}: {count} questions are in train and in validation",
                kind="splits-overlap",
                fix="the unit store is damaged: remove it and build again",
            )
    return {(name, split): n for result in results for name, split, n in result.distinct}


def _assemble(spec: Spec, split: Split, placed: Placement, job: Job) -> list[ShardFile]:
    total = spec.per_combination(split)
    ranges = [
        (start, min(start + spec.shard_indices, total))
        for start in range(0, total, spec.shard_indices)
    ]
    paths = [shard_name(split, index, len(ranges)) for index in range(len(ranges))]
    units = []
    for path, (start, stop) in zip(paths, ranges, strict=True):
        found = tuple(placed.find(number, start, stop) for number in range(len(NAMES)))
        units.append(ASSEMBLE.unit(path, AssembleArgs(found, spec.batch_rows)))
    records = job.run(ASSEMBLE, units)
    return [
        ShardFile(path, "default", split, record)
        for path, record in zip(paths, records, strict=True)
    ]
