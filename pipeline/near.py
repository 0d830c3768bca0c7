"""Near-duplicates between the splits: MinHash over word 5-grams, 14 bands of 8, as FineWeb did.

- A validation document has a near twin if any of its 14 bands equals one of a kept training
  document's; half of the pairs with a Jaccard similarity of 0.72 are found, nearly all above 0.85.
- Words are runs of letters, marks, digits and underscores, lower case; a text of fewer than five
  words is one n-gram.
- datasketch is the reference. rensa signs the same n-grams with other permutations: equal recall,
  about an order of magnitude faster. The engine is in the spec, because single pairs may differ.
- Memory is O(validation): training is compared unit by unit.

Usage: `twins, notes = audit(job, decided, reading, mode="report", engine="rensa")`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tangobench.errors import UsageError
from tangobench.pipeline.build import Job, Output, Record, Stage, Unit
from tangobench.pipeline.fineweb_decisions import VALIDATION, unit_documents
from tangobench.pipeline.fineweb_dedup import DecidedUnit
from tangobench.pipeline.fineweb_keys import read_texts
from tangobench.pipeline.fineweb_tokens import pick
from tangobench.pipeline.store import Store

Engine = Literal["rensa", "datasketch"]
Mode = Literal["off", "report", "drop"]
Array = np.ndarray[Any, np.dtype[Any]]

BANDS: Final = 14
BAND_ROWS: Final = 8
NGRAM: Final = 5
_PERMUTATIONS: Final = BANDS * BAND_ROWS
_SEED: Final = 1
_NO_WORD: Final = r"[^\pL\pM\pN_\s]+"
_ASCII: Final = np.frombuffer(  # byte to byte; those of other characters stay as they are
    bytes(ord(c.lower()) if c.isalnum() or c == "_" else 32 for c in map(chr, range(128)))
    + bytes(range(128, 256)),
    np.uint8,
)
_FILLER: Final = " \0"
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_ROW: Final = np.dtype([("document", "<i8"), ("bands", "<u8", (BANDS,))])


def _mix(values: Array) -> Array:
    values = (values ^ (values >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return np.asarray(values ^ (values >> np.uint64(32)))


def _clean(texts: pa.Array) -> pa.Array:
    """Lower case, and a space for what is no word; ASCII by a table, the rest by the regex."""
    valid, offsets, data = texts.buffers()
    if data is not None:
        plain = pa.py_buffer(_ASCII[np.frombuffer(data, np.uint8)])
        buffers = [valid, offsets, plain]
        texts = pa.Array.from_buffers(texts.type, len(texts), buffers, offset=texts.offset)
    if not pc.all(pc.string_is_ascii(texts)).as_py():
        texts = pc.replace_substring_regex(pc.utf8_lower(texts), _NO_WORD, " ")
    return pc.utf8_trim_whitespace(texts)


def _words(texts: pa.Array) -> pa.Array:
    """Lists of at least five words; short texts are filled up with a word that no text has."""
    clean = _clean(texts)
    words = pc.utf8_split_whitespace(clean)
    counts = pc.list_value_length(words).to_numpy()
    short = np.flatnonzero(counts < NGRAM)
    if len(short) == 0:
        return words
    filler = pa.array([_FILLER * (NGRAM - count) for count in counts[short]], clean.type)
    longer = pc.binary_join_element_wise(
        clean.take(pa.array(short)), filler, pa.scalar("", clean.type)
    )
    place = np.arange(len(words))
    place[short] = len(words) + np.arange(len(short))
    return pa.concat_arrays([words, pc.utf8_split_whitespace(longer)]).take(pa.array(place))


def ngram_hashes(texts: pa.Array) -> tuple[Array, list[int]]:
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


def signatures(texts: pa.Array, engine: Engine) -> Array:
    """One row of 112 minima per text."""
    hashes, offsets = ngram_hashes(texts)
    if engine == "rensa":
        return _sign_rensa(hashes, offsets)
    from datasketch import MinHash

    rows = np.empty((len(texts), _PERMUTATIONS), np.uint64)
    for n in range(len(texts)):
        sketch = MinHash(num_perm=_PERMUTATIONS, seed=_SEED)
        sketch.update_batch([h.tobytes() for h in hashes[offsets[n] : offsets[n + 1]]])
        rows[n] = sketch.hashvalues
    return rows


def _sign_rensa(hashes: Array, offsets: list[int]) -> Array:
    try:
        from rensa import RMinHash
    except ImportError:
        raise UsageError(
            "near_engine is rensa, which is not installed",
            kind="engine-missing",
            fix="pip install 'tangobench[fast]', or set near_engine to datasketch",
        ) from None
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(
        hashes, offsets, num_perm=_PERMUTATIONS, seed=_SEED
    )
    return np.array(matrix.to_rows(), np.uint64).reshape(-1, _PERMUTATIONS)


def band_keys(rows: Array) -> Array:
    """14 keys per text; equal keys mean equal bands, up to a chance of 2^-64."""
    bands = rows.reshape(-1, BANDS, BAND_ROWS)
    keys = np.broadcast_to(np.arange(BANDS, dtype=np.uint64), bands.shape[:2]).copy()
    for place in range(BAND_ROWS):
        keys = _mix(keys * _ODD + bands[:, :, place])
    return keys


def sign_unit(args: dict[str, Any], store: Store) -> Output:
    """Band keys of a unit's kept documents: validation first, then training."""
    documents = unit_documents(args, store)
    kept = documents.filter(documents["kept"])
    rows = kept["row"].to_numpy()
    signed = np.empty(len(rows), _ROW)
    signed["document"] = rows + args["decided"].unit.base
    first = 0
    for batch in read_texts(args) if len(rows) else ():
        low, high = np.searchsorted(rows, [first, first + len(batch)])
        texts = pick(batch, rows[low:high] - first)
        first += len(batch)
        signed["bands"][low:high] = band_keys(signatures(texts, args["engine"]))
    validation = kept["partition"].to_numpy() == VALIDATION
    data = b"".join((signed[validation].tobytes(), signed[~validation].tobytes()))
    return Output(data, {"validation": int(validation.sum()), "train": int((~validation).sum())})


