"""From decided documents to shards: waves of tokens, a prefix sum over buckets, then the rows.

- Which rows come out depends on the hash order alone; waves and buckets only bound the work.
- One tail is lost, not one per bucket; it is counted.

Usage: `streams = make_streams(job, units, reading, decisions, context=8192, rows=(9, 2), ...)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tangobench.pipeline import fineweb_tokens, pack
from tangobench.pipeline.build import Job, Record, Unit
from tangobench.pipeline.fineweb_decisions import first_indices

_RANGE: Final = 1 << 32
_BYTES_PER_TOKEN: Final = 5.2  # English web text has 4.4 to 4.9; more means a second wave is rare
# A bucket is about a shard: a smaller shard would read its bucket's index for a part of it only.
_BUCKET_TOKENS: Final = (1 << 20, 1 << 25)


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
class _Wave:
    records: list[Record]
    buckets: int

    def totals(self) -> list[int]:
        """Tokens of each bucket, one EOT per document included."""
        return [
            sum(_length(r, b) + _documents(r, b) for r in self.records) for b in range(self.buckets)
        ]

    def sources(self, bucket: int) -> list[list[Any]]:
        """Where a bucket's documents are."""
        return [
            [
                r.address,
                r.result["doc_bounds"][bucket],
                _documents(r, bucket),
                r.result["token_bounds"][bucket],
                _length(r, bucket),
                r.result["train_documents"],
            ]
            for r in self.records
            if _documents(r, bucket)
        ]


def _documents(record: Record, bucket: int) -> int:
    bounds = record.result["doc_bounds"]
    return int(bounds[bucket + 1] - bounds[bucket])


def _length(record: Record, bucket: int) -> int:
    bounds = record.result["token_bounds"]
    return int(bounds[bucket + 1] - bounds[bucket])


def make_streams(
    job: Job,
    units: Sequence[Unit],
    reading: Sequence[dict[str, Any]],
    decisions: Sequence[Record],
    *,
    context: int,
    rows: tuple[int, int],
    seed: int,
    shard_rows: int,
) -> Streams:
    """Encode what is needed and write the shards of both splits."""
    rules = {"width": context, "seed": seed}
    bucket = min(max(shard_rows * context, _BUCKET_TOKENS[0]), _BUCKET_TOKENS[1])
    waves = _encode(job, units, reading, decisions, rules, rows[0], bucket)
    train, counts = _train(waves, context, rows[0], shard_rows)
    validation, windows = _validation(waves[0].records, rules, rows[1], shard_rows)
    records = [record for wave in waves for record in wave.records]
    shards = job.run(fineweb_tokens.SHARDS, [*train, *validation])
    return Streams(
        train=shards[: len(train)],
        validation=shards[len(train) :],
        train_rows=counts["train"] // context,
        validation_rows=windows,
        tokens={**counts, "validation": windows * context},
        checked={"documents_encoded_again": sum(r.result["checked"] for r in records)},
    )


def _encode(
    job: Job,
    units: Sequence[Unit],
    reading: Sequence[dict[str, Any]],
    decisions: Sequence[Record],
    rules: dict[str, Any],
    rows: int,
    bucket_tokens: int,
) -> list[_Wave]:
    size = sum(record.result["train_bytes"] for record in decisions)
    needed = rows * rules["width"] * _BYTES_PER_TOKEN
    step = _RANGE if needed >= size else max(1, int(_RANGE * needed / size))
    expected = int(min(size, needed) / _BYTES_PER_TOKEN)
    buckets = max(1, expected // bucket_tokens)
    first_index = first_indices(decisions)
    waves: list[_Wave] = []
    for low in range(0, _RANGE, step):
        wave: dict[str, Any] = {"wave": [low, min(_RANGE, low + step)], "buckets": buckets}
        wave["with_validation"] = low == 0
        todo = [
            Unit(
                unit.label,
                [unit.inputs, {**rules, **wave, "first_index": first}],
                {**read, **unit.args, **rules, **wave, "first_index": first},
                unit.weight,
            )
            for unit, read, first in zip(units, reading, first_index, strict=True)
        ]
        waves.append(_Wave(job.run(fineweb_tokens.TOKENS, todo), buckets))
        if sum(sum(w.totals()) for w in waves) >= rows * rules["width"]:
            break
    return waves


def _train(
    waves: Sequence[_Wave], width: int, rows: int, shard_rows: int
) -> tuple[list[Unit], dict[str, int]]:
    totals = [total for wave in waves for total in wave.totals()]
    places = [(wave, bucket) for wave in waves for bucket in range(wave.buckets)]
    count = min(rows, sum(totals) // width)
    units = []
    for first in range(0, max(1, count), shard_rows):  # no rows: one empty shard
        stop = min(count, first + shard_rows)
        found = [
            [places[bucket][0].sources(places[bucket][1]), skip, take]
            for bucket, skip, take in pack.pieces(totals, first * width, stop * width)
        ]
        inputs = {"pieces": found, "width": width}
        units.append(Unit(f"train rows {first}-{stop - 1}", inputs, weight=stop - first))
    counts = {"train": count * width, "train_tail": 0, "train_beyond": 0}
    rest = sum(totals) - count * width
    counts["train_tail" if count < rows else "train_beyond"] = rest
    return units, counts


def _validation(
    records: Sequence[Record], rules: dict[str, Any], rows: int, shard_rows: int
) -> tuple[list[Unit], int]:
    width = rules["width"]
    found = [place for record in records for place in _long_documents(record)]
    chosen = pack.choose_windows(
        [ident for ident, *_ in found],
        [length for _, length, *_ in found],
        width=width,
        count=rows,
        seed=rules["seed"],
    )
    windows = [
        [found[at][3], found[at][4] + 2 * width * window, found[at][2], width * window]
        for at, window in chosen
    ]
    units = [
        Unit(
            f"validation rows {first}-",
            {"windows": windows[first : first + shard_rows], "width": width},
            weight=min(len(windows) - first, shard_rows),
        )
        for first in range(0, max(1, len(windows)), shard_rows)
    ]
    return units, len(windows)


def _long_documents(record: Record) -> list[tuple[str, int, int, str, int]]:
    """(id, tokens, doc_index, object, first byte) of a unit's long validation documents."""
    result = record.result
    start = result["train_documents"] * pack.INDEX_ROW.itemsize + 2 * result["token_bounds"][-1]
    places = []
    for ident, index, length in result["validation"]:
        places.append((ident, length, index, record.address, start))
        start += 2 * length
    return places
