"""The three stages of the math datasets: draw examples, audit combinations, assemble shards.

- `draw_unit` stores the rows of a few pieces; `audit_combinations` counts distinct questions and
  proves that each is on its own side of the hash; `assemble_shard` interleaves the combinations.
- Order of rows: index-major. Row r of a split is example r // n of combination r % n, so every
  prefix and every shard holds all n combinations equally.

Usage: `job.run(DRAW, [DRAW.unit(label, DrawArgs(...))])`
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tangobench.pipeline.core import shards
from tangobench.pipeline.core.arrays import offsets_of, pack, unpack
from tangobench.pipeline.core.build import (
    Arguments,
    Output,
    Stage,
    Streamed,
    UnitResult,
    shard_unit,
)
from tangobench.pipeline.core.hashing import canonical_json
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.dm_math import vocabulary
from tangobench.pipeline.dm_math.combinations import AnySplit, split_of
from tangobench.pipeline.dm_math.draw import Draw, draw_named
from tangobench.pipeline.dm_math.summary import REJECTIONS
from tangobench.pipeline.dm_math.units import Found


@dataclass(frozen=True, slots=True)
class DrawArgs(Arguments):
    """Pieces (name, first index, index after the last) of a split, and what draws them."""

    generator: dict[str, Any]
    seed: int
    split: AnySplit
    pieces: tuple[tuple[str, int, int], ...]

    def key(self) -> Any:
        """By name."""
        return self.plain()


@dataclass(frozen=True, slots=True)
class DrawResult(UnitResult):
    """Rejected draws by combination, in the order of REJECTIONS, and the longest row."""

    rejected: dict[str, list[int]]
    longest: int


def draw_unit(args: DrawArgs, _store: Store) -> Output:
    """Rows of the pieces in order, and what was rejected, by combination."""
    rows = Rows()
    for name, first, last in args.pieces:
        for index in range(first, last):
            rows.add(name, draw_named(args.seed, args.split, name, index))
    return rows.output()


class Rows:
    """Encoded examples of one unit."""

    def __init__(self) -> None:
        self._tokens: list[npt.NDArray[np.uint8]] = []
        self._starts: list[int] = []
        self._rejected: dict[str, list[int]] = {}

    def add(self, name: str, example: Draw) -> None:
        """The next row."""
        tokens, start = vocabulary.encode(example.question, example.answer)
        self._tokens.append(tokens)
        self._starts.append(start)
        counts = self._rejected.setdefault(name, [0] * len(REJECTIONS))
        for place, field in enumerate(REJECTIONS):
            counts[place] += getattr(example, field)

    def output(self) -> Output:
        """The unit's object and record."""
        lengths = [len(row) for row in self._tokens]
        arrays = {
            "tokens": np.concatenate(self._tokens),
            "offsets": offsets_of(lengths),
            "target_start": np.array(self._starts, np.uint16),
        }
        return Output(pack(arrays), DrawResult(self._rejected, max(lengths)).plain())


@dataclass(frozen=True, slots=True)
class AuditArgs(Arguments):
    """Where the examples of some combinations are: (name, split, places)."""

    found: tuple[tuple[str, AnySplit, tuple[Found, ...]], ...]


@dataclass(frozen=True, slots=True)
class AuditResult(UnitResult):
    """[name, split, distinct questions] and [name, questions that two splits share]."""

    distinct: list[tuple[str, AnySplit, int]]
    shared: list[tuple[str, int]]


def audit_combinations(args: AuditArgs, store: Store) -> Output:
    """How many questions of each combination are distinct, and how many its splits share."""
    questions: dict[str, list[set[bytes]]] = {}
    distinct: list[tuple[str, AnySplit, int]] = []
    for name, split, found in args.found:
        own = set(_questions(_read(store, found)))
        questions.setdefault(name, []).append(own)
        distinct.append((name, split, len(own)))
    shared = [
        (name, sum(map(len, sets)) - len(set().union(*sets))) for name, sets in questions.items()
    ]
    result = AuditResult(distinct, shared).plain()
    return Output(canonical_json(result), result)


@dataclass(frozen=True, slots=True)
class SidesArgs(Arguments):
    """Where test examples are."""

    found: tuple[Found, ...]


@dataclass(frozen=True, slots=True)
class SidesResult(UnitResult):
    """Distinct questions, and how many of them training may have."""

    distinct: int
    misplaced: int


def audit_sides(args: SidesArgs, store: Store) -> Output:
    """Read every question back from its tokens and ask its hash for its side."""
    questions = {vocabulary.text(data) for data in _questions(_read(store, args.found))}
    misplaced = sum(split_of(question) == "train" for question in questions)
    result = SidesResult(len(questions), misplaced).plain()
    return Output(canonical_json(result), result)


@dataclass(frozen=True, slots=True)
class AssembleArgs(Arguments):
    """Places of an index range of each combination; `first` is the number of the first one."""

    found: tuple[tuple[Found, ...], ...]
    batch_rows: int
    first: int = 0

    def key(self) -> Any:
        """By name."""
        return self.plain()


def assemble_shard(args: AssembleArgs, store: Store) -> Streamed:
    """One shard: the examples of an index range of all combinations, index after index."""
    rows, starts = _read(store, (found for combination in args.found for found in combination))
    combinations = len(args.found)
    each = len(starts) // combinations
    order = np.arange(len(starts)).reshape(combinations, each).T.reshape(-1)
    tokens = rows.take(pa.array(order))
    numbers = np.arange(args.first, args.first + combinations, dtype=np.uint8)
    columns = {
        "tokens": shards.lists(tokens.values.to_numpy(), tokens.offsets.to_numpy()),
        "target_start": shards.scalars(starts[order]),
        "combination": shards.scalars(np.tile(numbers, each)),
    }
    return shard_unit(columns, batch_rows=args.batch_rows)


def _read(store: Store, found: Iterable[Found]) -> tuple[pa.ListArray, npt.NDArray[np.uint16]]:
    """Tokens and target starts of some rows of stored units."""
    opened: dict[str, dict[str, npt.NDArray[Any]]] = {}
    tokens, lengths, starts = [], [], []
    for address, first, last in found:
        if address not in opened:
            opened[address] = unpack(store.read(address))
        unit = opened[address]
        bounds = unit["offsets"][first : last + 1]
        tokens.append(unit["tokens"][bounds[0] : bounds[-1]])
        lengths.append(np.diff(bounds))
        starts.append(unit["target_start"][first:last])
    offsets = offsets_of(np.concatenate(lengths)).astype(np.int32)
    rows = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(tokens)))
    return rows, np.concatenate(starts)


def _questions(read: tuple[pa.ListArray, npt.NDArray[np.uint16]]) -> list[bytes]:
    """The tokens of each row before its answer."""
    rows, starts = read
    data = rows.values.to_numpy().tobytes()
    bounds = zip(rows.offsets.to_pylist(), starts.tolist(), strict=False)
    return [data[offset : offset + start] for offset, start in bounds]


DRAW: Final = Stage("dm-draw", 2, draw_unit)
AUDIT: Final = Stage("dm-audit", 2, audit_combinations)
SIDES: Final = Stage("dm-sides", 1, audit_sides)
ASSEMBLE: Final = Stage("dm-assemble", 2, assemble_shard)
