"""From decided documents to shards: waves of tokens, a prefix sum over buckets, then the rows.

- Which rows come out depends on the hash order alone; waves and buckets only bound the work.
- A wave is a range of the hash order. The first is sized to hold the rows that are asked for, and
  more follow only if it does not, so ten times the input does not cost ten times the work.
- The driver's lists are bounded: a large corpus is shuffled in two levels.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from tangobench.pipeline.core.arrays import NDArray
from tangobench.pipeline.core.build import Job, Record, Unit
from tangobench.pipeline.fineweb import encode, packing
from tangobench.pipeline.fineweb.decisions import DecisionsResult, first_indices
from tangobench.pipeline.fineweb.documents import DocumentUnit, run_units, sections
from tangobench.pipeline.fineweb.packing import TokenKind, Wave
from tangobench.pipeline.fineweb.spec import Spec, dump_name
from tangobench.pipeline.tokenizer.use import Choice

_RANGE: Final = 1 << 32
# A bucket is about a shard: a smaller shard would read its bucket's index for a part of it only.
_BUCKET_TOKENS: Final = (1 << 20, 1 << 25)
ONE_LEVEL: Final = 1 << 20  # units times buckets: beyond, the shuffle has two levels
MERGE_BYTES: Final = 1 << 30  # tokens of one object of the second level


@dataclass(frozen=True, slots=True)
class Streams:
    """The shards of both splits and what was counted on the way."""

    shards: dict[str, list[Record[encode.RowsResult]]]
    rows: dict[str, int]
    tokens: dict[str, int]
    checked: int

    def by_dump(self) -> list[tuple[str, str, int, int]]:
        """(split, dump, documents, tokens) of the rows; documents are those that begin in them."""
        totals: dict[tuple[str, int], NDArray] = {}
        for split, records in self.shards.items():
            for record in records:
                numbers = np.array(record.result["dumps"].split(), np.int64).reshape(-1, 3)
                for dump, counts in zip(numbers[:, 0].tolist(), numbers[:, 1:], strict=True):
                    totals[split, dump] = totals.get((split, dump), 0) + counts
        return [
            (split, dump_name(dump), int(documents), int(tokens))
            for (split, dump), (documents, tokens) in sorted(totals.items())
        ]


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A finished wave: its units, and the objects that hold each range of `count` buckets."""

    units: list[Record[encode.TokensResult]]
    ranges: Sequence[Sequence[Record[encode.Buckets]]]
    count: int

    def totals(self) -> NDArray:
        found = [np.sum([r.result["totals"] for r in parts], axis=0) for parts in self.ranges]
        return np.concatenate(found).astype(np.int64)

    def piece(self, bucket: int, skip: int, take: int) -> encode.Piece:
        at, place = divmod(bucket, self.count)
        filled = (record for record in self.ranges[at] if record.result["totals"][place])
        return encode.Piece(sections(filled, place), skip, take)


