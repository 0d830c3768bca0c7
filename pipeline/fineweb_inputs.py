"""The input of a FineWeb-Edu build, cut into units: ranges of row groups, or of the sample.

- Files are known by their bytes and taken in the order of their sha256; the same bytes twice are
  one file. They are hashed on every run, so a changed file is never taken for the old one.
- What decides a unit (sha256, row groups, rules) and what it takes to read it (URL) are apart.

Usage: `inputs = find_inputs(spec, "data/*.parquet", job)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tangobench.errors import InputError
from tangobench.pipeline import fineweb_sample
from tangobench.pipeline.build import Job, Unit
from tangobench.pipeline.fineweb_dedup import partitions_for
from tangobench.pipeline.fineweb_read import FileInfo, inspect
from tangobench.pipeline.fineweb_spec import Spec
from tangobench.pipeline.hub import HubFolders, Listing, hub_name, list_files, list_hub


@dataclass(frozen=True, slots=True)
class Inputs:
    """The input, cut into units: what decides each and what it takes to read it."""

    units: list[Unit]
    rows: int
    source: dict[str, Any]
    origin: dict[str, Any] = field(default_factory=dict)


def find_inputs(spec: Spec, source: str | None, job: Job) -> Inputs:
    """The units of a source; files are hashed and their footers checked, on the job's workers."""
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
