"""One example of the math datasets by its address, and the stages: draw, assemble.

- `draw` depends on (seed, split, combination, index) alone: each attempt seeds all generators from
  a hash of (seed, split, combination name, index, attempt).
- An attempt is rejected when the question has more than 160 characters, the answer more than 30
  (upstream's limits), or the question belongs to the other split; then the next attempt follows.
- Order of rows: index-major. Row r of a group is example r // n of combination r % n, so every
  prefix and every shard holds all n combinations equally.
- A shard is assembled after every question was read back: its hash must allow it in its split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from tangobench.errors import CorruptionError, InputError
from tangobench.pipeline.core import build, shards
from tangobench.pipeline.core.build import Arguments, Output, Stage
from tangobench.pipeline.core.shards import offsets_of, pack, unpack
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
        except fast.LongAnswer:
            rejected["long_answer"] += 1
            continue
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
    why = f"{name} gave no {split} question in {MAX_ATTEMPTS} attempts (index {index}, seed {seed})"
    fix = "ask for another seed: this combination has too few distinct questions"
    raise InputError(why, kind="space-empty", fix=fix)


_generator = cache(fast.load)


@dataclass(frozen=True, slots=True)
class DrawArgs(Arguments):
    """Examples `start` to `stop` of every combination of a config, and what draws them."""

    generator: dict[str, Any]
    seed: int
    config: str
    split: AnySplit
    start: int
    stop: int


class DrawResult(TypedDict):
    """Rejected draws of each combination, in the order of REJECTIONS, and the longest row."""

    rejected: list[list[int]]
    longest: int


def draw_unit(args: DrawArgs, _store: Store) -> Output[DrawResult]:
    indices = range(args.start, args.stop)
    names = spec.CONFIGS[args.config]  # drawn one after the other: the same code again is faster
    return rows_unit([[draw(args.seed, args.split, name, i) for i in indices] for name in names])


def rows_unit(drawn: Sequence[Sequence[Draw]]) -> Output[DrawResult]:
    """Equally many examples of some combinations, encoded, index after index.

    The object also has a digest of each question, by which repeats are counted.
    """
    encoded = [
        vocabulary.encode(one.question, one.answer)
        for index in zip(*drawn, strict=True)
        for one in index
    ]
    rows, starts = zip(*encoded, strict=True)
    lengths = [*map(len, rows)]
    questions = [row[:start].tobytes() for row, start in encoded]
    arrays = {
        "tokens": np.concatenate(rows),
        "offsets": offsets_of(lengths),
        "target_start": np.array(starts, np.uint16),
        "digest": np.array([xxhash.xxh3_64_intdigest(q) for q in questions], np.uint64),
    }
    counts = ((one.rejected.values() for one in examples) for examples in drawn)
    rejected = [[sum(column) for column in zip(*rows, strict=True)] for rows in counts]
    return Output(pack(arrays), {"rejected": rejected, "longest": max(lengths)})


@dataclass(frozen=True, slots=True)
class AssembleArgs(Arguments):
    """Units of a split that are a shard, of combinations whose numbers are `first` to `last`.

    They are its index ranges; or, with `rows`, there is one for each combination.
    """

    split: AnySplit
    addresses: tuple[str, ...]
    rows: tuple[int, int] | None
    batch_rows: int
    first: int
    last: int


def assemble_shard(args: AssembleArgs, store: Store) -> build.Streamed[build.ShardResult]:
    """One shard, if every question, read back from its tokens, may be in its split."""
    rows, starts = _read(store, args)
    tokens, offsets = rows.values.to_numpy(), rows.offsets.to_numpy()
    text, bounds = vocabulary.text, zip(offsets.tolist(), starts.tolist(), strict=False)
    data, side = tokens.tobytes(), side_of(args.split)
    if misplaced := sum(split_of(text(data[at : at + size])) != side for at, size in bounds):
        why = f"{misplaced} questions of {args.split} belong to the other side"
        fix = "the unit store is damaged: remove it and build again"
        raise CorruptionError(why, kind="splits-overlap", fix=fix)
    numbers = np.arange(args.first, args.last, dtype=np.uint8)
    columns = {
        "tokens": shards.lists(tokens, offsets),
        "target_start": shards.scalars(starts),
        "combination": shards.scalars(np.tile(numbers, len(starts) // len(numbers))),
    }
    return build.shard_unit(columns, batch_rows=args.batch_rows)


def _read(store: Store, args: AssembleArgs) -> tuple[pa.ListArray, npt.NDArray[np.uint16]]:
    """Tokens and target starts, index after index."""
    parts, lengths, starts = [], [], []
    for unit in (unpack(store.read(address)) for address in args.addresses):
        first, last = args.rows or (0, len(unit["target_start"]))
        bounds = unit["offsets"][first : last + 1]
        parts.append(unit["tokens"][bounds[0] : bounds[-1]])
        lengths.append(np.diff(bounds))
        starts.append(unit["target_start"][first:last])
    offsets = offsets_of(np.concatenate(lengths)).astype(np.int32)
    rows = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(parts)))
    order = np.arange(len(rows)).reshape(len(parts) if args.rows else 1, -1).T.reshape(-1)
    return rows.take(pa.array(order)), np.concatenate(starts)[order]


DRAW: Final = Stage("dm-draw", 3, draw_unit)
ASSEMBLE: Final = Stage("dm-assemble", 3, assemble_shard)
