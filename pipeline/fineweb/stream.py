"""From decided documents to shards: waves of tokens, a prefix sum over buckets, then the rows.

- Which rows come out depends on the hash order alone; waves and buckets only bound the work.
- One tail is lost, not one per bucket; it is counted.
- The driver's lists are bounded: a large corpus is shuffled in two levels.

Usage: `streams = make_streams(job, units, results, want)`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from tangobench.pipeline.core.arrays import NDArray, Section
from tangobench.pipeline.core.build import Job, Record, Unit
from tangobench.pipeline.fineweb import packing
from tangobench.pipeline.fineweb.decisions import DecisionsResult, first_indices
from tangobench.pipeline.fineweb.documents import DecidedUnit
from tangobench.pipeline.fineweb.encode import (
    MERGE,
    SHARDS,
    TOKENS,
    MergeArgs,
    MergeResult,
    Piece,
    TokensArgs,
    TokensResult,
    TrainShard,
    ValidationShard,
    Wave,
    Window,
)
from tangobench.pipeline.fineweb.packing import TokenKind
from tangobench.pipeline.tokenizer.use import Choice

_RANGE: Final = 1 << 32
_BYTES_PER_TOKEN: Final = 5.2  # English web text has 4.4 to 4.9; more means a second wave is rare
# A bucket is about a shard: a smaller shard would read its bucket's index for a part of it only.
_BUCKET_TOKENS: Final = (1 << 20, 1 << 25)
ONE_LEVEL: Final = 1 << 20  # units times buckets: beyond, the shuffle has two levels
MERGE_BYTES: Final = 1 << 30  # tokens of one object of the second level


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """How many rows of how many tokens each split should have, and how shards are cut."""

    context: int
    train_rows: int
    validation_rows: int
    seed: int
    shard_rows: int

    @property
    def bucket_tokens(self) -> int:
        """About how many tokens a bucket should hold."""
        low, high = _BUCKET_TOKENS
        return min(max(self.shard_rows * self.context, low), high)


@dataclass(frozen=True, slots=True)
class Streams:
    """The shards of both splits and what was counted on the way."""

    train: list[Record]
    validation: list[Record]
    train_rows: int
    validation_rows: int
    tokens: dict[str, int]
    checked: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A finished wave: its units, and the objects that hold each range of `count` buckets."""

    units: list[tuple[str, TokensResult]]
    ranges: Sequence[Sequence[tuple[str, TokensResult | MergeResult]]]
    count: int

    def totals(self) -> NDArray:
        """Tokens of each bucket."""
        found = [np.sum([r.totals for _, r in parts], axis=0) for parts in self.ranges]
        return np.concatenate(found).astype(np.int64)

    def piece(self, bucket: int, skip: int, take: int) -> Piece:
        """Some tokens of a bucket."""
        at, place = divmod(bucket, self.count)
        parts = self.ranges[at]
        found = (Section.at(a, r.bounds, place) for a, r in parts if r.totals[place])
        return Piece(tuple(found), skip, take)


