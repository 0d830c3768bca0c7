"""The input of a FineWeb-Edu build, cut into units; documents of a unit with their decisions.

- Files are known by their bytes and taken in the order of their sha256; the same bytes twice are
  one file. A file that is read in part is known by the rows of each row group instead.
- Local files are hashed on every run, so a changed file is never taken for the old one, and one
  that changes during the build ends it. The hub's files are downloaded once and then local; with
  `--stream` a sha256 that its index claims is checked once per unit store.
- Decisions are columns beside those of the first pass, row by row; nothing is joined again.
- The same record met twice is one document: only the first is read.
- Near-duplicates that the spec drops are applied when documents are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tangobench.errors import InputError
from tangobench.pipeline.core import shards
from tangobench.pipeline.core.build import (
    Args,
    Arguments,
    Job,
    Nothing,
    Output,
    Record,
    SerialRunner,
    Stage,
)
from tangobench.pipeline.core.remote import PATIENCE
from tangobench.pipeline.core.shards import NDArray, Section, Sections
from tangobench.pipeline.core.spec import bad_value
from tangobench.pipeline.core.store import R, Store
from tangobench.pipeline.fineweb import parquet
from tangobench.pipeline.fineweb.keys import (
    STATUS_NAMES,
    KeysArgs,
    KeysResult,
    Rules,
    partitions_for,
)
from tangobench.pipeline.fineweb.packing import Encoding, one_pass
from tangobench.pipeline.fineweb.parquet import FileInfo, Reading, hash_file, inspect, read_sample
from tangobench.pipeline.fineweb.sources import Listing, SourceFile, hub_name, list_files
from tangobench.pipeline.fineweb.sources.download import download
from tangobench.pipeline.fineweb.sources.hub import HubParts, changed, list_hub
from tangobench.pipeline.fineweb.spec import Part, Spec, config_folder
from tangobench.pipeline.tokenizer.use import Choice

PARTITIONS: Final = ("train", "validation", "ignored")
TRAIN, VALIDATION, OUTSIDE = range(len(PARTITIONS))
REASONS: Final = (
    *("unique", "earliest", "reassigned", "duplicate-content", "duplicate-url"),
    *("duplicate-url-and-content", "duplicate-chain", "near-duplicate", *STATUS_NAMES),
)
UNIQUE, EARLIEST, REASSIGNED, SAME_CONTENT, SAME_URL, SAME_BOTH, CHAIN, NEAR = range(8)
_SAMPLE_UNIT: Final = 640  # documents
Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class Inputs:
    """The input, cut into units."""

    units: list[KeysArgs]
    source: dict[str, Any]
    origin: dict[str, Any] = field(default_factory=dict)
    stamps: dict[str, Stamp] = field(default_factory=dict)

    def require_unchanged(self) -> None:
        """Refuse files that were written to since they were hashed."""
        for path, before in self.stamps.items():
            if _stamp(path) != before:
                what = f"{path} changed while it was being read"
                fix = "wait until nobody writes to it, then run the same command again"
                raise InputError(what, kind="source-changed", fix=fix, path=path)


def find_inputs(spec: Spec, source: str | None, job: Job, tokenizer: Choice) -> Inputs:
    """The units of a source; files are hashed and their footers checked, on the job's workers."""
    if source is None and spec.source == "sample":
        return _sample_inputs(spec, tokenizer)
    listing = list_source(spec, source, job.patience)
    if not job.stream:
        listing = download(listing, job.reporter, job.patience)
    stamps = {file.url: _stamp(file.url) for file in listing.files if not file.afar}
    # One file is looked at here, while workers still start.
    runner = job.runner if len(listing.files) > 1 else SerialRunner()
    infos = list(runner.map(inspect, listing.files, [file.name for file in listing.files]))
    claims = [file for file in listing.files if file.sha256 and file.afar and not file.groups]
    if claims:
        job.run(CHECK, [CHECK.unit(f.name, f, weight=f.size or 1) for f in claims])
    unique = {str(info.file.sha256): info for info in infos}
    files = [unique[sha256] for sha256 in sorted(unique)]
    rows = sum(file.rows for file in files)
    if rows == 0:
        what, fix = f"{len(files)} Parquet files hold no rows", "name files with documents"
        raise InputError(what, kind="source-empty", fix=fix)
    ranges = [reading for file in files for reading in _file_rows(file, spec.unit_bytes)]
    origin = {
        **listing.origin,
        "files": {info.file.name: info.file.sha256 for info in infos},
        "claims": {f.name: f.sha256 for f in listing.files if f.groups and f.sha256},
    }
    source_files = {"files": [file.identity() for file in files]}
    size = sum(group.size for info in infos for group in info.groups)
    return Inputs(_units(spec, ranges, rows, size, tokenizer), source_files, origin, stamps)


