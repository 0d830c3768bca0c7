"""Near-duplicates between the splits: which training document each validation document resembles.

- For every validation document and band: the first training document, in the order of the input,
  with the same band. So there are at most 14 pairs per validation document, and they depend
  neither on units nor on workers. A document's number, modulo their count, says which file.
- A pair says how many of the 14 bands are equal, and the share of equal minima, which estimates
  the Jaccard similarity.
- Linear: the bands of validation are sorted once, and every unit looks its training bands up.

Usage: `near = audit(job, decided, mode="report", engine="rensa")`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tangobench.pipeline.core import arrays
from tangobench.pipeline.core.arrays import NDArray, Section
from tangobench.pipeline.core.build import (
    Arguments,
    Job,
    Output,
    Record,
    SideFile,
    Stage,
    Streamed,
    UnitResult,
)
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.fineweb.decisions import publish_tables, side_files
from tangobench.pipeline.fineweb.documents import VALIDATION, DecidedUnit
from tangobench.pipeline.fineweb.encode import pick
from tangobench.pipeline.fineweb.near_duplicates import (
    BANDS,
    PERMUTATIONS,
    band_keys,
    signatures,
)
from tangobench.pipeline.fineweb.resolve import SectionsResult
from tangobench.pipeline.fineweb.spec import NearEngine, NearMode

FILE_ROWS: Final = 1 << 22  # documents of the input per file of pairs, until there are
MOST_FILES: Final = 32  # files: more would be a range read per file and unit, for nothing
_CANDIDATE: Final = np.dtype([("validation", "<i8"), ("training", "<i8"), ("band", "u1")])


@dataclass(frozen=True, slots=True)
class SignArgs(Arguments):
    """A unit, and who signs."""

    unit: DecidedUnit
    engine: NearEngine


@dataclass(frozen=True, kw_only=True, slots=True)
class SignResult(UnitResult):
    """Kept documents of both partitions, and where the four sections begin."""

    validation: int
    train: int
    bounds: list[int]

    def section(self, address: str, number: int) -> Section:
        """0, 1: bands of validation, of training; 2, 3: their minima."""
        return Section.at(address, self.bounds, number)


def sign_unit(args: SignArgs, store: Store) -> Output:
    """Bands and minima of a unit's kept documents."""
    documents = args.unit.load(store)
    kept = documents.where(documents.kept)
    rows, first = kept.row, 0
    minima = np.empty((len(rows), PERMUTATIONS), np.uint32)
    for batch in args.unit.reading.texts() if len(rows) else ():
        low, high = np.searchsorted(rows, [first, first + len(batch)])
        texts = pick(batch, rows[low:high] - first)
        first += len(batch)
        minima[low:high] = signatures(texts, args.engine)
    late = kept.partition == VALIDATION
    sides = [late, ~late]
    banded = [_bands(rows[side] + args.unit.base, minima[side]) for side in sides]
    signed = [{"minima": minima[side].reshape(-1)} for side in sides]
    data, bounds = arrays.pack_sections([*banded, *signed])
    counts = SignResult(validation=int(late.sum()), train=int((~late).sum()), bounds=bounds)
    return Output(data, counts.plain())


def _bands(documents: NDArray, minima: NDArray) -> dict[str, NDArray]:
    keys = band_keys(minima)
    return {"document": documents, **{f"band{b}": keys[:, b] for b in range(BANDS)}}


@dataclass(frozen=True, slots=True)
class SortArgs(Arguments):
    """One band of all validation documents."""

    band: int
    sections: tuple[Section, ...]


def sort_band(args: SortArgs, store: Store) -> Output:
    """Validation documents by their key in one band."""
    found = [arrays.read(section, store) for section in args.sections]
    keys = np.concatenate([part[f"band{args.band}"] for part in found])
    order = np.argsort(keys, kind="stable")
    documents = np.concatenate([part["document"] for part in found])
    return Output(arrays.pack({"keys": keys[order], "document": documents[order]}))


@dataclass(frozen=True, slots=True)
class Signed(Arguments):
    """The signatures of a unit's validation documents; `base` is its first document's number."""

    base: int
    bands: Section
    minima: Section


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchArgs(Arguments):
    """A unit with signed training documents, and the validation documents by band."""

    unit: DecidedUnit
    bands: Section
    minima: Section
    sorted_bands: tuple[str, ...]
    validation: tuple[Signed, ...]
    parts: int

    def key(self) -> Any:
        """The sorted bands follow from the signatures; they are named all the same."""
        signed = [signed.key() for signed in self.validation]
        mine = [self.unit.key(), self.bands, self.minima]
        return [mine, self.sorted_bands, signed, self.parts]