def _levels(units: int, buckets: int, bucket_tokens: int) -> tuple[int, int, int]:
    """How a wave is shuffled: ranges, buckets of each, and the groups that units are merged in.

    One range: units write the buckets themselves. The driver holds, and shards read, one entry per
    unit and bucket. Where that is too many, units write ranges, and a second level cuts these into
    buckets: units times ranges plus twice groups times buckets (a shard reads two buckets), least
    if ranges is sqrt(2 * merges * buckets / units).
    """
    if units * buckets <= ONE_LEVEL:
        return 1, buckets, 1
    merges = max(1, 2 * buckets * bucket_tokens // MERGE_BYTES)
    ranges = min(buckets, max(2, round(math.sqrt(2 * merges * buckets / units))))
    return ranges, -(-buckets // ranges), min(units, -(-merges // ranges))


def make_streams(
    job: Job,
    units: Sequence[DocumentUnit],
    decisions: Sequence[Record[DecisionsResult]],
    spec: Spec,
    tokenizer: Choice,
) -> Streams:
    loaded = tokenizer.load(job.store)
    kind = TokenKind(np.dtype(loaded.dtype).str, loaded.eot)
    waves = _encode(job, units, decisions, spec, tokenizer)
    train, counts = _train(waves, spec, kind)
    validation, windows = _validation(units, waves[0], spec, kind)
    shards = job.run(encode.SHARDS, [*train, *validation])
    checked = sum(record.result["checked"] for wave in waves for record in wave.units)
    return Streams(
        shards={"train": shards[: len(train)], "validation": shards[len(train) :]},
        rows={"train": counts["train"] // spec.context, "validation": windows},
        tokens={**counts, "validation": windows * spec.context},
        checked=checked,
    )


def _encode(
    job: Job,
    units: Sequence[DocumentUnit],
    decisions: Sequence[Record[DecisionsResult]],
    spec: Spec,
    tokenizer: Choice,
) -> list[_Encoded]:
    size = sum(record.result["train_bytes"] for record in decisions)
    wanted = spec.train_rows * spec.context
    needed = wanted * packing.BYTES_PER_TOKEN
    step = _RANGE if needed >= size else max(1, int(_RANGE * needed / size))
    low, high = _BUCKET_TOKENS
    bucket_tokens = min(max(spec.shard_rows * spec.context, low), high)
    buckets = max(1, int(min(size, needed) / packing.BYTES_PER_TOKEN) // bucket_tokens)
    levels = _levels(len(units), buckets, bucket_tokens)
    first_index = [tuple(first.tolist()) for first in first_indices(decisions)]
    waves: list[_Encoded] = []
    for start in range(0, _RANGE, step):
        ranges, count, _ = levels
        wave = Wave(start, min(_RANGE, start + step), count if ranges == 1 else ranges)
        args = (
            encode.TokensArgs(
                unit=unit,
                first_index=first,
                wave=wave,
                width=spec.context,
                windows=spec.validation_rows,
                seed=spec.seed,
                tokenizer=tokenizer,
            )
            for unit, first in zip(units, first_index, strict=True)
        )
        waves.append(_shuffle(job, run_units(job, encode.TOKENS, units, args), wave, levels))
        if sum(w.totals().sum() for w in waves) >= wanted:
            break
    return waves


def _shuffle(
    job: Job, units: list[Record[encode.TokensResult]], wave: Wave, levels: tuple[int, int, int]
) -> _Encoded:
    ranges, count, groups = levels
    if ranges == 1:
        return _Encoded(units, [units], count)
    fine = Wave(wave.low, wave.high, ranges * count)
    cuts = np.linspace(0, len(units), groups + 1).astype(int).tolist()
    todo = []
    for at in range(ranges):
        for low, high in pairwise(cuts):
            args = encode.MergeArgs(sections(units[low:high], at), fine, at * count, count)
            todo.append(encode.MERGE.unit(f"range {at + 1}, units {low + 1}-{high}", args))
    merged = job.run(encode.MERGE, todo)
    return _Encoded(
        units, [merged[at : at + groups] for at in range(0, len(merged), groups)], count
    )


def _train(
    waves: Sequence[_Encoded], spec: Spec, kind: TokenKind
) -> tuple[list[Unit], dict[str, int]]:
    width, rows = spec.context, spec.train_rows
    found = [wave.totals() for wave in waves]
    totals = np.concatenate(found)
    places = [(w, b) for w, part in zip(waves, found, strict=True) for b in range(len(part))]
    count = min(rows, int(totals.sum()) // width)
    units = []
    for first in range(0, max(1, count), spec.shard_rows):  # no rows: one empty shard
        stop = min(count, first + spec.shard_rows)
        pieces = []
        for at, skip, take in packing.pieces(totals, first * width, stop * width):
            wave, bucket = places[at]
            pieces.append(wave.piece(bucket, skip, take))
        args = encode.ShardArgs(width=width, kind=kind, pieces=tuple(pieces))
        units.append(encode.SHARDS.unit(f"train rows {first}-{stop - 1}", args, stop - first))
    counts = {"train": count * width, "train_tail": 0, "train_beyond": 0}
    rest = int(totals.sum()) - count * width
    counts["train_tail" if count < rows else "train_beyond"] = rest
    return units, counts


def _validation(
    units: Sequence[DocumentUnit], wave: _Encoded, spec: Spec, kind: TokenKind
) -> tuple[list[Unit], int]:
    candidates = (
        (window, rank, index, dump, (unit.tokens or record).address, start)
        for unit, record in zip(units, wave.units, strict=True)
        for window, rank, index, dump, start in record.result["windows"]
    )
    windows = [
        encode.Window(address, start, index, spec.context * window, dump)
        for window, _, index, dump, address, start in heapq.nsmallest(
            spec.validation_rows, candidates
        )
    ]
    todo = []
    for first in range(0, max(1, len(windows)), spec.shard_rows):
        some = tuple(windows[first : first + spec.shard_rows])
        args = encode.ShardArgs(width=spec.context, kind=kind, windows=some)
        todo.append(encode.SHARDS.unit(f"validation rows {first}-", args, len(some)))
    return todo, len(windows)
