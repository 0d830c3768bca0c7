"""FineWeb-Edu: temporal split, exact dedup, 8,192-token rows.

- Two passes over the text: keys, then tokens of what is kept. Between them the split is resolved
  exactly, out of core, and audited.
- Input files are known by their bytes and taken in the order of their sha256.
- A document is decided on once, in `decisions/`; a row names its documents by their place there.

Usage: `api.build("fineweb", "sample", out="out")`; the semantics are in docs/fineweb.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tangobench.errors import InputError, UsageError
from tangobench.pipeline import fineweb_decisions, fineweb_plan, fineweb_why, near
from tangobench.pipeline.build import Job, Record, Result, ShardFile
from tangobench.pipeline.fineweb_dedup import key_units, resolve
from tangobench.pipeline.fineweb_inputs import find_inputs
from tangobench.pipeline.fineweb_keys import KEYS
from tangobench.pipeline.fineweb_spec import Spec
from tangobench.pipeline.fineweb_stream import Streams, make_streams
from tangobench.pipeline.manifest import Lock
from tangobench.pipeline.shards import shard_name
from tangobench.pipeline.tokens import EOT, VOCABULARY_SIZE, Gpt2, gpt2

__all__ = ["Spec", "build", "plan", "record", "why"]

_LICENCES: Final = {"apache-2.0": "Apache-2.0", "odc-by": "ODC-By 1.0"}


def build(spec: Spec, source: str | None, job: Job) -> Result:
    """Read, decide, audit, encode, pack."""
    inputs = find_inputs(spec, source, job)
    keys = job.run(KEYS, inputs.units)
    decided = resolve(
        job, key_units(keys), train_through=spec.last_train, duplicates=spec.duplicates
    )
    reading = [unit.args or unit.inputs for unit in inputs.units]
    twins, near_notes = near.audit(
        job, decided, reading, mode=spec.near_duplicates, engine=spec.near_engine
    )
    units = fineweb_decisions.decision_units(decided, twins)
    decisions, files = fineweb_decisions.decide(job, units)
    leakage = fineweb_decisions.audit(job, units)
    streams = make_streams(
        job,
        units,
        reading,
        decisions,
        context=spec.context,
        rows=(spec.train_rows, spec.validation_rows),
        seed=spec.seed,
        shard_rows=spec.shard_rows,
    )
    inputs.require_unchanged()
    _require_rows(spec, streams)
    leakage["checked_against"] = _dumps(decisions)
    counts, drops = _counts(keys, decisions, streams)
    return Result(
        source=inputs.source,
        origin=inputs.origin,
        tokenizer=dict(Gpt2.identity),
        configs={"default": _config(spec)},
        counts=counts,
        drops=drops,
        notes={"leakage": leakage, "near_duplicates": near_notes, "tokenizer": streams.checked},
        shards=_shards("train", streams.train) + _shards("validation", streams.validation),
        side_files=files,
        card=_card(spec, inputs.source),
    )


def _config(spec: Spec) -> dict[str, Any]:
    return {
        "context": spec.context,
        "vocabulary": VOCABULARY_SIZE,
        "masked_target": EOT,
        "pad": EOT,
    }


def _require_rows(spec: Spec, streams: Streams) -> None:
    found = (streams.train_rows, streams.validation_rows)
    for split, have, wanted in zip(
        ("train", "validation"), found, (spec.train_rows, spec.validation_rows), strict=True
    ):
        if have < wanted and not spec.allow_fewer:
            raise InputError(
                f"{split}: {have} rows of {spec.context} tokens found, {wanted} asked for",
                kind=f"too-few-{split}-rows",
                fix=f"give more input, or ask for fewer with {split}_rows or allow_fewer",
                found=have,
                wanted=wanted,
            )


def _counts(
    keys: Sequence[Record], decisions: Sequence[Record], streams: Streams
) -> tuple[dict[str, Any], dict[str, Any]]:
    documents, drops = fineweb_decisions.outcome_counts(decisions)
    urls = {k: sum(r.result[k] for r in keys) for k in ("url_null", "url_empty", "url_unparsable")}
    counts = {
        "input": {"rows": sum(r.result["rows"] for r in keys), **urls},
        "repeated_records": sum(r.result["repeated"] for r in decisions),
        "documents": documents,
        "rows": {"train": streams.train_rows, "validation": streams.validation_rows},
        "tokens": streams.tokens,
    }
    return counts, drops


def _dumps(decisions: Sequence[Record]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for record in decisions:
        for dump, number in record.result["dumps"].items():
            totals[dump] = totals.get(dump, 0) + number
    return dict(sorted(totals.items()))


def _shards(split: str, records: Sequence[Record]) -> list[ShardFile]:
    total = len(records)
    return [
        ShardFile(shard_name(split, n, total), "default", split, record)
        for n, record in enumerate(records)
    ]


def _card(spec: Spec, source: dict[str, Any]) -> dict[str, Any]:
    sample = "generator" in source
    text = "invented school texts" if sample else "FineWeb-Edu documents"
    licence = "apache-2.0" if sample else "odc-by"
    return {
        "title": "FineWeb-Edu, temporal split" + (" (embedded sample)" if sample else ""),
        "licence_id": licence,
        "licence": _LICENCES[licence],
        "description": f"GPT-2 tokens of {text} in rows of {spec.context}: training from dumps "
        f"through {spec.train_through}, validation from {', '.join(spec.validation_dumps)}, with "
        "documents of equal URL or content on one side of the split.",
        "sources": ["Generated by tangobench."] if sample else [spec.hub.repository],
    }


def plan(spec: Spec, source: str | None, workers: int) -> dict[str, Any]:
    """What a build would read, take and need."""
    return fineweb_plan.plan(spec, source, workers)


def record(row: dict[str, Any], config: str, lock: Lock) -> dict[str, Any]:
    """One row as a plain record: its text and where each part of it comes from."""
    if config != "default":
        raise UsageError(f"no config {config!r}", kind="no-such-config", fix="use default")
    del lock
    spans = zip(row["doc_index"], row["doc_start"], row["doc_offset"], strict=True)
    return {
        "text": gpt2().decode(row["tokens"]),
        "documents": [
            {"doc_index": int(d), "start": int(s), "offset": int(o)} for d, s, o in spans
        ],
    }


def why(folder: Path, lock: Lock, ident: str) -> list[str]:
    """What became of a document."""
    return fineweb_why.explain(folder, lock, ident)
