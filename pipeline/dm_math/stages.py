"""The three stages of the math datasets: draw examples, audit questions, assemble shards.

- Order of rows: index-major. Row r of a group is example r // n of combination r % n, so every
  prefix and every shard holds all n combinations equally.
- The audit reads every question back from its tokens: its hash must allow it in its split.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tangobench.pipeline.core import shards
from tangobench.pipeline.core.arrays import offsets_of, pack, unpack
from tangobench.pipeline.core.build import (
    Arguments,
    Output,
    ShardResult,
    Stage,
    Streamed,
    shard_unit,
)
from tangobench.pipeline.core.hashing import canonical_json
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.dm_math import vocabulary
from tangobench.pipeline.dm_math.combinations import AnySplit, side_of, split_of
from tangobench.pipeline.dm_math.draw import REJECTIONS, Draw, draw
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


class DrawResult(TypedDict):
    """Rejected draws by combination, in the order of REJECTIONS, and the longest row."""

    rejected: dict[str, list[int]]
    longest: int


def draw_unit(args: DrawArgs, _store: Store) -> Output[DrawResult]:
    """Rows of the pieces in order."""
    return rows_unit(
        (name, draw(args.seed, args.split, name, index))
        for name, first, last in args.pieces
        for index in range(first, last)
    )


def rows_unit(examples: Iterable[tuple[str, Draw]]) -> Output[DrawResult]:
    """Encoded examples (of combinations by name), and what was rejected."""
    rows, starts = [], []
    rejected: dict[str, list[int]] = {}
    for name, example in examples:
        tokens, start = vocabulary.encode(example.question, example.answer)
        rows.append(tokens)
        starts.append(start)
        before = rejected.get(name, [0] * len(REJECTIONS))
        rejected[name] = [a + b for a, b in zip(before, example.rejected.values(), strict=True)]
    lengths = [len(row) for row in rows]
    arrays = {
        "tokens": np.concatenate(rows),
        "offsets": offsets_of(lengths),
        "target_start": np.array(starts, np.uint16),
    }
    return Output(pack(arrays), {"rejected": rejected, "longest": max(lengths)})


@dataclass(frozen=True, slots=True)
class AuditArgs(Arguments):
    """Where the examples of some sets (name, split, places) are."""

    sets: tuple[tuple[str, AnySplit, tuple[Found, ...]], ...]


class AuditResult(TypedDict):
    """[name, split, distinct questions, those whose hash belongs to the other side] of each set."""

    sets: list[tuple[str, AnySplit, int, int]]


def audit_questions(args: AuditArgs, store: Store) -> Output[AuditResult]:
    """How many questions of each set are distinct, and how many of them its split may not have."""
    sets = []
    for name, split, found in args.sets:
        rows, starts = _read(store, found)
        data = rows.values.to_numpy().tobytes()
        bounds = zip(rows.offsets.to_pylist(), starts.tolist(), strict=False)
        questions = {data[offset : offset + start] for offset, start in bounds}
        misplaced = sum(split_of(vocabulary.text(q)) != side_of(split) for q in questions)
        sets.append((name, split, len(questions), misplaced))
    result: AuditResult = {"sets": sets}
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


def assemble_shard(args: AssembleArgs, store: Store) -> Streamed[ShardResult]:
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


DRAW: Final = Stage("dm-draw", 2, draw_unit)
AUDIT: Final = Stage("dm-audit", 3, audit_questions)
ASSEMBLE: Final = Stage("dm-assemble", 2, assemble_shard)
