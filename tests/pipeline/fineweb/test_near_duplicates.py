from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from tangobench.errors import UsageError
from tangobench.manifests.fineweb_sample import Draw, article
from tangobench.pipeline.fineweb import near_duplicates

ENGINES = ["rensa", "datasketch"]


def words(count, seed):
    return article(Draw("near", seed), count).split()


def edited(original, share, seed):
    """A copy with a share of its words replaced, spread evenly."""
    picker = random.Random(seed)
    changed = list(original)
    for at in picker.sample(range(len(changed)), int(share * len(changed))):
        changed[at] = f"word{picker.getrandbits(60)}"
    return changed


def matches(texts, engine):
    keys = near_duplicates.band_keys(
        near_duplicates.signatures(pa.array(texts, pa.large_string()), engine)
    )
    return (keys[0::2] == keys[1::2]).any(axis=1)


@pytest.mark.parametrize("engine", ENGINES)
def test_near_copies_are_found_and_others_are_not(engine):
    close, far = [], []
    for seed in range(120):
        original = words(300, seed)
        close += [" ".join(original), " ".join(edited(original, 0.01, seed))]
        far += [" ".join(original), " ".join(words(300, 1000 + seed))]
    assert matches(close, engine).mean() > 0.95
    assert matches(far, engine).mean() < 0.02


def test_recall_of_the_fast_engine_equals_the_reference():
    """Pairs around the threshold, where recall is neither 0 nor 1."""
    texts = []
    for seed in range(300):
        original = [f"w{seed}x{n}" for n in range(200)]
        texts += [" ".join(original), " ".join(edited(original, 0.025, seed))]
    reference, fast = (matches(texts, engine).mean() for engine in ("datasketch", "rensa"))
    assert 0.4 < reference < 0.999
    assert abs(reference - fast) < 0.09  # three standard errors of 300 pairs


def test_ngrams_are_those_of_five_words():
    hashes, offsets = near_duplicates.ngram_hashes(
        pa.array(["one two three four five six", "One TWO, three: four five"])
    )
    assert offsets == [0, 2, 3]
    assert hashes[0] == hashes[2]  # case and punctuation do not count
    assert len(set(hashes.tolist())) == 2


def test_short_and_empty_texts_have_one_ngram():
    hashes, offsets = near_duplicates.ngram_hashes(pa.array(["", "one", "one two", "!?"]))
    assert offsets == [0, 1, 2, 3, 4]
    assert hashes[0] == hashes[3] and len(set(hashes.tolist())) == 3


@pytest.mark.parametrize("engine", ENGINES)
def test_signatures_do_not_depend_on_the_batch(engine, monkeypatch):
    texts = [" ".join(words(60, seed)) for seed in range(6)]
    together = near_duplicates.signatures(pa.array(texts, pa.large_string()), engine)
    alone = np.concatenate([near_duplicates.signatures(pa.array([text]), engine) for text in texts])
    assert np.array_equal(together, alone)
    monkeypatch.setattr(near_duplicates, "BATCH_BYTES", 40)  # cut into parts
    parts = near_duplicates.signatures(pa.array(texts, pa.large_string())[1:], engine)
    assert np.array_equal(parts, together[1:])


def test_band_keys_tell_bands_apart():
    rows = np.zeros((1, near_duplicates.BANDS * near_duplicates.BAND_ROWS), np.uint64)
    assert len(set(near_duplicates.band_keys(rows)[0].tolist())) == near_duplicates.BANDS


def test_missing_engine_is_a_usage_error(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "rensa", None)
    with pytest.raises(UsageError, match="rensa"):
        near_duplicates.signatures(pa.array(["text"]), "rensa")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_ascii_texts_have_the_words_that_the_unicode_path_finds(kind):
    every = "".join(map(chr, range(128)))
    texts = [every, every * 3, "A_b-C d\x0be\x1cf\tg", "", " - ", "Straße No 1", "x" * 9, "\u00e9"]
    found = near_duplicates._words(pa.array([*texts, "cut"], kind).slice(0, len(texts))).to_pylist()
    with_letter = [f"{text} \u00fcbung" for text in texts]  # one other letter: the general path
    general = near_duplicates._words(pa.array(with_letter, kind)).to_pylist()
    for ascii_words, words in zip(found, general, strict=True):
        real = [word for word in ascii_words if word != "\0"]
        assert [w for w in real if w] == [w for w in words if w not in ("\0", "\u00fcbung", "")]
