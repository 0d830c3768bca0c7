"""The DeepMind Mathematics dataset: spec, build, plan, and what became of a question.

- 168 combinations (56 modules × easy, medium, hard) in equal numbers, drawn from the official
  generator; row r of a split is example r // 168 of combination r % 168.
- The question's hash decides its split, so train and validation cannot share one; the build
  counts shared questions all the same and refuses to publish any.
- Repeats inside training are kept (the paper samples with replacement) and counted.

Usage: `tangobench build dm_math --profile mini`
"""

import importlib.metadata
import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from tangobench.errors import CorruptionError, InputError, UsageError
from tangobench.pipeline import dm_compat, dm_summary, dm_vocab
from tangobench.pipeline.build import Job, Record, Result, ShardFile, Unit
from tangobench.pipeline.dm_draw import (
    MAX_ANSWER,
    MAX_QUESTION,
    MODULES,
    NAMES,
    SPLITS,
    Split,
    draw,
    split_of,
)
from tangobench.pipeline.dm_stages import ASSEMBLE, AUDIT, DRAW
from tangobench.pipeline.dm_units import Piece, Placement, cut, seconds
from tangobench.pipeline.hashing import digest, sha256_file
from tangobench.pipeline.manifest import Lock
from tangobench.pipeline.reading import Rows, open_dataset
from tangobench.pipeline.shards import shard_name
from tangobench.pipeline.spec import bad_value

LONGEST: Final = MAX_QUESTION + MAX_ANSWER + 3
_AUDITED: Final = 12  # combinations per unit: a second of work at the paper's size
_BYTES_PER_ROW: Final = 85  # measured: 76 tokens, 4 offset, 2 target_start, 1 combination


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """What to draw."""

    seed: int
    context: int
    train_per_combination: int
    validation_per_combination: int
    shard_indices: int
    batch_rows: int

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise bad_value("seed", self.seed, "an integer of at least 0")
        if self.context < LONGEST:
            raise bad_value("context", self.context, f"at least {LONGEST}, the longest row")
        for key in (
            "train_per_combination",
            "validation_per_combination",
            "shard_indices",
            "batch_rows",
        ):
            if getattr(self, key) < 1:
                raise bad_value(key, getattr(self, key), "a count of at least 1")

    def per_combination(self, split: Split) -> int:
        """Examples of each combination in a split."""
        return self.train_per_combination if split == "train" else self.validation_per_combination


