"""One example of the math datasets by its address, and the stages: draw, audit, assemble.

- `draw` depends on (seed, split, combination, index) alone: each attempt seeds all generators from
  a hash of (seed, split, combination name, index, attempt).
- An attempt is rejected when the question has more than 160 characters, the answer more than 30
  (upstream's limits), or the question belongs to the other split; then the next attempt follows.
- Order of rows: index-major. Row r of a group is example r // n of combination r % n, so every
  prefix and every shard holds all n combinations equally.
- The audit reads every question back from its tokens: its hash must allow it in its split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tangobench.errors import InputError
from tangobench.pipeline.core import build, shards
from tangobench.pipeline.core.arrays import offsets_of, pack, unpack
from tangobench.pipeline.core.build import Arguments, Output, Stage
from tangobench.pipeline.core.hashing import canonical_json
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.dm_math import fast, spec, vocabulary
from tangobench.pipeline.dm_math.generator import Generator
from tangobench.pipeline.dm_math.spec import AnySplit, side_of, split_of

# The rarest accepted example is 1 draw in 3,200 (`comparison__sort_more`: nearly all its answers
# are too long), so this many misses in a row mean an empty space.
MAX_ATTEMPTS: Final = 200_000
REJECTIONS: Final = {
    "long_question": f"draws with a question over {spec.MAX_QUESTION} characters",
    "long_answer": f"draws with an answer over {spec.MAX_ANSWER} characters",
    "other_split": "draws whose question belongs to the other split",
    "unfinished": "draws that the generator could not finish",
}


@dataclass(frozen=True, slots=True)
class Draw:
    """An accepted example, and how many draws before it were rejected, by REJECTIONS."""

    question: str
    answer: str
    rejected: dict[str, int]

    @property
    def attempts(self) -> int:
        return 1 + sum(self.rejected.values())


def draw(
    seed: int,
    split: AnySplit,
    combination: int | str,
    index: int,
    generator: Generator | None = None,
) -> Draw:
    """The example of a combination (`MODULE/DIFFICULTY` or its number) by the fast generator."""
    generator = generator or _generator()
    name = spec.NAMES[combination] if isinstance(combination, int) else combination
    module, _, difficulty = name.partition("/")
    rejected = dict.fromkeys(REJECTIONS, 0)
    for attempt in range(MAX_ATTEMPTS):
        bits = hashlib.sha256(f"{seed}/{split}/{name}/{index}/{attempt}".encode()).digest()
        generator.seed(*(int.from_bytes(part) for part in (bits[:8], bits[8:12], bits[12:20])))
        try:
            problem = generator.problem(module, spec.DIFFICULTIES.index(difficulty))
        except AssertionError:
            # Upstream's own checks fail once in some million draws: the Dirichlet weight of a
            # coefficient that may have none (alpha 1e-9) is not exactly 0.
            rejected["unfinished"] += 1
            continue
        question = str(problem.question)
        if len(question) > spec.MAX_QUESTION:
            rejected["long_question"] += 1
        elif len(answer := str(problem.answer)) > spec.MAX_ANSWER:
            rejected["long_answer"] += 1
        elif split_of(question) != side_of(split):
            rejected["other_split"] += 1
        else:
            return Draw(question, answer, rejected)
    raise InputError(
        f"{name} gave no {split} question in {MAX_ATTEMPTS} attempts (index {index}, seed {seed})",
        kind="space-empty",
        fix="ask for another seed: this combination has too few distinct questions",
    )


_generator = cache(fast.load)


class Found(NamedTuple):
    """Rows `first` to `last` of a stored unit."""

    address: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class DrawArgs(Arguments):
    """Pieces (name, first index, index after the last) of a split, and what draws them."""

    generator: dict[str, Any]
    seed: int
    split: AnySplit
    pieces: tuple[tuple[str, int, int], ...]

    def key(self) -> Any:
        return self.plain()


class DrawResult(TypedDict):
    """Rejected draws by combination, in the order of REJECTIONS, and the longest row."""

    rejected: dict[str, list[int]]
    longest: int


def draw_unit(args: DrawArgs, _store: Store) -> Output[DrawResult]:
    return rows_unit(
        (name, draw(args.seed, args.split, name, index))
        for name, first, last in args.pieces
        for index in range(first, last)
    )


def rows_unit(examples: Iterable[tuple[str, Draw]]) -> Output[DrawResult]:
    """Encoded examples (of combinations by name), and what was rejected."""
    encoded = []
    rejected: dict[str, list[int]] = {}
    for name, example in examples:
        encoded.append(vocabulary.encode(example.question, example.answer))
        before = rejected.get(name, [0] * len(REJECTIONS))
        rejected[name] = [a + b for a, b in zip(before, example.rejected.values(), strict=True)]
    rows, starts = zip(*encoded, strict=True)
    lengths = [*map(len, rows)]
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
        return self.plain()


def assemble_shard(args: AssembleArgs, store: Store) -> build.Streamed[build.ShardResult]:
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
    return build.shard_unit(columns, batch_rows=args.batch_rows)


def _read(store: Store, found: Iterable[Found]) -> tuple[pa.ListArray, npt.NDArray[np.uint16]]:
    """Tokens and target starts of some rows of stored units."""
    opened = cache(lambda address: unpack(store.read(address)))
    tokens, lengths, starts = [], [], []
    for address, first, last in found:
        unit = opened(address)
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
