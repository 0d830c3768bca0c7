"""The DeepMind Mathematics datasets, `dm_math` and `dm_math_tests`: draw, audit and assemble.

- A group (a split, or a test part) has equally many examples of each of its n combinations; row r
  is example r // n of combination r % n.
- The question's hash decides its side, so no question of training can be in validation or in a
  test; the build reads all questions back all the same and refuses to publish a misplaced one.
- Repeats inside a group are kept (the paper samples with replacement) and counted.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any, Final

from tangobench.catalogue import ONE_DISTRIBUTION
from tangobench.errors import CorruptionError
from tangobench.pipeline.core.build import Job, Record, Result, ShardFile, Unit
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.shards import shard_name
from tangobench.pipeline.dm_math import files, generator, stages, vocabulary
from tangobench.pipeline.dm_math.plan import Piece, cut, seconds
from tangobench.pipeline.dm_math.spec import MODULES, TEST_NAMES, AnySplit, Group, Spec, TestsSpec
from tangobench.pipeline.dm_math.stages import REJECTIONS, DrawResult, Found

# A combination is named as small when at least this share of its rows repeats another.
SMALL_SPACE: Final = 0.01
_AUDITED: Final = 12  # combinations per unit: a second of work at the paper's size


class Drawn:
    """The examples of a group: where each is stored, and what drawing them counted."""

    def __init__(
        self, group: Group, cuts: Sequence[Sequence[Piece]], records: Sequence[Record[DrawResult]]
    ) -> None:
        self.group = group
        self.rejected = {name: [0] * len(REJECTIONS) for name in group.names}
        self.longest = max(record.result["longest"] for record in records)
        self.distinct: dict[str, int] = {}
        """Distinct questions by audited set: a combination, or a whole test part."""
        self._places: dict[str, list[tuple[Piece, str, int]]] = {name: [] for name in group.names}
        for pieces, record in zip(cuts, records, strict=True):
            row = 0
            for piece in pieces:
                self._places[piece.name].append((piece, record.address, row))
                row += piece.stop - piece.start
            for name, counts in record.result["rejected"].items():
                self.rejected[name] = [*map(operator.add, self.rejected[name], counts)]

    def find(self, name: str, start: int, stop: int) -> tuple[Found, ...]:
        """The stored rows of these examples, in order."""
        return tuple(
            Found(address, row + max(start - begin, 0), row + min(stop, end) - begin)
            for (_, begin, end), address, row in self._places[name]
            if max(start, begin) < min(stop, end)
        )

    def counts(self) -> dict[str, int]:
        rows = len(self.group.names) * self.group.each
        return {
            "rows": rows,
            "draws": rows + sum(map(sum, self.rejected.values())),
            "repeated_questions": rows - sum(self.distinct.values()),
        }


def build(spec: Spec | TestsSpec, source: str | None, job: Job) -> Result:
    """Draw (or read from the official files), audit and assemble."""
    groups = spec.groups()
    records: Sequence[Record[DrawResult]]  # of all groups in one stage, so that no worker waits
    if source is None:
        identity, origin = generator.identity(), {"generator": "installed package"}
        cuts = [cut(group) for group in groups]
        records = job.run(stages.DRAW, _draw_units(spec.seed, groups, cuts, identity))
    else:
        units = files.read_units(files.found_files(source, groups), groups)
        cuts = [[[Piece(name, 0, group.each)] for name in group.names] for group in groups]
        records = read = job.run(files.READ, units)
        identity, origin = files.identity(units, read), {"files": source}
    rest = iter(records)
    drawn = [Drawn(g, own, [*islice(rest, len(own))]) for g, own in zip(groups, cuts, strict=True)]
    _audit(drawn, job)
    counts = [row for each in drawn for row in each.rejected.values()]
    symbols = list(vocabulary.SYMBOLS)
    size = {"vocabulary": len(symbols)}
    config = {**size, "context": spec.context, "masked_target": None, "pad": vocabulary.PAD}
    return Result(
        source=identity,
        origin=origin,
        tokenizer={**size, "name": "dm_math", "symbols": symbols, "sha256": digest(symbols)},
        configs={group.config: config for group in groups},
        drops=dict(zip(REJECTIONS.values(), map(sum, zip(*counts, strict=True)), strict=True)),
        shards=_assemble(drawn, spec.batch_rows, job),
        card=(CARD if isinstance(spec, Spec) else TESTS_CARD)
        | {"sources": [_FROM_GENERATOR if source is None else _FROM_FILES]},
        **(_combinations if isinstance(spec, Spec) else _tests)(drawn),
    )


def _draw_units(
    seed: int, groups: list[Group], cuts: list[list[list[Piece]]], identity: dict[str, Any]
) -> list[Unit]:
    units = []
    owned = [(g, pieces) for g, own in zip(groups, cuts, strict=True) for pieces in own]
    for group, pieces in owned:
        first, last = pieces[0], pieces[-1]
        label = f"{group.split} {first.name} {first.start} – {last.name} {last.stop}"
        args = stages.DrawArgs(identity, seed, group.split, tuple(pieces))
        weight, module = seconds(group.split, pieces), last.name.partition("/")[0]
        units.append(stages.DRAW.unit(label, args, weight, module))
    return units


def _audit(drawn: list[Drawn], job: Job) -> None:
    """Count distinct questions of each combination (of each part, for tests)."""
    owners: list[Drawn] = []
    sets: list[tuple[str, AnySplit, tuple[Found, ...]]] = []
    for each in drawn:
        group = each.group
        found = {name: each.find(name, 0, group.each) for name in group.names}
        if group.config != "default":
            found = {group.config: tuple(chain.from_iterable(found.values()))}
        sets += [(name, group.split, places) for name, places in found.items()]
        owners += [each] * len(found)
    parts = [tuple(sets[first : first + _AUDITED]) for first in range(0, len(sets), _AUDITED)]
    units = [stages.AUDIT.unit(f"{p[0][1]} {p[0][0]}", stages.AuditArgs(p)) for p in parts]
    audited = (entry for r in job.run(stages.AUDIT, units) for entry in r.result["sets"])
    for owner, (name, split, distinct, misplaced) in zip(owners, audited, strict=True):
        owner.distinct[name] = distinct
        if misplaced:
            raise CorruptionError(
                f"{name}: {misplaced} questions of {split} belong to the other side",
                kind="splits-overlap",
                fix="the unit store is damaged: remove it and build again",
            )
    total = sum(sum(each.distinct.values()) for each in drawn)
    job.say(f"audited {total:,} distinct questions: 0 belong to the other side")


def _assemble(drawn: list[Drawn], batch_rows: int, job: Job) -> list[ShardFile]:
    named, units = [], []
    for each in drawn:
        group = each.group
        folder = "" if group.config == "default" else f"{group.config}/"
        starts = range(0, group.each, group.step)
        for index, start in enumerate(starts):
            path = folder + shard_name(group.split, index, len(starts))
            stop = min(start + group.step, group.each)
            found = tuple(each.find(name, start, stop) for name in group.names)
            args = stages.AssembleArgs(found, batch_rows, group.first)
            units.append(stages.ASSEMBLE.unit(path, args))
            named.append((path, group.config, group.split))
    records = job.run(stages.ASSEMBLE, units)
    return [ShardFile(*of, record) for of, record in zip(named, records, strict=True)]


def _combinations(drawn: Sequence[Drawn]) -> dict[str, Any]:
    """Counts and notes of `dm_math`."""
    table: dict[str, list[int]] = {name: [] for name in drawn[0].group.names}
    small: dict[str, dict[str, int]] = {}
    for name in table:
        for of in drawn:
            split, each, distinct = of.group.split, of.group.each, of.distinct[name]
            table[name] += [*of.rejected[name], each - distinct]
            if each - distinct >= SMALL_SPACE * each:
                found = small.setdefault(name, {})
                found |= {f"{split}_rows": each, f"{split}_distinct": distinct}
    columns = (*REJECTIONS, "repeated")
    return {
        "counts": {"combinations": len(table)} | {of.group.split: of.counts() for of in drawn},
        "notes": {
            "combinations": list(table),
            "row_order": "row r is example r // 168 of combination r % 168",
            "per_combination_columns": [f"{of.group.split}_{c}" for of in drawn for c in columns],
            "per_combination": table,
            "small_spaces": small,
            "longest_row": max(of.longest for of in drawn),
        },
    }


def _tests(drawn: Sequence[Drawn]) -> dict[str, Any]:
    """Counts and notes of `dm_math_tests`."""
    return {
        "counts": {
            of.group.config: {"modules": len(of.group.names), **of.counts()} for of in drawn
        },
        "notes": {
            "combinations": list(TEST_NAMES),
            "row_order": "row r is example r // n of module r % n, n modules in the config",
            "per_module_columns": list(REJECTIONS),
            "per_module": {name: row for of in drawn for name, row in of.rejected.items()},
            "questions_that_training_may_have": 0,  # else the audit has refused them
            "longest_row": max(of.longest for of in drawn),
        },
    }


_CITED: Final = (
    "(Saxton et al., Analysing Mathematical Reasoning Abilities of Neural Models, ICLR 2019), "
    "Apache-2.0."
)
_FROM_GENERATOR: Final = f"Generator: mathematics_dataset 1.0.1 {_CITED}"
_FROM_FILES: Final = f"The pre-generated files mathematics_dataset-v1.0 {_CITED}"
CARD: Final = {
    "title": "DeepMind Mathematics, 168 combinations",
    "licence": "Apache-2.0",
    "licence_id": "apache-2.0",
    "description": (
        "School-level mathematics questions and answers in characters, drawn in equal numbers "
        "from 56 modules at three difficulties of the official generator. A row is BOS, question, "
        "SEP, answer, EOS; `target_start` is the index of the answer's first token; `combination` "
        "is 3 × module + level (0 easy, 1 medium, 2 hard). The last hex digit of a question's "
        "sha256 decides its split (0: validation), so no question is in both. The three levels of "
        f"{', '.join(ONE_DISTRIBUTION)} are one distribution. Modules from 0: "
        f"{', '.join(MODULES)}."
    ),
    "language": ["en"],
    "bibtex": [
        "@inproceedings{mathematics_dataset,",
        "  author = {Saxton, David and Grefenstette, Edward and Hill, Felix and Kohli, Pushmeet},",
        "  title = {Analysing Mathematical Reasoning Abilities of Neural Models},",
        "  booktitle = {ICLR},",
        "  year = {2019}",
        "}",
    ],
}
TESTS_CARD: Final = {
    **CARD,
    "title": "DeepMind Mathematics, interpolation and extrapolation",
    "description": (
        "The two test parts of the official generator in characters. Config `interpolate`: the 56 "
        "training modules with entropy of their whole range; config `extrapolate`: 15 modules "
        "beyond it. One split, `test`. A row is BOS, question, SEP, answer, EOS; `target_start` is "
        "the index of the answer's first token; `combination` counts the modules of both parts. "
        "The last hex digit of every question's sha256 is 0, so none can be in a training set of "
        f"`dm_math`. Modules from 0: {', '.join(TEST_NAMES)}."
    ),
}