def _stamp(path: str) -> Stamp:
    """What changes when a file is written to or replaced; None where this machine has no such."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def check_claim(file: SourceFile, store: Store) -> Output[Nothing]:
    """Refuse a file whose bytes are not those that the hub's index promises."""
    del store
    found, size = hash_file(file)
    if (found, size) != (file.sha256, file.size):
        raise changed(file, f"{size:,} bytes with sha256 {found}")
    return Output(b"", {})


CHECK: Final = Stage("fineweb-check", 2, check_claim)


def list_source(spec: Spec, source: str | None, patience: float = PATIENCE) -> Listing:
    """The input files of a source: None and hub names are read from the hub."""
    hub = spec.hub
    named = (hub.repository, None) if source in (None, "hub") else hub_name(str(source))
    if named is None:
        found = _as_on_the_hub(hub.parts(), list_files(str(source), patience))
    else:
        _require_agreement(spec)
        revision = named[1] or hub.revision
        wanted = HubParts(repository=named[0], revision=revision, parts=hub.parts())
        found = list_hub(wanted, patience)
    return Listing([replace(f, patience=patience) for f in found.files], found.origin)


def _as_on_the_hub(parts: Sequence[Part], listing: Listing) -> Listing:
    """What a profile with limits reads, if the files are in the folders of the repository."""
    chosen: dict[str, SourceFile] = {}
    for part in parts:
        folder = f"/{config_folder(part.config)}/"
        inside = [file for file in listing.files if folder in f"/{file.name}"]
        if not inside or not any(p.files or p.groups for p in parts):
            return listing
        for file in inside[: part.files or None]:
            chosen.setdefault(file.name, replace(file, groups=part.groups))
    return replace(listing, files=list(chosen.values()))


def _require_agreement(spec: Spec) -> None:
    """Refuse a spec whose `validation_dumps` lack the dump that `hub.validation` reads."""
    dump = spec.hub.validation_dump
    if dump is not None and dump not in spec.validation_dumps:
        raise bad_value(
            "validation_dumps",
            list(spec.validation_dumps),
            f"dumps with {dump}, which hub.validation reads; leave it out to have it follow",
        )


def _units(
    spec: Spec, ranges: Sequence[Reading], rows: int, size: int, tokenizer: Choice
) -> list[KeysArgs]:
    rules = Rules(
        train_through=spec.last_train,
        validation=tuple(spec.validation_orders),
        aggressive=spec.url_folding == "aggressive",
        parts=partitions_for(rows),
    )
    encoding = None
    if one_pass(spec, size):
        # Documents of later dumps can be reassigned to training, whatever their size.
        shortest = spec.context if spec.duplicates == "drop" else 0
        encoding = Encoding(spec.seed, shortest, tokenizer)
    return [KeysArgs(reading, rules, encoding) for reading in ranges]


def _sample_inputs(spec: Spec, tokenizer: Choice) -> Inputs:
    total, step = parquet.SAMPLE_ROWS, _SAMPLE_UNIT
    identity = {"generator": "fineweb_sample", "version": parquet.SAMPLE_VERSION, "rows": total}
    ranges = [read_sample(start, min(total, start + step)) for start in range(0, total, step)]
    units = _units(spec, ranges, total, parquet.SAMPLE_TEXT, tokenizer)
    return Inputs(units, identity, {"kind": "sample"})


def _file_rows(file: FileInfo, unit_bytes: int) -> Iterator[Reading]:
    """Ranges of row groups of about `unit_bytes`."""
    first_row = first = size = 0
    for stop, group in enumerate(file.groups, 1):
        size += group.size
        if size >= unit_bytes or stop == len(file.groups):
            yield Reading(file.file, (first, stop), first_row, size)
            first_row += sum(g.rows for g in file.groups[first:stop])
            first, size = stop, 0


@dataclass(frozen=True, slots=True)
class Documents:
    """Columns of a unit's documents; `row` is a document's place in the unit.

    `partition` and `reason` are places in `PARTITIONS` and `REASONS`; keys have two columns.
    """

    row: NDArray
    ident: pa.Array
    dump: NDArray
    status: NDArray
    url: NDArray
    content: NDArray
    size: NDArray
    partition: NDArray
    kept: NDArray
    reason: NDArray
    component: NDArray
    representative: pa.Array
    place: NDArray
    """Hash, first token and number of tokens, where the first pass has encoded."""

    def __len__(self) -> int:
        return len(self.row)

    def where(self, mask: NDArray) -> Documents:
        if mask.all():
            return self
        columns = (getattr(self, field.name) for field in dataclasses.fields(self))
        return Documents(
            *(c[mask] if isinstance(c, np.ndarray) else c.filter(pa.array(mask)) for c in columns)
        )


