"""The input of a FineWeb-Edu build, cut into units: ranges of row groups, or of the sample.

- Files are known by their bytes and taken in the order of their sha256; the same bytes twice are
  one file. Local files are hashed on every run, so a changed file is never taken for the old one,
  and one that changes during the build ends it. A sha256 that a hub's index claims is checked once
  per unit store against the whole file.
- What decides a unit (sha256, row groups, rules) and what it takes to read it (URL) are apart.

Usage: `inputs = find_inputs(spec, "data/*.parquet", job)`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tangobench.errors import InputError
from tangobench.pipeline import fineweb_sample
from tangobench.pipeline.build import Job, Output, Stage, Unit
from tangobench.pipeline.fineweb_dedup import partitions_for
from tangobench.pipeline.fineweb_read import FileInfo, hash_file, inspect
from tangobench.pipeline.fineweb_spec import Spec
from tangobench.pipeline.hub import (
    HubFolders,
    Listing,
    SourceFile,
    hub_name,
    list_files,
    list_hub,
)
from tangobench.pipeline.pool import SerialRunner
from tangobench.pipeline.store import Store

Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class Inputs:
    """The input, cut into units: what decides each and what it takes to read it."""

    units: list[Unit]
    rows: int
    source: dict[str, Any]
    origin: dict[str, Any] = field(default_factory=dict)
    stamps: dict[str, Stamp] = field(default_factory=dict)

    def require_unchanged(self) -> None:
        """Refuse files that were written to since they were hashed."""
        for path, before in self.stamps.items():
            if _stamp(path) != before:
                raise InputError(
                    f"{path} changed while it was being read",
                    kind="source-changed",
                    fix="wait until nobody writes to it, then run the same command again",
                    path=path,
                )


def find_inputs(spec: Spec, source: str | None, job: Job) -> Inputs:
    """The units of a source; files are hashed and their footers checked, on the job's workers."""
    if source is None and spec.source == "sample":
        return _sample_inputs(spec)
    listing = list_source(spec, source)
    labels = [file.name for file in listing.files]
    stamps = {file.url: _stamp(file.url) for file in listing.files if "://" not in file.url}
    look = functools.partial(
        inspect, last_train=spec.last_train, validation=tuple(spec.validation_orders)
    )
    # One file is looked at here, while workers still start.
    runner = job.runner if len(labels) > 1 else SerialRunner()
    infos = list(runner.map(look, listing.files, labels))
    job.run(CHECK, [_check_unit(file) for file in listing.files if file.sha256])
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
    return Inputs(units, rows, {"files": identity}, origin, stamps)


def _stamp(path: str) -> Stamp:
    """What changes when a file is written to or replaced; None where this machine has no such."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _check_unit(file: SourceFile) -> Unit:
    inputs = {"sha256": file.sha256, "size": file.size}
    args = {**inputs, "name": file.name, "url": file.url}
    return Unit(file.name, inputs, args, float(file.size or 1))


def check_claim(args: dict[str, Any], store: Store) -> Output:
    """Refuse a file whose bytes are not those that the hub's index promises."""
    del store
    found, size = hash_file(SourceFile(args["name"], args["url"]))
    if (found, size) != (args["sha256"], args["size"]):
        raise InputError(
            f"{args['name']} has {size:,} bytes with sha256 {found}, the hub's index says "
            f"{args['size']:,} bytes with sha256 {args['sha256']}",
            kind="source-changed",
            fix="the hub or a proxy serves another file: get it elsewhere and use --source",
            file=args["name"],
            found=found,
            expected=args["sha256"],
        )
    return Output(b"", {"bytes": size})


CHECK: Final = Stage("fineweb-check", 1, check_claim)


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
    outside = [group.outside for group in file.groups]
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
