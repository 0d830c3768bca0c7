"""FineWeb-Edu: temporal split, exact dedup, 8,192-token rows.

- Two passes over the text: keys, then tokens of what is kept. Between them the split is resolved
  exactly, out of core, and audited.
- Input files are known by their bytes and taken in the order of their sha256.
- A document is decided on once, in `decisions/`; a row names its documents by their place there.

Usage: `api.build("fineweb", "sample", out="out")`; the semantics are in docs/fineweb.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from tangobench.errors import InputError, UsageError
from tangobench.pipeline import fineweb_decisions, fineweb_plan, fineweb_sample, fineweb_why, near
from tangobench.pipeline.build import Job, Record, Result, ShardFile, SideFile, Unit
from tangobench.pipeline.dedup import Duplicates
from tangobench.pipeline.fineweb_dedup import key_units, partitions_for, resolve
from tangobench.pipeline.fineweb_keys import KEYS
from tangobench.pipeline.fineweb_read import FileInfo, dump_order, inspect
from tangobench.pipeline.fineweb_stream import Streams, make_streams
from tangobench.pipeline.hub import HubFolders, Listing, hub_name, list_files, list_hub
from tangobench.pipeline.manifest import Lock
from tangobench.pipeline.shards import shard_name
from tangobench.pipeline.spec import bad_value
from tangobench.pipeline.tokens import EOT, VOCABULARY_SIZE, Gpt2, gpt2

_LICENCES: Final = {"apache-2.0": "Apache-2.0", "odc-by": "ODC-By 1.0"}


def config_folder(name: str) -> str:
    """The folder of a config of FineWeb-Edu (`default`, `sample-10BT`, a dump), or of itself."""
    if name == "default":
        return "data"
    if name.startswith("sample-"):
        return name.replace("-", "/", 1)
    return f"data/{name}" if dump_order(name) else name


@dataclass(frozen=True, kw_only=True, slots=True)
class Hub:
    """Which part of the dataset repository is read; 0 files means all."""

    repository: str
    revision: str
    train: str
    validation: str
    train_files: int = 0
    validation_files: int = 0

    def folders(self) -> tuple[tuple[str, int], ...]:
        """Folders with file limits; what lies inside the other folder is listed once."""
        train, validation = config_folder(self.train), config_folder(self.validation)
        if validation == train or validation.startswith(f"{train}/"):
            return ((train, self.train_files),)
        return tuple(sorted({train: self.train_files, validation: self.validation_files}.items()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """Everything that decides the dataset, with the input's content."""

    source: Literal["sample", "hub"]
    train_through: str
    validation_dumps: tuple[str, ...]
    hub: Hub
    context: int = 8192
    train_rows: int = 183_104
    validation_rows: int = 2_048
    allow_fewer: bool = False
    seed: int = 1729
    url_folding: Literal["standard", "aggressive"] = "standard"
    duplicates: Duplicates = "drop"
    near_duplicates: near.Mode = "off"
    near_engine: near.Engine = "rensa"
    shard_rows: int = 4_096
    unit_bytes: int = 1 << 25

    def __post_init__(self) -> None:
        for key in ("train_rows", "validation_rows", "shard_rows", "unit_bytes"):
            if getattr(self, key) < 1:
                raise bad_value(key, getattr(self, key), "a count of at least 1")
        if not 2 <= self.context <= 1 << 16:
            raise bad_value("context", self.context, "a length from 2 to 65,536")
        if not 0 <= self.seed < 1 << 64:
            raise bad_value("seed", self.seed, "a number from 0 to 2^64 - 1")
        for key in ("train_files", "validation_files"):
            if getattr(self.hub, key) < 0:
                raise bad_value(f"hub.{key}", getattr(self.hub, key), "0 (all) or a count")
        last = dump_order(self.train_through)
        if last is None:
            raise bad_value("train_through", self.train_through, "a dump like CC-MAIN-2023-40")
        for dump in self.validation_dumps:
            if (dump_order(dump) or 0) <= last:
                raise bad_value("validation_dumps", dump, f"dumps after {self.train_through}")
        if not self.validation_dumps:
            raise bad_value("validation_dumps", [], "at least one dump")

    @property
    def last_train(self) -> int:
        """The last training dump, as a number."""
        return dump_order(self.train_through) or 0

    @property
    def validation_orders(self) -> list[int]:
        """The validation dumps, as numbers."""
        return sorted(dump_order(dump) or 0 for dump in self.validation_dumps)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The input, cut into units: what decides each and what it takes to read it."""

    units: list[Unit]
    rows: int
    source: dict[str, Any]
    origin: dict[str, Any] = field(default_factory=dict)


def build(spec: Spec, source: str | None, job: Job) -> Result:
    """Read, decide, audit, encode, pack."""
    inputs = _inputs(spec, source, job)
    keys = job.run(KEYS, inputs.units)
    decided = resolve(
        job, key_units(keys), train_through=spec.last_train, duplicates=spec.duplicates
    )
    reading = [unit.args or unit.inputs for unit in inputs.units]
    twins, near_notes = near.audit(
        job, decided, reading, mode=spec.near_duplicates, engine=spec.near_engine
    )
    units = fineweb_decisions.decision_units(decided, twins)
    decisions = job.run(fineweb_decisions.DECISIONS, units)
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
    _require_rows(spec, streams)
    counts, drops = _counts(keys, decisions, streams)
    leakage["checked_against"] = _dumps(decisions)
    return Result(
        source=inputs.source,
        origin=inputs.origin,
        tokenizer=dict(Gpt2.identity),
        configs={
            "default": {
                "context": spec.context,
                "vocabulary": VOCABULARY_SIZE,
                "masked_target": EOT,
                "pad": EOT,
            }
        },
        counts=counts,
        drops=drops,
        notes={"leakage": leakage, "near_duplicates": near_notes, "tokenizer": streams.checked},
        shards=_shards("train", streams.train) + _shards("validation", streams.validation),
        side_files=[
            SideFile(
                f"decisions/part-{n:05d}.parquet",
                "decisions",
                record.address,
                record.result["rows"],
                record.result["rows_sha256"],
            )
            for n, record in enumerate(decisions)
        ],
        card=_card(spec, inputs.source),
    )


def _inputs(spec: Spec, source: str | None, job: Job) -> Inputs:
    if source is None and spec.source == "sample":
        return _sample_inputs(spec)
    listing = list_source(spec, source)
    labels = [file.name for file in listing.files]
    infos = list(job.runner.map(inspect, listing.files, labels))
    unique = {info.sha256: info for info in infos}
    files = [unique[sha256] for sha256 in sorted(unique)]
    rows = sum(file.rows for file in files)
    if rows == 0:
        raise InputError(
            f"{len(files)} Parquet files hold no rows",
            kind="source-empty",
            fix="name files with documents",
        )
    parts = partitions_for(rows)
    units = [unit for file in files for unit in _file_units(spec, file, parts)]
    identity = [{"sha256": f.sha256, "size": f.size, "rows": f.rows} for f in files]
    origin = {**listing.origin, "files": {f.name: f.sha256 for f in infos}}
    return Inputs(units, rows, {"files": identity}, origin)


def list_source(spec: Spec, source: str | None) -> Listing:
    """The input files of a source: None and hub names are read from the hub."""
    named = hub_name(source) if source not in (None, "hub") else None
    if source in (None, "hub") or named is not None:
        repository, revision = named or (spec.hub.repository, None)
        wanted = HubFolders(
            repository=repository,
            revision=revision or spec.hub.revision,
            folders=spec.hub.folders(),
        )
        return list_hub(wanted)
    return list_files(str(source))


def _rules(spec: Spec, parts: int) -> dict[str, Any]:
    return {
        "train_through": spec.last_train,
        "validation": spec.validation_orders,
        "aggressive": spec.url_folding == "aggressive",
        "parts": parts,
    }


def _sample_inputs(spec: Spec) -> Inputs:
    total, parts = fineweb_sample.count(), partitions_for(fineweb_sample.count())
    identity = {"generator": "fineweb_sample", "version": fineweb_sample.VERSION, "rows": total}
    units = [
        Unit(
            f"sample {start}",
            {**identity, **_rules(spec, parts), "sample": [start, stop]},
            weight=stop - start,
        )
        for start in range(0, total, fineweb_sample.BLOCK)
        for stop in [min(total, start + fineweb_sample.BLOCK)]
    ]
    return Inputs(units, total, identity, {"kind": "sample"})


def _file_units(spec: Spec, file: FileInfo, parts: int) -> list[Unit]:
    """Ranges of row groups of about `unit_bytes`; ignored groups never share a unit with others."""
    units: list[Unit] = []
    first_row = first = size = 0
    outside = [_outside(spec, group.first_dump, group.last_dump) for group in file.groups]
    for number, group in enumerate(file.groups):
        size += group.size
        last = number + 1 == len(file.groups)
        if not last and size < spec.unit_bytes and outside[number + 1] == outside[number]:
            continue
        what = {"groups": [first, number + 1], "texts": not outside[number]}
        inputs = {"sha256": file.sha256, **what, **_rules(spec, parts)}
        where = {"name": file.name, "url": file.url, "has_date": file.has_date}
        args = {**inputs, **where, "first_row": first_row}
        units.append(Unit(f"{file.name} groups {first}-{number}", inputs, args, float(size)))
        first_row += sum(g.rows for g in file.groups[first : number + 1])
        first, size = number + 1, 0
    return units


def _outside(spec: Spec, low: int | None, high: int | None) -> bool:
    """True if statistics prove that no document of a row group belongs to the split."""
    if low is None or high is None or low <= spec.last_train:
        return False
    return not any(low <= order <= high for order in spec.validation_orders)


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