@dataclass(frozen=True, slots=True)
class _Levels:
    """How a wave is shuffled: `ranges` of `count` buckets each, units merged in `groups`.

    One range: units write the buckets themselves. The driver holds, and shards read, one entry per
    unit and bucket. Where that is too many, units write ranges, and a second level cuts these into
    buckets: units times ranges plus twice groups times buckets (a shard reads two buckets), least
    if ranges is sqrt(2 * merges * buckets / units).
    """

    ranges: int
    count: int
    groups: int

    @classmethod
    def of(cls, units: int, buckets: int, bucket_tokens: int) -> _Levels:
        """The levels for a wave."""
        if units * buckets <= ONE_LEVEL:
            return cls(1, buckets, 1)
        merges = max(1, 2 * buckets * bucket_tokens // MERGE_BYTES)
        ranges = min(buckets, max(2, round(math.sqrt(2 * merges * buckets / units))))
        return cls(ranges, -(-buckets // ranges), min(units, -(-merges // ranges)))


def make_streams(
    job: Job,
    units: Sequence[DecidedUnit],
    decisions: Sequence[DecisionsResult],
    want: Wanted,
    tokenizer: Choice,
) -> Streams:
    """Encode what is needed and write the shards of both splits."""
    loaded = tokenizer.load(job.store)
    kind = TokenKind(np.dtype(loaded.dtype).str, loaded.eot)
    waves = _encode(job, units, decisions, want, tokenizer)
    train, counts = _train(waves, want, kind)
    validation, windows = _validation(waves[0], want, kind)
    shards = job.run(SHARDS, [*train, *validation])
    results = [result for wave in waves for _, result in wave.units]
    return Streams(
        train=shards[: len(train)],
        validation=shards[len(train) :],
        train_rows=counts["train"] // want.context,
        validation_rows=windows,
        tokens={**counts, "validation": windows * want.context},
        checked={"documents_encoded_again": sum(result.checked for result in results)},
    )


def _encode(
    job: Job,
    units: Sequence[DecidedUnit],
    decisions: Sequence[DecisionsResult],
    want: Wanted,
    tokenizer: Choice,
) -> list[_Encoded]:
    size = sum(result.train_bytes for result in decisions)
    needed = want.train_rows * want.context * _BYTES_PER_TOKEN
    step = _RANGE if needed >= size else max(1, int(_RANGE * needed / size))
    buckets = max(1, int(min(size, needed) / _BYTES_PER_TOKEN) // want.bucket_tokens)
    levels = _Levels.of(len(units), buckets, want.bucket_tokens)
    first_index = first_indices(decisions)
    waves: list[_Encoded] = []
    for low in range(0, _RANGE, step):
        high = min(_RANGE, low + step)
        wave = Wave(low, high, levels.count if levels.ranges == 1 else levels.ranges)
        todo = []
        for unit, first in zip(units, first_index, strict=True):
            args = TokensArgs(
                unit=unit,
                first_index=tuple(first.tolist()),
                wave=wave,
                width=want.context,
                windows=want.validation_rows,
                seed=want.seed,
                tokenizer=tokenizer,
            )
            todo.append(TOKENS.unit(unit.reading.label, args, unit.rows))
        waves.append(_shuffle(job, job.run(TOKENS, todo), wave, levels))
        if sum(w.totals().sum() for w in waves) >= want.train_rows * want.context:
            break
    return waves


def _shuffle(job: Job, records: Sequence[Record], wave: Wave, levels: _Levels) -> _Encoded:
    """The second level, where there is one."""
    units = [(record.address, TokensResult.of(record)) for record in records]
    if levels.ranges == 1:
        return _Encoded(units, [units], levels.count)
    fine = Wave(wave.low, wave.high, levels.ranges * levels.count)
    cuts = np.linspace(0, len(units), levels.groups + 1).astype(int).tolist()
    todo = []
    for at in range(levels.ranges):
        for low, high in pairwise(cuts):
            sections = tuple(Section.at(a, r.bounds, at) for a, r in units[low:high])
            args = MergeArgs(sections, fine, at * levels.count, levels.count)
            todo.append(MERGE.unit(f"range {at + 1}, units {low + 1}-{high}", args))
    merged = [(record.address, MergeResult.of(record)) for record in job.run(MERGE, todo)]
    groups = levels.groups
    ranges = [merged[at * groups : (at + 1) * groups] for at in range(levels.ranges)]
    return _Encoded(units, ranges, levels.count)


def _train(
    waves: Sequence[_Encoded], want: Wanted, kind: TokenKind
) -> tuple[list[Unit], dict[str, int]]:
    width, rows = want.context, want.train_rows
    found = [wave.totals() for wave in waves]
    totals = np.concatenate(found)
    places = [(w, b) for w, part in zip(waves, found, strict=True) for b in range(len(part))]
    count = min(rows, int(totals.sum()) // width)
    units = []
    for first in range(0, max(1, count), want.shard_rows):  # no rows: one empty shard
        stop = min(count, first + want.shard_rows)
        pieces = []
        for at, skip, take in packing.pieces(totals, first * width, stop * width):
            wave, bucket = places[at]
            pieces.append(wave.piece(bucket, skip, take))
        args = TrainShard(width, kind, tuple(pieces))
        units.append(SHARDS.unit(f"train rows {first}-{stop - 1}", args, stop - first))
    counts = {"train": count * width, "train_tail": 0, "train_beyond": 0}
    rest = int(totals.sum()) - count * width
    counts["train_tail" if count < rows else "train_beyond"] = rest
    return units, counts


def _validation(first_wave: _Encoded, want: Wanted, kind: TokenKind) -> tuple[list[Unit], int]:
    candidates = (
        (window, rank, index, address, start)
        for address, result in first_wave.units
        for window, rank, index, start in result.windows
    )
    windows = [
        Window(address, start, index, want.context * window)
        for window, _, index, address, start in heapq.nsmallest(want.validation_rows, candidates)
    ]
    step = want.shard_rows
    units = [
        SHARDS.unit(
            f"validation rows {first}-",
            ValidationShard(want.context, kind, tuple(windows[first : first + step])),
            min(len(windows) - first, step),
        )
        for first in range(0, max(1, len(windows)), step)
    ]
    return units, len(windows)