def match_unit(args: dict[str, Any], store: Store) -> Output:
    """(validation document, training document) for each validation document with a twin here."""
    address, validation, count = args["train"]
    size = _ROW.itemsize
    train = np.frombuffer(store.read_range(address, validation * size, count * size), _ROW)
    sources = [store.read_range(a, 0, n * size) for a, n in args["validation_rows"]]
    wanted = np.concatenate([np.empty(0, _ROW), *(np.frombuffer(s, _ROW) for s in sources)])
    pairs = [_match_band(wanted, train, band) for band in range(BANDS)]
    found = np.concatenate(pairs)
    order = np.lexsort((found[:, 1], found[:, 0]))
    found = found[order]
    first = np.ones(len(found), np.bool_)
    first[1:] = found[1:, 0] != found[:-1, 0]
    return Output(found[first].tobytes(), {"pairs": int(first.sum())})


def _match_band(wanted: Array, train: Array, band: int) -> Array:
    """Each validation document with a training document that has the same band."""
    order = np.lexsort((train["document"], train["bands"][:, band]))
    keys = train["bands"][order, band]
    at = np.searchsorted(keys, wanted["bands"][:, band])
    hit = at < len(keys)
    hit[hit] = keys[at[hit]] == wanted["bands"][hit, band]
    return np.stack([wanted["document"][hit], train["document"][order[at[hit]]]], axis=1)


SIGN: Final = Stage("fineweb-near-sign", 1, sign_unit)
MATCH: Final = Stage("fineweb-near-match", 1, match_unit)


def _match_units(signed: Sequence[Record], rows: list[tuple[str, int]]) -> Iterator[Unit]:
    for n, record in enumerate(signed):
        train = [record.address, record.result["validation"], record.result["train"]]
        yield Unit(f"unit {n + 1}", {"train": train, "validation_rows": rows})


def audit(
    job: Job,
    decided: Sequence[DecidedUnit],
    reading: Sequence[dict[str, Any]],
    *,
    mode: Mode,
    engine: Engine,
) -> tuple[list[list[int]], dict[str, Any]]:
    """Documents to drop per unit (none unless `mode` is drop), and what the lock says of it."""
    nothing: list[list[int]] = [[] for _ in decided]
    if mode == "off":
        return nothing, {"mode": mode}
    signed = job.run(
        SIGN,
        [
            Unit(
                f"unit {n + 1}",
                [d.unit.address, d.unit.base, d.sections, d.train_through, engine],
                {**read, "decided": d, "engine": engine},
                d.unit.rows,
            )
            for n, (d, read) in enumerate(zip(decided, reading, strict=True))
        ],
    )
    rows = [(r.address, r.result["validation"]) for r in signed if r.result["validation"]]
    matched = job.run(MATCH, list(_match_units(signed, rows)))
    pairs = [np.frombuffer(job.store.read(r.address), np.int64).reshape(-1, 2) for r in matched]
    twins = np.unique(np.concatenate([np.empty((0, 2), np.int64), *pairs])[:, 0])
    notes = {
        "mode": mode,
        "engine": engine,
        "validation_documents": sum(count for _, count in rows),
        "train_documents": sum(r.result["train"] for r in signed),
        "with_near_twin": len(twins),
    }
    if mode == "report":
        return nothing, notes
    bounds = [(d.unit.base, d.unit.base + d.unit.rows) for d in decided]
    return [twins[(twins >= a) & (twins < b)].tolist() for a, b in bounds], notes
