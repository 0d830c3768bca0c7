"""The DeepMind Mathematics datasets, `dm_math` and `dm_math_tests`: draw, count and assemble.

- A group (a split, or a test part) has equally many examples of each of its n combinations; row r
  is example r // n of combination r % n.
- The question's hash decides its side, so no question of training can be in validation or in a
  test; the build reads all questions back all the same and refuses to publish a misplaced one.
- Repeats inside a group are kept (the paper samples with replacement) and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from typing import Any, Final

import numpy as np

from tangobench.catalogue import ONE_DISTRIBUTION
from tangobench.pipeline.core.build import Job, Record, Result, ShardFile, Unit
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.shards import shard_name, unpack
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.dm_math import files, generator, stages, vocabulary
from tangobench.pipeline.dm_math.plan import cut, seconds
from tangobench.pipeline.dm_math.spec import MODULES, TEST_NAMES, Group, Spec, TestsSpec
from tangobench.pipeline.dm_math.stages import REJECTIONS, DrawResult

# A combination is named as small when at least this share of its rows repeats another.
SMALL_SPACE: Final = 0.01


class Drawn:
    """The examples of a group: where they are stored, and what drawing them counted."""

    def __init__(
        self, group: Group, records: Sequence[Record[DrawResult]], store: Store, *, apart: bool
    ) -> None:
        """The units are index ranges, or (`apart`) one for each combination."""
        self.group, self.records, self.apart = group, records, apart
        results = [record.result for record in records]
        self.longest = max(result["longest"] for result in results)
        counts = [result["rejected"] for result in results]
        rows = np.concatenate(counts) if apart else np.sum(counts, axis=0)
        self.rejected: dict[str, list[int]] = dict(zip(group.names, rows.tolist(), strict=True))
        digests = np.concatenate([unpack(store.read(r.address))["digest"] for r in records])
        count = len(group.names)
        table = digests.reshape(count, -1) if apart else digests.reshape(-1, count).T
        sets = table if group.config == "default" else [digests]
        # Of each combination; of the whole part, for tests.
        self.repeated = [len(questions) - len(np.unique(questions)) for questions in sets]

    def shards(self) -> list[tuple[tuple[str, ...], tuple[int, int] | None]]:
        """Units, and the rows to take of each if not all."""
        every = [record.address for record in self.records]
        if self.apart:
            return [(tuple(every), rows) for rows in self.group.shards()]
        rest = iter(every)
        return [(tuple(islice(rest, len(ranges))), None) for ranges in cut(self.group)]

    def counts(self) -> dict[str, int]:
        rows = len(self.group.names) * self.group.each
        draws = rows + sum(map(sum, self.rejected.values()))
        return {"rows": rows, "draws": draws, "repeated_questions": sum(self.repeated)}


def build(spec: Spec | TestsSpec, source: str | None, job: Job) -> Result:
    """Draw (or read from the official files), audit and assemble."""
    groups = spec.groups()
    records: Sequence[Record[DrawResult]]  # of all groups in one stage, so that no worker waits
    if source is None:
        identity, origin = generator.identity(), {"generator": "installed package"}
        sizes = [sum(map(len, cut(group))) for group in groups]
        records = job.run(stages.DRAW, _draw_units(spec.seed, groups, identity))
    else:
        units = files.read_units(source, groups)
        sizes = [len(group.names) for group in groups]
        records = read = job.run(files.READ, units)
        identity, origin = files.identity(units, read), {"files": source}
    rest = iter(records)
    drawn = [
        Drawn(group, [*islice(rest, size)], job.store, apart=source is not None)
        for group, size in zip(groups, sizes, strict=True)
    ]
    shards = _assemble(drawn, spec.batch_rows, job)
    distinct = sum(each.counts()["rows"] - sum(each.repeated) for each in drawn)
    job.say(f"audited {distinct:,} distinct questions: 0 belong to the other side")
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
        shards=shards,
        card=(CARD if isinstance(spec, Spec) else TESTS_CARD)
        | {"sources": [_FROM_GENERATOR if source is None else _FROM_FILES]},
        **(_combinations if isinstance(spec, Spec) else _tests)(drawn),
    )


def _draw_units(seed: int, groups: list[Group], identity: dict[str, Any]) -> list[Unit]:
    return [
        stages.DRAW.unit(
            f"{group.config} {group.split} {start} – {stop}",
            stages.DrawArgs(identity, seed, group.config, group.split, start, stop),
            weight=(stop - start) * seconds(group),
        )
        for group in groups
        for start, stop in chain.from_iterable(cut(group))
    ]


def _assemble(drawn: list[Drawn], batch_rows: int, job: Job) -> list[ShardFile]:
    named, units = [], []
    for each in drawn:
        group = each.group
        folder = "" if group.config == "default" else f"{group.config}/"
        numbers = (group.first, group.first + len(group.names))
        found = each.shards()
        for index, of in enumerate(found):
            path = folder + shard_name(group.split, index, len(found))
            args = stages.AssembleArgs(group.split, *of, batch_rows, *numbers)
            units.append(stages.ASSEMBLE.unit(path, args))
            named.append((path, group.config, group.split))
    records = job.run(stages.ASSEMBLE, units)
    return [ShardFile(*of, record) for of, record in zip(named, records, strict=True)]


def _combinations(drawn: Sequence[Drawn]) -> dict[str, Any]:
    """Counts and notes of `dm_math`."""
    table: dict[str, list[int]] = {name: [] for name in drawn[0].group.names}
    small: dict[str, dict[str, int]] = {}
    for of in drawn:
        split, each = of.group.split, of.group.each
        for (name, row), repeated in zip(table.items(), of.repeated, strict=True):
            row += [*of.rejected[name], repeated]
            if repeated >= SMALL_SPACE * each:
                found = {f"{split}_rows": each, f"{split}_distinct": each - repeated}
                small[name] = small.get(name, {}) | found
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
_ROW: Final = (
    "A row is BOS, question, SEP, answer, EOS; `target_start` is the index of the answer's first "
    "token; `combination`"
)
CARD: Final = {
    "title": "DeepMind Mathematics, 168 combinations",
    "licence": "Apache-2.0",
    "licence_id": "apache-2.0",
    "description": (
        "School-level mathematics questions and answers in characters, drawn in equal numbers "
        f"from 56 modules at three difficulties of the official generator. {_ROW} "
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
        f"beyond it. One split, `test`. {_ROW} counts the modules of both parts. "
        "The last hex digit of every question's sha256 is 0, so none can be in a training set of "
        f"`dm_math`. Modules from 0: {', '.join(TEST_NAMES)}."
    ),
}
