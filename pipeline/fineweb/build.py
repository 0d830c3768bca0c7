"""FineWeb-Edu: temporal split, exact dedup, 8,192-token rows.

- Two passes over the text: keys, then tokens of what is kept. Between them the split is resolved
  exactly, out of core, and audited. Where most documents are used, the first makes tokens too.
- Input files are known by their bytes and taken in the order of their sha256.
- A document is decided on once, in `decisions/`; a row names its documents by their place there.
- The semantics are in docs/fineweb.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tangobench.errors import InputError
from tangobench.pipeline.core.build import Job, Record, Result, ShardFile
from tangobench.pipeline.core.cards import NOT_STATED
from tangobench.pipeline.core.shards import shard_name
from tangobench.pipeline.fineweb import near_duplicates
from tangobench.pipeline.fineweb.decisions import (
    DecisionsResult,
    audit_leaks,
    decide,
    outcome_counts,
    train_dumps,
)
from tangobench.pipeline.fineweb.documents import number_units
from tangobench.pipeline.fineweb.inputs import find_inputs
from tangobench.pipeline.fineweb.keys import KEYS, KeysResult
from tangobench.pipeline.fineweb.resolve import resolve
from tangobench.pipeline.fineweb.spec import Spec
from tangobench.pipeline.fineweb.stream import Streams, make_streams
from tangobench.pipeline.tokenizer.use import choose

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


def build(spec: Spec, source: str | None, job: Job) -> Result:
    chosen = choose(spec, job)
    tokenizer = chosen.load(job.store)
    inputs = find_inputs(spec, source, job, chosen)
    todo = [KEYS.unit(args.reading.label, args, args.reading.size) for args in inputs.units]
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
