"""Near-duplicates between the splits: which training document each validation document resembles.

- MinHash over word 5-grams, 112 minima in 14 bands of 8, as FineWeb did. Texts that agree in any
  band are a pair: half of those with a Jaccard similarity of 0.72, nearly all above 0.85.
- datasketch is the reference; rensa signs the same n-grams with other permutations.
- For every validation document and band: the first training document, in the order of the input,
  with the same band, whatever the units. Linear: one task per band looks them up unit by unit, so
  that no unit offers a candidate where an earlier one has. Minima of a pair's training document
  travel with it, and a published file's validation documents are in sections of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tangobench.errors import UsageError
from tangobench.pipeline.core import build, shards
from tangobench.pipeline.core.build import Job, Output, SideFile, Stage
from tangobench.pipeline.core.shards import NDArray, Section, Sections
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.fineweb.decisions import publish_tables, side_files
from tangobench.pipeline.fineweb.keys import by_part
from tangobench.pipeline.fineweb.spec import NearEngine, NearMode
from tangobench.pipeline.fineweb.units import (
    VALIDATION,
    DocumentUnit,
    bounds_of,
    run_parts,
    run_units,
    sections,
)

FILE_ROWS: Final = 1 << 22  # documents of the input per file of pairs, until there are
MOST_FILES: Final = 32  # files: more would be a range read per file and unit, for nothing
BANDS: Final = 14
BAND_ROWS: Final = 8
NGRAM: Final = 5
PERMUTATIONS: Final = BANDS * BAND_ROWS
BATCH_BYTES: Final = 1 << 22  # of text that is signed together; its n-grams take eleven times that
_SEED: Final = 1
_NO_WORD: Final = r"[^\pL\pM\pN_\s]+"
_ASCII: Final = np.frombuffer(  # byte to byte; those of other characters stay as they are
    bytes(ord(c.lower()) if c.isalnum() or c == "_" else 32 for c in map(chr, range(128)))
    + bytes(range(128, 256)),
    np.uint8,
)
_FILLER: Final = "\0"
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_PAIR: Final = np.dtype([("validation", "<i8"), ("training", "<i8")])
_NO_TEXT: Final = pa.array([], pa.large_string())


def _mix(values: NDArray) -> NDArray:
    values = (values ^ (values >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return np.asarray(values ^ (values >> np.uint64(32)))


def _split(texts: pa.Array) -> pa.Array:
    """Words in lower case; ASCII, where half of the time is saved, by a table, the rest by a
    regex: a space is put for what is no word."""
    valid, offsets, data = texts.buffers()
    if data is not None:
        buffers = [valid, offsets, pa.py_buffer(_ASCII[np.frombuffer(data, np.uint8)])]
        texts = pa.Array.from_buffers(texts.type, len(texts), buffers, offset=texts.offset)
    if pc.all(pc.string_is_ascii(texts)).as_py():
        return pc.ascii_split_whitespace(pc.ascii_trim_whitespace(texts))
    texts = pc.replace_substring_regex(pc.utf8_lower(texts), _NO_WORD, " ")
    return pc.utf8_split_whitespace(pc.utf8_trim_whitespace(texts))


def _words(texts: pa.Array) -> pa.Array:
    """Lists of at least five words; short texts are filled up with a word that no text has."""
    words = _split(texts)
    counts = pc.list_value_length(words).to_numpy()
    short = np.flatnonzero(counts < NGRAM)
    if len(short) == 0:
        return words
    few = words.take(pa.array(short)).to_pylist()
    longer = pa.array([some + [_FILLER] * (NGRAM - len(some)) for some in few], words.type)
    place = np.arange(len(words))
    place[short] = len(words) + np.arange(len(short))
    return pa.concat_arrays([words, longer]).take(pa.array(place))


def ngram_hashes(texts: pa.Array) -> tuple[NDArray, list[int]]:
    """Hashes of all word 5-grams, and where each text's begin; every word is hashed once."""
    words = _words(texts)
    counts = pc.list_value_length(words).to_numpy().astype(np.int64)
    coded = words.flatten().dictionary_encode()
    table = [xxhash.xxh3_64_intdigest(word.encode()) for word in coded.dictionary.to_pylist()]
    hashes = np.array(table, np.uint64)[coded.indices.to_numpy()]
    rolled = np.zeros(max(0, len(hashes) - NGRAM + 1), np.uint64)
    for place in range(NGRAM):
        rolled = rolled * _ODD + hashes[place : place + len(rolled)]
    inside = np.ones(len(rolled), np.bool_)  # n-grams that do not run into the next text
    for step in range(1, NGRAM):
        inside[np.cumsum(counts)[:-1] - step] = False
    return _mix(rolled[inside]), [0, *np.cumsum(counts - NGRAM + 1).tolist()]