def match_unit(args: MatchArgs, store: Store) -> Output:
    """Candidates: per validation document and band, the unit's first document with the same."""
    train = arrays.read(args.bands, store)
    found = [_match_band(train, b, address, store) for b, address in enumerate(args.sorted_bands)]
    rows = np.concatenate([np.empty(0, _CANDIDATE), *found])
    part = rows["validation"] % args.parts
    order = np.lexsort((rows["training"], rows["band"], rows["validation"], part))
    rows, cuts = rows[order], np.searchsorted(part[order], np.arange(args.parts + 1)).tolist()
    equal_bands, equal_minima = _compare(args, rows, train, store)
    at = rows["training"] - args.unit.base
    idents = arrays.arrow_texts(arrays.read(args.unit.documents, store), "id").take(pa.array(at))
    sections = [
        {
            "rows": rows[a:b],
            "bands": equal_bands[a:b],
            "minima": equal_minima[a:b],
            **arrays.pack_texts("id", idents.slice(a, b - a)),
        }
        for a, b in pairwise(cuts)
    ]
    data, bounds = arrays.pack_sections(sections)
    return Output(data, SectionsResult(bounds).plain())


def _match_band(train: dict[str, NDArray], band: int, address: str, store: Store) -> NDArray:
    keys, first = np.unique(train[f"band{band}"], return_index=True)
    wanted = arrays.unpack(store.read(address))
    low = np.searchsorted(wanted["keys"], keys, side="left")
    count = np.searchsorted(wanted["keys"], keys, side="right") - low
    offset = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    rows = np.empty(len(offset), _CANDIDATE)
    rows["validation"] = wanted["document"][np.repeat(low, count) + offset]
    rows["training"] = np.repeat(train["document"][first], count)
    rows["band"] = band
    return rows


def _compare(
    args: MatchArgs, rows: NDArray, train: dict[str, NDArray], store: Store
) -> tuple[NDArray, NDArray]:
    """How many bands and minima are equal, pair by pair."""
    mine = np.searchsorted(train["document"], rows["training"])
    ours = arrays.read(args.minima, store)["minima"].reshape(-1, PERMUTATIONS)
    bands, minima = np.zeros(len(rows), np.uint8), np.zeros(len(rows), np.uint8)
    bases = [signed.base for signed in args.validation]
    owner = np.searchsorted(bases, rows["validation"], side="right") - 1
    for number in np.unique(owner).tolist():
        pairs = np.flatnonzero(owner == number)
        signed = args.validation[number]
        theirs = arrays.read(signed.bands, store)
        at = np.searchsorted(theirs["document"], rows["validation"][pairs])
        for band in range(BANDS):
            name = f"band{band}"
            bands[pairs] += theirs[name][at] == train[name][mine[pairs]]
        signature = arrays.read(signed.minima, store)["minima"].reshape(-1, PERMUTATIONS)
        minima[pairs] = (signature[at] == ours[mine[pairs]]).sum(axis=1)
    return bands, minima


@dataclass(frozen=True, slots=True)
class PairsArgs(Arguments):
    """The candidates for one file, and the units that hold its validation documents."""

    candidates: tuple[Section, ...]
    units: tuple[tuple[int, Section], ...]


@dataclass(frozen=True, slots=True)
class PairsResult(UnitResult):
    """Validation documents with a near twin."""

    twins: int


def choose_pairs(args: PairsArgs, store: Store) -> Output:
    """Of all units' candidates the first training document per validation document and band."""
    found = [arrays.read(section, store) for section in args.candidates]
    rows = np.concatenate([np.empty(0, _CANDIDATE), *(part["rows"] for part in found)])
    order = np.lexsort((rows["training"], rows["band"], rows["validation"]))
    order = order[_first(rows[order], "validation", "band")]
    order = order[np.lexsort((rows["training"][order], rows["validation"][order]))]
    order = order[_first(rows[order], "validation", "training")]
    chosen = rows[order]
    none = pa.array([], pa.large_string())
    idents = pa.concat_arrays([none, *(arrays.arrow_texts(part, "id") for part in found)])
    pairs = {
        "validation": chosen["validation"],
        **{
            name: np.concatenate([np.empty(0, np.uint8), *(part[name] for part in found)])[order]
            for name in ("bands", "minima")
        },
        **arrays.pack_texts("validation_id", _idents(args.units, chosen["validation"], store)),
        **arrays.pack_texts("training_id", idents.take(pa.array(order))),
    }
    twins = len(np.unique(chosen["validation"]))
    return Output(arrays.pack(pairs), PairsResult(twins).plain())


def _first(rows: NDArray, *names: str) -> NDArray:
    """True where a row differs from the one before it in a field."""
    first = np.ones(len(rows), np.bool_)
    first[1:] = np.any([rows[name][1:] != rows[name][:-1] for name in names], axis=0)
    return first


def _idents(units: Sequence[tuple[int, Section]], documents: NDArray, store: Store) -> pa.Array:
    """The ids of documents, given by ascending number."""
    bases = [base for base, _ in units]
    cuts = np.searchsorted(documents, [*bases, np.iinfo(np.int64).max]).tolist()
    found = [pa.array([], pa.large_string())]
    for (base, section), (low, high) in zip(units, pairwise(cuts), strict=True):
        if high > low:
            names = arrays.arrow_texts(arrays.read(section, store), "id")
            found.append(names.take(pa.array(documents[low:high] - base)))
    return pa.concat_arrays(found)


@dataclass(frozen=True, slots=True)
class TableArgs(Arguments):
    """An object with pairs."""

    pairs: str


