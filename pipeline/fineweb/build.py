"""FineWeb-Edu: temporal split, exact dedup, 8,192-token rows.

- Two passes over the text: keys, then tokens of what is kept. Between them the split is resolved
  exactly, out of core, and audited. Where most documents are used, the first makes tokens too.
- Input files are known by their bytes and taken in the order of their sha256.
- A document is decided on once, in `decisions/`; a row names its documents by their place there.
- Which rows come out depends on the hash order alone; waves and buckets only bound the work. A wave
  is a range of the hash order. The first is sized to hold the rows that are asked for, and more
  follow only if it does not, so ten times the input does not cost ten times the work.
- The driver's lists are bounded: a large corpus is shuffled in two levels.
- The semantics are in docs/fineweb.md.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from tangobench.errors import InputError
from tangobench.pipeline.core.build import Job, Record, Result, ShardFile, Unit
from tangobench.pipeline.core.cards import NOT_STATED
from tangobench.pipeline.core.shards import NDArray, shard_name
from tangobench.pipeline.fineweb import encode, near_duplicates, packing
from tangobench.pipeline.fineweb.decisions import (
    DecisionsResult,
    audit_leaks,
    decide,
    first_indices,
    outcome_counts,
    train_dumps,
)
from tangobench.pipeline.fineweb.keys import KEYS, KeysResult
from tangobench.pipeline.fineweb.packing import TokenKind, Wave
from tangobench.pipeline.fineweb.resolve import resolve
from tangobench.pipeline.fineweb.spec import Spec, dump_name
from tangobench.pipeline.fineweb.units import (
    DocumentUnit,
    find_inputs,
    number_units,
    run_units,
    sections,
)
from tangobench.pipeline.tokenizer.use import Choice, choose

_LICENCES: Final = {"apache-2.0": "Apache-2.0", "odc-by": "ODC-By 1.0", NOT_STATED: "not stated"}

_CHECKED: Final = ("dump", "training documents, dropped ones included")
_IN_ROWS: Final = ("split", "dump", "documents", "tokens")
_FINEWEB: Final = {
    "remarks": [
        "The texts are subject to Common Crawl's terms of use as well: "
        "https://commoncrawl.org/terms-of-use",
        "FineWeb replaced e-mail addresses and public IP addresses by placeholders; nothing else "
        "was anonymised, here or there.",
    ],
    "bibtex": [
        "@inproceedings{fineweb,",
        "  author = {Penedo, Guilherme and Kydl{\\'i}{\\v{c}}ek, Hynek and others},",
        "  title = {The {FineWeb} Datasets: Decanting the Web for the Finest Text Data at Scale},",
        "  booktitle = {NeurIPS Datasets and Benchmarks},",
        "  year = {2024}",
        "}",
    ],
}
_RANGE: Final = 1 << 32
# A bucket is about a shard: a smaller shard would read its bucket's index for a part of it only.
_BUCKET_TOKENS: Final = (1 << 20, 1 << 25)
ONE_LEVEL: Final = 1 << 20  # units times buckets: beyond, the shuffle has two levels
MERGE_BYTES: Final = 1 << 30  # tokens of one object of the second level


def build(spec: Spec, source: str | None, job: Job) -> Result:
    chosen = choose(spec, job)
    tokenizer = chosen.load(job.store)
    inputs = find_inputs(spec, source, job, chosen)
    todo = [KEYS.unit(args.reading.label, args, weight=args.reading.size) for args in inputs.units]
    keys = job.run(KEYS, todo)
    units = number_units((args.reading for args in inputs.units), keys)
    units = resolve(job, units, keys, train_through=spec.last_train, duplicates=spec.duplicates)
    units, near, pairs = near_duplicates.audit(
        job, units, mode=spec.near_duplicates, engine=spec.near_engine
    )
    decisions, files = decide(job, units)
    leakage = audit_leaks(job, units, decisions)
    streams = make_streams(job, units, decisions, spec, chosen)
    inputs.require_unchanged()
    _require_rows(spec, streams)
    leakage["checked_against"] = train_dumps(decisions)
    tables = {
        "Rows by dump": [_IN_ROWS, *streams.by_dump()],
        "Validation was checked against": [_CHECKED, *leakage["checked_against"].items()],
    }
    counts, drops = _counts(keys, decisions, streams)
    return Result(
        source=inputs.source,
        origin=inputs.origin,
        tokenizer=dict(tokenizer.identity),
        configs={"default": tokenizer.config(spec.context, masked=True)},
        counts=counts,
        drops=drops,
        notes={"leakage": leakage, "near_duplicates": near, "tokenizer": _checked(keys, streams)},
        shards=[
            ShardFile(shard_name(split, n, len(records)), "default", split, record)
            for split, records in streams.shards.items()
            for n, record in enumerate(records)
        ],
        side_files=[*files, *pairs, *chosen.side_files()],
        card=_card(spec, inputs.origin, tokenizer.title) | {"tables": tables},
        provenance=_provenance(inputs.origin),
    )


def _require_rows(spec: Spec, streams: Streams) -> None:
    for split, wanted in (("train", spec.train_rows), ("validation", spec.validation_rows)):
        have = streams.rows[split]
        if have < wanted and not spec.allow_fewer:
            what = f"{split}: {have} rows of {spec.context} tokens found, {wanted} asked for"
            fix = f"give more input, or ask for fewer with {split}_rows or allow_fewer"
            kind = f"too-few-{split}-rows"
            raise InputError(what, kind=kind, fix=fix, found=have, wanted=wanted)


def _counts(
    keys: Sequence[Record[KeysResult]],
    decisions: Sequence[Record[DecisionsResult]],
    streams: Streams,
) -> tuple[dict[str, Any], dict[str, Any]]:
    documents, drops = outcome_counts(decisions)
    counts = {
        "input": {
            "rows": sum(record.result["rows"] for record in keys),
            "url_null": sum(record.result["url_null"] for record in keys),
            "url_empty": sum(record.result["url_empty"] for record in keys),
            "url_unparsable": sum(record.result["url_unparsable"] for record in keys),
        },
        "repeated_records": sum(record.result["repeated"] for record in decisions),
        "documents": documents,
        "rows": streams.rows,
        "tokens": streams.tokens,
    }
    return counts, drops


def _checked(keys: Sequence[Record[KeysResult]], streams: Streams) -> dict[str, int]:
    first = sum(record.result.get("checked", 0) for record in keys)
    return {"documents_encoded_again": first + streams.checked}


def _provenance(origin: dict[str, Any]) -> dict[str, Any]:
    if origin.get("kind") != "hub":
        return {}
    found = {key: origin[key] for key in ("endpoint", "repository", "commit")}
    # Of files that were read in part, the sha256 that the hub's index claims; nobody checked it.
    return {"hub": {**found, **({"claims": c} if (c := origin.get("claims")) else {})}}


def _card(spec: Spec, origin: dict[str, Any], tokens: str) -> dict[str, Any]:
    """Source and licence are what the input states; files of one's own state nothing."""
    text, licence, titled = "documents of own Parquet files", NOT_STATED, "Own documents"
    source = "Parquet files; their source is not stated."
    if origin["kind"] == "sample":
        text, licence, titled = "invented school texts", "apache-2.0", "FineWeb-Edu"
        source = "Generated by tangobench."
    elif origin["kind"] == "hub":
        titled, licence = origin["title"], origin["licence"]
        text, source = f"{titled} documents", origin["repository"]
    return {
        "title": f"{titled}, temporal split"
        + (" (embedded sample)" if origin["kind"] == "sample" else ""),
        "licence_id": licence,
        "licence": _LICENCES.get(licence, licence),
        "description": f"{tokens} tokens of {text} in rows of {spec.context}: training from dumps "
        f"through {spec.train_through}, validation from {', '.join(spec.validation_dumps)}, with "
        "documents of equal URL or content on one side of the split.",
        "sources": [source],
        **(_FINEWEB if licence == "odc-by" else {}),
        **({} if licence == NOT_STATED else {"language": ["en"]}),
    }


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
            (
                encode.TokensArgs(
                    unit=unit,
                    first_index=first,
                    wave=wave,
                    width=spec.context,
                    windows=spec.validation_rows,
                    seed=spec.seed,
                    tokenizer=tokenizer,
                ),
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
        units.append(
            encode.SHARDS.unit(f"train rows {first}-{stop - 1}", args, weight=stop - first)
        )
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
        todo.append(encode.SHARDS.unit(f"validation rows {first}-", args, weight=len(some)))
    return todo, len(windows)