def signatures(texts: pa.Array, engine: NearEngine) -> NDArray:
    """One row of 112 minima per text; large batches are signed in parts."""
    if texts.nbytes > BATCH_BYTES and len(texts) > 1:
        cut = len(texts) // 2
        parts = (pa.concat_arrays([part, part[:0]]) for part in (texts[:cut], texts[cut:]))
        return np.concatenate([signatures(part, engine) for part in parts])
    hashes, offsets = ngram_hashes(texts)
    if engine == "rensa":
        return _sign_rensa(hashes, offsets)
    from datasketch import MinHash

    rows = np.empty((len(texts), PERMUTATIONS), np.uint32)
    for n in range(len(texts)):
        sketch = MinHash(num_perm=PERMUTATIONS, seed=_SEED)
        sketch.update_batch([h.tobytes() for h in hashes[offsets[n] : offsets[n + 1]]])
        rows[n] = sketch.hashvalues
    return rows


def _sign_rensa(hashes: NDArray, offsets: list[int]) -> NDArray:
    try:
        from rensa import RMinHash
    except ImportError:
        what = "near_engine is rensa, which is not installed"
        fix = "pip install 'tangobench[fast]', or set near_engine to datasketch"
        raise UsageError(what, kind="engine-missing", fix=fix) from None
    sign = RMinHash.digest_matrix_from_flat_token_hashes
    matrix = sign(hashes, offsets, num_perm=PERMUTATIONS, seed=_SEED)
    return np.array(matrix.to_rows(), np.uint32).reshape(-1, PERMUTATIONS)


def band_keys(rows: NDArray) -> NDArray:
    """14 keys per text; equal keys mean equal bands, up to a chance of 2^-64."""
    bands = rows.reshape(-1, BANDS, BAND_ROWS)
    keys = np.broadcast_to(np.arange(BANDS, dtype=np.uint64), bands.shape[:2]).copy()
    for place in range(BAND_ROWS):
        keys = _mix(keys * _ODD + bands[:, :, place].astype(np.uint64))
    return keys


class SignResult(Sections):
    """Kept documents of both sides.

    Sections: the signed training documents, each band of training, each band of validation, the
    signed validation documents of each file.
    """

    validation: int
    train: int


def sign_unit(
    unit: DocumentUnit, engine: NearEngine, parts: int, store: Store
) -> Output[SignResult]:
    """The signatures of a unit's kept documents; pairs will be published in `parts` files."""
    documents = unit.load(store)
    kept = documents.where(documents.kept)
    minima = np.empty((len(kept), PERMUTATIONS), np.uint32)
    for place, texts in unit.texts_of(kept):
        minima[place] = signatures(texts, engine)
    numbers = kept.row + unit.base

    def signed(at: NDArray) -> dict[str, shards.Packable]:
        names = kept.ident.take(pa.array(at))
        return {"document": numbers[at], "minima": minima[at].reshape(-1), "id": names}

    early, late = (np.flatnonzero((kept.partition == VALIDATION) == side) for side in (False, True))
    order, cuts = by_part(numbers[late] % parts, parts)
    data, bounds = shards.pack_sections(
        [
            signed(early),
            *({"keys": keys} for keys in band_keys(minima[early]).T),
            *({"document": numbers[late], "keys": keys} for keys in band_keys(minima[late]).T),
            *(signed(late[order[a:b]]) for a, b in pairwise(cuts)),
        ]
    )
    return Output(data, {"validation": len(late), "train": len(early), "bounds": bounds})


def first_matches(
    validation: tuple[Section, ...], train: tuple[Section, ...], store: Store
) -> Output[Sections]:
    """For each validation document the first training document with the same key in one band.

    A section per training unit; `training` is a place among the unit's signed training documents.
    """
    late = [shards.read(section, store) for section in validation]
    keys, owner = np.unique(np.concatenate([part["keys"] for part in late]), return_inverse=True)
    unit, first = np.full(len(keys), -1), np.zeros(len(keys), np.int64)
    for number, section in enumerate(train):
        found, place = np.unique(shards.read(section, store)["keys"], return_index=True)
        at = np.minimum(np.searchsorted(keys, found), len(keys) - 1)
        new = (keys[at] == found) & (unit[at] < 0)
        unit[at[new]], first[at[new]] = number, place[new]
    rows = np.empty(len(owner), _PAIR)
    rows["validation"] = np.concatenate([part["document"] for part in late])
    rows["training"] = first[owner]
    order = np.argsort(unit[owner], kind="stable")
    cuts = np.searchsorted(unit[owner][order], np.arange(len(train) + 1)).tolist()
    data, bounds = shards.pack_ranges({"rows": rows[order]}, cuts)
    return Output(data, {"bounds": bounds})


def match_unit(
    candidates: tuple[Section, ...], train: Section, parts: int, store: Store
) -> Output[Sections]:
    """A unit's pairs with the id and minima of its signed training document, by file."""
    rows = np.concatenate([shards.read(section, store)["rows"] for section in candidates])
    rows = np.unique(rows)  # a pair is a candidate in every band that it shares
    order, cuts = by_part(rows["validation"] % parts, parts)
    rows, mine = rows[order], shards.read(train, store)
    at = rows["training"].copy()
    rows["training"] = mine["document"][at]
    minima = mine["minima"].reshape(-1, PERMUTATIONS)[at]
    ids = shards.arrow_texts(mine, "id").take(pa.array(at))
    data, bounds = shards.pack_sections(
        {"rows": rows[a:b], "id": ids[a:b], "minima": minima[a:b].reshape(-1)}
        for a, b in pairwise(cuts)
    )
    return Output(data, {"bounds": bounds})