def write_pairs(args: TableArgs, store: Store) -> Streamed:
    """The published table of pairs."""
    found = arrays.unpack(store.read(args.pairs))
    table = pa.table(
        {
            "validation_id": arrays.arrow_texts(found, "validation_id").cast(pa.string()),
            "training_id": arrays.arrow_texts(found, "training_id").cast(pa.string()),
            "bands": found["bands"],
            "similarity": found["minima"] / PERMUTATIONS,
        }
    )
    return publish_tables([table], table.nbytes)


@dataclass(frozen=True, slots=True)
class DropArgs(Arguments):
    """All pairs, and the number of each unit's first document (the last is the total)."""

    pairs: tuple[str, ...]
    bounds: tuple[int, ...]


def list_drops(args: DropArgs, store: Store) -> Output:
    """Validation documents with a near twin, by unit."""
    found = [arrays.unpack(store.read(address))["validation"] for address in args.pairs]
    twins = np.unique(np.concatenate([np.empty(0, np.int64), *found]))
    cuts = np.searchsorted(twins, args.bounds).tolist()
    data, bounds = arrays.pack_sections({"document": twins[a:b]} for a, b in pairwise(cuts))
    return Output(data, SectionsResult(bounds).plain())


SIGN: Final = Stage("fineweb-near-sign", 2, sign_unit)
SORT: Final = Stage("fineweb-near-sort", 1, sort_band)
MATCH: Final = Stage("fineweb-near-match", 3, match_unit)
PAIRS: Final = Stage("fineweb-near-pairs", 1, choose_pairs)
TABLES: Final = Stage("fineweb-near-tables", 1, write_pairs)
DROPS: Final = Stage("fineweb-near-drops", 1, list_drops)


@dataclass(frozen=True, slots=True)
class Near:
    """The units, with those documents marked that are dropped; numbers for the lock; tables."""

    units: list[DecidedUnit]
    notes: dict[str, Any]
    files: list[SideFile] = field(default_factory=list)


def audit(job: Job, units: Sequence[DecidedUnit], *, mode: NearMode, engine: NearEngine) -> Near:
    """Find, publish and, if asked for, drop validation documents with a near twin in training."""
    if mode == "off":
        return Near(list(units), {"mode": mode})
    todo = [SIGN.unit(u.reading.label, SignArgs(u, engine), u.rows) for u in units]
    records = job.run(SIGN, todo)
    signed = [SignResult.of(record) for record in records]
    pairs = _pairs(job, units, records, signed)
    tables = job.run(TABLES, [TABLES.unit("pairs", TableArgs(r.address)) for r in pairs])
    files = side_files("near_duplicates", "pairs", tables)
    notes = {
        "mode": mode,
        "engine": engine,
        "validation_documents": sum(result.validation for result in signed),
        "train_documents": sum(result.train for result in signed),
        "with_near_twin": sum(PairsResult.of(record).twins for record in pairs),
    }
    return Near(_drop(job, units, pairs) if mode == "drop" else list(units), notes, files)


def _pairs(
    job: Job, units: Sequence[DecidedUnit], records: Sequence[Record], signed: Sequence[SignResult]
) -> list[Record]:
    found = list(zip(units, (r.address for r in records), signed, strict=True))
    late = [(unit, address, result) for unit, address, result in found if result.validation]
    sections = tuple(result.section(address, 0) for _, address, result in late)
    bands = range(BANDS if late else 0)
    ordered = job.run(SORT, [SORT.unit(f"band {b + 1}", SortArgs(b, sections)) for b in bands])
    validation = tuple(Signed(u.base, r.section(a, 0), r.section(a, 2)) for u, a, r in late)
    parts = min(MOST_FILES, -(-(units[-1].base + units[-1].rows) // FILE_ROWS))
    todo = []
    for unit, address, result in found:
        if result.train and late:
            args = MatchArgs(
                unit=unit,
                bands=result.section(address, 1),
                minima=result.section(address, 3),
                sorted_bands=tuple(record.address for record in ordered),
                validation=validation,
                parts=parts,
            )
            todo.append(MATCH.unit(unit.reading.label, args, result.train))
    matched = [(record.address, SectionsResult.of(record)) for record in job.run(MATCH, todo)]
    inside = tuple((unit.base, unit.documents) for unit, *_ in late)
    last = []
    for part in range(parts):
        candidates = tuple(result.section(address, part) for address, result in matched)
        last.append(PAIRS.unit(f"pairs {part + 1}/{parts}", PairsArgs(candidates, inside)))
    return job.run(PAIRS, last)


def _drop(job: Job, units: Sequence[DecidedUnit], pairs: Sequence[Record]) -> list[DecidedUnit]:
    bounds = (*(unit.base for unit in units), units[-1].base + units[-1].rows)
    args = DropArgs(tuple(record.address for record in pairs), bounds)
    (drops,) = job.run(DROPS, [DROPS.unit("all pairs", args)])
    result = SectionsResult.of(drops)
    return [u.without(result.section(drops.address, n)) for n, u in enumerate(units)]