@dataclass(frozen=True, slots=True)
class DocumentUnit(Arguments):
    """Where a unit's texts, its documents and the decisions on them are.

    `base` is the number of its first document; `near` lists the numbers of those that a near
    duplicate in training drops.
    """

    reading: Reading
    documents: Section
    base: int
    rows: int
    decided: str = ""
    near: Section | None = None
    tokens: Section | None = None
    """Those of the first pass, in hash order and without a container."""

    def key(self) -> Any:
        """All but where the texts are."""
        return [self.documents, self.decided, self.base, self.near]

    def load(self, store: Store) -> Documents:
        """The documents, one per record."""
        first = shards.read(self.documents, store)
        decided = shards.unpack(store.read(self.decided))
        ident = shards.arrow_texts(first, "id")
        kept, reason = decided["kept"], decided["reason"]
        if self.near is not None:
            at = shards.read(self.near, store)["document"] - self.base
            kept, reason = kept.copy(), reason.copy()
            kept[at], reason[at] = False, NEAR
        mask = np.zeros(len(ident), np.bool_)  # the others represent themselves
        mask[decided["linked"]] = True
        representative = shards.arrow_texts(decided, "representative")
        place = np.zeros((self.rows, 3), np.uint64)
        if self.tokens:
            place = np.stack([first[name] for name in ("order", "start", "length")], axis=1)
        documents = Documents(
            row=np.arange(self.rows),
            ident=ident,
            dump=first["dump"],
            status=first["status"],
            url=_pair(first, "url"),
            content=_pair(first, "content"),
            size=first["size"],
            partition=decided["partition"],
            kept=kept,
            reason=reason,
            component=_pair(decided, "component"),
            representative=pc.replace_with_mask(ident, mask, representative),
            place=place,
        )
        return documents.where(~decided["repeated"])

    def texts_of(self, documents: Documents) -> Iterator[tuple[slice, pa.Array]]:
        """The texts of some documents, a batch at a time, and which of the documents they are."""
        rows, first = documents.row, 0
        for batch in self.reading.texts() if len(rows) else ():
            low, high = np.searchsorted(rows, [first, first + len(batch)]).tolist()
            whole = high - low == len(batch)  # and need not be copied
            yield (
                slice(low, high),
                batch if whole else batch.take(pa.array(rows[low:high] - first)),
            )
            first += len(batch)


def _pair(found: dict[str, NDArray], name: str) -> NDArray:
    return np.stack([found[f"{name}_high"], found[f"{name}_low"]], axis=1)


def number_units(
    readings: Iterable[Reading], records: Iterable[Record[KeysResult]]
) -> list[DocumentUnit]:
    """Units of finished keys, their documents numbered through in the order of the input."""
    base, units = 0, []
    for reading, record in zip(readings, records, strict=True):
        rows, last = record.result["rows"], len(record.result["bounds"]) - 2
        tokens = Section.of(record, last) if "checked" in record.result else None
        units.append(DocumentUnit(reading, Section.of(record, 0), base, rows, tokens=tokens))
        base += rows
    return units


def bounds_of(units: Sequence[DocumentUnit]) -> tuple[int, ...]:
    """The number of each unit's first document, and of all documents."""
    return (*(unit.base for unit in units), units[-1].base + units[-1].rows)


def sections(
    records: Iterable[Record[Sections]], number: int, count: int = 1
) -> tuple[Section, ...]:
    return tuple(Section.of(record, number, count) for record in records)


def run_units(
    job: Job, stage: Stage[*Args, R], units: Iterable[DocumentUnit], args: Iterable[tuple[*Args]]
) -> list[Record[R]]:
    pairs = zip(units, args, strict=True)
    return job.run(stage, [stage.unit(u.reading.label, *a, weight=u.rows) for u, a in pairs])


def run_parts(
    job: Job, stage: Stage[*Args, R], what: str, args: Iterable[tuple[*Args]]
) -> list[Record[R]]:
    todo = list(args)
    units = [stage.unit(f"{what} {n}/{len(todo)}", *a) for n, a in enumerate(todo, 1)]
    return job.run(stage, units)