def plan(spec: Spec, source: str | None, workers: int) -> dict[str, Any]:
    """What a build takes; the time is that of the machine the costs were measured on."""
    _refuse_source(source)
    rows = sum(len(NAMES) * spec.per_combination(split) for split in SPLITS)
    units = {split: cut(split, spec.per_combination(split)) for split in SPLITS}
    times = {split: sum(seconds(split, unit) for unit in units[split]) for split in SPLITS}
    core_seconds = sum(times.values())
    shard_bytes = len(NAMES) * min(spec.shard_indices, spec.train_per_combination) * _BYTES_PER_ROW
    return {
        "rows": rows,
        "read_bytes": 0,
        "disk_bytes": 2 * rows * _BYTES_PER_ROW,  # units and shards
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


def build(spec: Spec, source: str | None, job: Job) -> Result:
    """Draw, audit and assemble."""
    _refuse_source(source)
    units = {split: cut(split, spec.per_combination(split)) for split in SPLITS}
    drawn = {split: _draw(spec, split, units[split], job) for split in SPLITS}
    placed = {
        split: Placement(units[split], [record.address for record in drawn[split]])
        for split in SPLITS
    }
    distinct = _audit(spec, placed, job)
    rows = {split: spec.per_combination(split) for split in SPLITS}
    table = dm_summary.combination_table(rows, drawn, distinct)
    return Result(
        source=generator_identity(),
        origin={"generator": "installed package"},
        tokenizer={
            "name": "dm_math",
            "vocabulary": len(dm_vocab.SYMBOLS),
            "symbols": list(dm_vocab.SYMBOLS),
            "sha256": digest(list(dm_vocab.SYMBOLS)),
        },
        configs={
            "default": {
                "context": spec.context,
                "vocabulary": len(dm_vocab.SYMBOLS),
                "masked_target": None,
                "pad": dm_vocab.PAD,
            }
        },
        counts=dm_summary.counts(rows, table),
        drops=dm_summary.drops(table),
        notes={
            "combinations": list(NAMES),
            "row_order": "row r is example r // 168 of combination r % 168",
            "per_combination_columns": list(dm_summary.COLUMNS),
            "per_combination": {name: list(row.values()) for name, row in table.items()},
            "small_spaces": dm_summary.small_spaces(rows, table),
            "longest_row": max(r.result["longest"] for records in drawn.values() for r in records),
        },
        shards=[shard for split in SPLITS for shard in _assemble(spec, split, placed[split], job)],
        card=dm_summary.CARD,
    )


def _refuse_source(source: str | None) -> None:
    if source is not None:
        raise UsageError(
            f"dm_math is generated and reads no source, but --source is {source!r}",
            kind="source-unused",
            fix="leave --source out",
        )


def generator_identity() -> dict[str, Any]:
    """What decides the rows besides the spec."""
    return {
        "generator": dm_compat.PACKAGE,
        "version": importlib.metadata.version(dm_compat.PACKAGE),
        "files_sha256": _package_digest(),
        "sympy": importlib.metadata.version("sympy"),
        "patch": dm_compat.PATCH_VERSION,
    }


@cache
def _package_digest() -> str:
    """Digest of the generator's own source files, tests left out."""
    found = importlib.util.find_spec(dm_compat.PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise InputError(
            f"package {dm_compat.PACKAGE} is not installed",
            kind="generator-missing",
            fix="make setup",
        )
    root = Path(found.submodule_search_locations[0])
    files = sorted(p.relative_to(root).as_posix() for p in root.rglob("*.py"))
    kept = [name for name in files if not name.endswith("_test.py")]
    return digest([[name, sha256_file(root / name)] for name in kept])


def _draw(spec: Spec, split: Split, units: list[list[Piece]], job: Job) -> list[Record]:
    identity = generator_identity()
    made = []
    for pieces in units:
        named = [[NAMES[piece.combination], piece.start, piece.stop] for piece in pieces]
        inputs = {"generator": identity, "seed": spec.seed, "split": split, "pieces": named}
        first, last = named[0], named[-1]
        label = f"{split} {first[0]} {first[1]} – {last[0]} {last[2]}"
        module = MODULES[pieces[-1].combination // 3]
        made.append(Unit(label, inputs, weight=seconds(split, pieces), part=module))
    return job.run(DRAW, made)


def _audit(spec: Spec, placed: dict[Split, Placement], job: Job) -> dict[str, dict[str, int]]:
    """Distinct questions of each combination by split; refuses questions in both."""
    found = {
        name: {
            split: _found(placed[split], combination, 0, spec.per_combination(split))
            for split in SPLITS
        }
        for combination, name in enumerate(NAMES)
    }
    groups = [NAMES[first : first + _AUDITED] for first in range(0, len(NAMES), _AUDITED)]
    units = [Unit(group[0], {name: found[name] for name in group}) for group in groups]
    distinct: dict[str, dict[str, int]] = {}
    for record in job.run(AUDIT, units):
        distinct.update(record.result)
    for name, counts in distinct.items():
        if counts["shared"]:
            raise CorruptionError(
                f"{name}: {counts['shared']} questions are in train and in validation",
                kind="splits-overlap",
                fix="the unit store is damaged: remove it and build again",
            )
    return distinct


def _found(placed: Placement, combination: int, start: int, stop: int) -> list[list[Any]]:
    return [[f.address, f.first, f.last] for f in placed.find(combination, start, stop)]


def _assemble(spec: Spec, split: Split, placed: Placement, job: Job) -> list[ShardFile]:
    total = spec.per_combination(split)
    ranges = [
        (start, min(start + spec.shard_indices, total))
        for start in range(0, total, spec.shard_indices)
    ]
    paths = [shard_name(split, index, len(ranges)) for index in range(len(ranges))]
    units = []
    for path, (start, stop) in zip(paths, ranges, strict=True):
        found = [_found(placed, combination, start, stop) for combination in range(len(NAMES))]
        units.append(Unit(path, {"found": found, "batch_rows": spec.batch_rows}))
    records = job.run(ASSEMBLE, units)
    return [
        ShardFile(path, "default", split, record)
        for path, record in zip(paths, records, strict=True)
    ]


def record(row: dict[str, Any], config: str, lock: Lock) -> dict[str, Any]:
    """A row as question, answer and combination."""
    question, answer = dm_vocab.decode(row["tokens"])
    module, level = lock.notes["combinations"][row["combination"]].split("/")
    return {"question": question, "answer": answer, "module": module, "difficulty": level}


def why(folder: Path, lock: Lock, ident: str) -> list[str]:
    """Where a question is, or why it cannot be there."""
    prefix = dm_vocab.question_prefix(ident)
    split = split_of(ident)
    rows = open_dataset(folder).rows("default", split)
    places = rows_with_prefix(rows, lock.shards_of("default", split), prefix)
    if not places:
        reason = (
            f"it has {len(ident)} characters, more than {MAX_QUESTION}"
            if len(ident) > MAX_QUESTION
            else f"its hash allows it in {split} only, and it was not drawn there"
        )
        raise InputError(
            f"question {ident!r} is not in {folder}: {reason}",
            kind="not-found",
            fix="give a whole question, as `inspect --jsonl -` prints it",
        )
    lines = [f"its hash puts it in {split}; it occurs in {len(places)} row(s) there"]
    for row in places[:20]:
        index, combination = divmod(row, len(NAMES))
        example = draw(lock.spec["seed"], split, combination, index)
        lines.append(
            f"row {row}: example {index} of {NAMES[combination]}, answer {example.answer!r}, "
            f"attempt {example.attempts} (before it: {example.long_question} long questions, "
            f"{example.long_answer} long answers, {example.other_split} of the other split, "
            f"{example.unfinished} unfinished)"
        )
    return lines


def rows_with_prefix(rows: Rows, shards: list[dict[str, Any]], prefix: bytes) -> list[int]:
    """Rows whose tokens start so; a prefix starts with BOS, which starts rows and nothing else."""
    places: list[int] = []
    base = 0
    for number, entry in enumerate(shards):
        for batch, (values, bounds) in enumerate(rows.shard(number).token_views):
            data = values.tobytes()
            at = data.find(prefix)
            while at >= 0:
                place = int(np.searchsorted(bounds, at))
                places.append(base + batch * entry["batch_rows"] + place)
                at = data.find(prefix, at + 1)
        base += entry["rows"]
    return places
