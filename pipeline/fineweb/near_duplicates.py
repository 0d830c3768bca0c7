"""MinHash signatures of texts: word 5-grams, 112 minima in 14 bands of 8, as FineWeb did.

- Two texts that agree in any of the 14 bands are candidates: half of the pairs with a Jaccard
  similarity of 0.72 are found, nearly all above 0.85. The share of equal minima estimates it.
- Words are runs of letters, marks, digits and underscores, lower case; a text of fewer than five
  words is one n-gram.
- datasketch is the reference. rensa signs the same n-grams with other permutations: equal recall,
  about an order of magnitude faster. The engine is in the spec, because single pairs may differ.

Usage: `minima = signatures(texts, "rensa"); keys = band_keys(minima)`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tangobench.errors import UsageError
from tangobench.pipeline.core.arrays import NDArray
from tangobench.pipeline.fineweb.spec import NearEngine

BANDS: Final = 14
BAND_ROWS: Final = 8
NGRAM: Final = 5
PERMUTATIONS: Final = BANDS * BAND_ROWS
_SEED: Final = 1
_NO_WORD: Final = r"[^\pL\pM\pN_\s]+"
_ASCII: Final = np.frombuffer(  # byte to byte; those of other characters stay as they are
    bytes(ord(c.lower()) if c.isalnum() or c == "_" else 32 for c in map(chr, range(128)))
    + bytes(range(128, 256)),
    np.uint8,
)
_FILLER: Final = " \0"
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


def _mix(values: NDArray) -> NDArray:
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
    """One row of 112 minima per text."""
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
        raise UsageError(
            "near_engine is rensa, which is not installed",
            kind="engine-missing",
            fix="pip install 'tangobench[fast]', or set near_engine to datasketch",
        ) from None
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(
        hashes, offsets, num_perm=PERMUTATIONS, seed=_SEED
    )
    return np.array(matrix.to_rows(), np.uint32).reshape(-1, PERMUTATIONS)


def band_keys(rows: NDArray) -> NDArray:
    """14 keys per text; equal keys mean equal bands, up to a chance of 2^-64."""
    bands = rows.reshape(-1, BANDS, BAND_ROWS)
    keys = np.broadcast_to(np.arange(BANDS, dtype=np.uint64), bands.shape[:2]).copy()
    for place in range(BAND_ROWS):
        keys = _mix(keys * _ODD + bands[:, :, place].astype(np.uint64))
    return keys
