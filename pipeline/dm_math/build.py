"""The DeepMind Mathematics datasets, `dm_math` and `dm_math_tests`: draw, count and assemble.

- A group (a split, or a test part) has equally many examples of each of its n combinations; row r
  is example r // n of combination r % n.
- The question's hash decides its side, so no question of training can be in validation or in a
  test; the build reads all questions back all the same and refuses to publish a misplaced one.
- Repeats inside a group are kept (the paper samples with replacement) and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np

from tangobench.catalogue import ONE_DISTRIBUTION
from tangobench.pipeline.core.arrays import unpack
from tangobench.pipeline.core.build import Job, Record, Result, ShardFile, Unit
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.shards import shard_name
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.dm_math import files, generator, stages, vocabulary
from tangobench.pipeline.dm_math.plan import cut, seconds
from tangobench.pipeline.dm_math.spec import MODULES, TEST_NAMES, Group, Spec, TestsSpec
from tangobench.pipeline.dm_math.stages import REJECTIONS, Blocks, DrawResult, Found

# A combination is named as small when at least this share of its rows repeats another.
SMALL_SPACE: Final = 0.01


class Drawn:
    """The examples of a group: where each is stored, and what drawing them counted."""

    def __init__(
        self,
        group: Group,
        cuts: Sequence[Sequence[tuple[int, int]]],
        records: Iterator[Record[DrawResult]],
    ) -> None:
        """`cuts` are the index ranges of each block: one of all combinations, or one for each."""
        self.group = group
        self._blocks = [[(*bounds, next(records)) for bounds in block] for block in cuts]
        results = [[record.result for _, _, record in block] for block in self._blocks]
        self.longest = max(result["longest"] for block in results for result in block)
        sums = (np.sum([r["rejected"] for r in block], axis=0).tolist() for block in results)
        rows = chain.from_iterable(sums)
        self.rejected: dict[str, list[int]] = dict(zip(group.names, rows, strict=True))
        self.repeated: list[int] = []

    def count_repeats(self, store: Store) -> None:
        """Repeated questions of each combination (of the whole part, for tests)."""
        digests = [
            np.concatenate([unpack(store.read(record.address))["digest"] for _, _, record in block])
            for block in self._blocks
        ]
        table = np.concatenate([block.reshape(self.group.each, -1) for block in digests], axis=1)
        columns = table.T if self.group.config == "default" else [table.reshape(-1)]
        self.repeated = [len(column) - len(np.unique(column)) for column in columns]

    def find(self, start: int, stop: int) -> Blocks:
        """The stored rows of an index range."""
        width = len(self.group.names) // len(self._blocks)

        def part(first: int, last: int, record: Record[DrawResult]) -> Found:
            low, high = max(start, first) - first, min(stop, last) - first
            return Found(record.address, width * low, width * high)

        return tuple(
            tuple(part(*unit) for unit in block if max(start, unit[0]) < min(stop, unit[1]))
            for block in self._blocks
        )

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
        cuts = [[cut(group)] for group in groups]
        records = job.run(stages.DRAW, _draw_units(spec.seed, groups, identity))
    else:
        units = files.read_units(source, groups)
        cuts = [[[(0, group.each)]] * len(group.names) for group in groups]
        records = read = job.run(files.READ, units)
        identity, origin = files.identity(units, read), {"files": source}
    rest = iter(records)
    drawn = [Drawn(group, own, rest) for group, own in zip(groups, cuts, strict=True)]
    for each in drawn:
        each.count_repeats(job.store)
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
            (stop - start) * seconds(group),
        )
        for group in groups
        for start, stop in cut(group)
    ]


def _assemble(drawn: list[Drawn], batch_rows: int, job: Job) -> list[ShardFile]:
    named, units = [], []
    for each in drawn:
        group = each.group
        folder = "" if group.config == "default" else f"{group.config}/"
        numbers = (group.first, group.first + len(group.names))
        starts = range(0, group.each, group.step)
        for index, start in enumerate(starts):
            path = folder + shard_name(group.split, index, len(starts))
            blocks = each.find(start, min(start + group.step, group.each))
            args = stages.AssembleArgs(group.split, blocks, batch_rows, *numbers)
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