class PairsResult(build.TableResult):
    """`twins` are validation documents with a near twin."""

    twins: int


def write_pairs(
    pairs: tuple[Section, ...], validation: tuple[Section, ...], store: Store
) -> build.Streamed[PairsResult]:
    """One published file: the pairs by validation and then by training document, compared."""
    found = [shards.read(section, store) for section in pairs]
    rows = np.concatenate([np.empty(0, _PAIR), *(part["rows"] for part in found)])
    twins = np.unique(rows["validation"])
    names, late = [_NO_TEXT], [np.empty((0, PERMUTATIONS), np.uint32)]
    for part in (shards.read(section, store) for section in validation):
        at = np.flatnonzero(np.isin(part["document"], twins))
        names.append(shards.arrow_texts(part, "id").take(pa.array(at)))
        late.append(part["minima"].reshape(-1, PERMUTATIONS)[at])
    owner, theirs = np.searchsorted(twins, rows["validation"]), np.concatenate(late)
    equal, bands, start = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.uint8), 0
    for part in found:
        place = slice(start, start := start + len(part["rows"]))
        same = part["minima"].reshape(-1, PERMUTATIONS) == theirs[owner[place]]
        equal[place] = same.sum(axis=1)
        bands[place] = same.reshape(-1, BANDS, BAND_ROWS).all(axis=2).sum(axis=1)
    order = np.lexsort((rows["training"], rows["validation"]))
    training = pa.concat_arrays([_NO_TEXT, *(shards.arrow_texts(part, "id") for part in found)])
    table = pa.table(
        {
            "validation_id": pa.concat_arrays(names).take(pa.array(owner[order])).cast(pa.string()),
            "training_id": training.take(pa.array(order)).cast(pa.string()),
            "bands": bands[order],
            "similarity": equal[order] / PERMUTATIONS,
        }
    )
    made = publish_tables([table], table.nbytes)
    return build.Streamed(lambda sink: {**made.write(sink), "twins": len(twins)}, made.size)


def list_drops(
    pairs: tuple[Section, ...], units: tuple[int, ...], store: Store
) -> Output[Sections]:
    """Validation documents with a near twin, by unit; `units` are the bounds of units."""
    found = [shards.read(section, store)["rows"]["validation"] for section in pairs]
    twins = np.unique(np.concatenate([np.empty(0, np.int64), *found]))
    data, bounds = shards.pack_ranges({"document": twins}, np.searchsorted(twins, units).tolist())
    return Output(data, {"bounds": bounds})


SIGN: Final = Stage("fineweb-near-sign", 6, sign_unit)
FIRST: Final = Stage("fineweb-near-first", 3, first_matches)
MATCH: Final = Stage("fineweb-near-match", 7, match_unit)
TABLES: Final = Stage("fineweb-near-tables", 3, write_pairs)
DROPS: Final = Stage("fineweb-near-drops", 3, list_drops)


def audit(
    job: Job, units: Sequence[DocumentUnit], *, mode: NearMode, engine: NearEngine
) -> tuple[list[DocumentUnit], dict[str, Any], list[SideFile]]:
    """Find, publish and, if asked for, drop validation documents with a near twin in training.

    The units, with dropped documents marked; numbers for the lock; the published tables.
    """
    if mode == "off":
        return list(units), {"mode": mode}, []
    bounds = bounds_of(units)
    parts = min(MOST_FILES, -(-bounds[-1] // FILE_ROWS))
    signed = run_units(job, SIGN, units, ((unit, engine, parts) for unit in units))
    late = [record for record in signed if record.result["validation"]]
    early = [(u, r) for u, r in zip(units, signed, strict=True) if late and r.result["train"]]
    records = [record for _, record in early]
    todo = (
        (sections(late, 1 + BANDS + band), sections(records, 1 + band))
        for band in range(BANDS if early else 0)
    )
    first = run_parts(job, FIRST, "band", todo)
    args = ((sections(first, n), Section.of(r, 0), parts) for n, r in enumerate(records))
    matched = run_units(job, MATCH, [unit for unit, _ in early], args)
    pairs = (
        (sections(matched, part), sections(late, 1 + 2 * BANDS + part)) for part in range(parts)
    )
    tables = run_parts(job, TABLES, "pairs", pairs)
    notes = {
        "mode": mode,
        "engine": engine,
        "validation_documents": sum(record.result["validation"] for record in signed),
        "train_documents": sum(record.result["train"] for record in signed),
        "with_near_twin": sum(record.result["twins"] for record in tables),
    }
    if mode == "drop":
        found = tuple(section for n in range(len(early)) for section in sections(first, n))
        (drops,) = job.run(DROPS, [DROPS.unit("all pairs", found, bounds)])
        units = [replace(u, near=Section.of(drops, n)) for n, u in enumerate(units)]
    return list(units), notes, side_files("near_duplicates", "pairs", tables)
