"""Tokenizers of your own: ids are the library's, text is kept, and every fault is a typed error."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers_made import EOT, KINDS, TEXTS, document, register, write

from tangobench.cli import main
from tangobench.errors import InputError, TangobenchError, UsageError
from tangobench.pipeline import api
from tangobench.pipeline.core.lock import read_lock
from tangobench.pipeline.core.shard_reader import verify
from tangobench.pipeline.core.spec import load_spec
from tangobench.pipeline.fineweb import packing
from tangobench.pipeline.lean.fetch import package_files
from tangobench.pipeline.lean.proofs import extract
from tangobench.pipeline.lean.spec import Spec as LeanSpec
from tangobench.pipeline.lean.spec import split_of
from tangobench.pipeline.reading import open_dataset
from tangobench.pipeline.tokenizer import training
from tangobench.pipeline.tokenizer.base import gpt2
from tangobench.pipeline.tokenizer.use import make, read_definition, save, saved

LEAN = {path: data for path, data in package_files().items() if path.startswith("Sample/")}
MANIFEST = """
kind = "documents"
context = 32
near_duplicates = "off"
tokenizer = {name}
columns = {{ id = "id" }}
split = {{ share = 0.3 }}
"""


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """Each kind's name for a manifest, and the library's own way to ids."""
    folder = tmp_path_factory.mktemp("tokenizers")
    encoding = register()
    found = {"tiktoken": (encoding.name, encoding.encode_ordinary)}
    for kind in KINDS[:3]:
        path = write(folder / f"{kind}.json", kind)
        library = Tokenizer.from_file(str(path))
        library.encode_special_tokens = True
        ids = lambda text, use=library: use.encode(text, add_special_tokens=False).ids  # noqa: E731
        found[kind] = (str(path), ids)
    return found


@pytest.fixture(scope="module")
def made(named):
    return {kind: make(read_definition(name), EOT) for kind, (name, _) in named.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_library(kind, named, made):
    texts = [*TEXTS, *(data.decode() for data in LEAN.values()), f"a{EOT}b<pad>", "", " \n "]
    values, offsets = made[kind].encode_batch(texts)
    for text, (low, high) in zip(texts, pairwise(offsets), strict=True):
        assert values[low:high].tolist() == named[kind][1](text)
        assert made[kind].decode_bytes(values[low:high]) == text.encode()
        assert made[kind].token_bytes[values[low:high]].sum() == len(text.encode())
    assert values.dtype == (np.uint32 if kind == "wide" else np.uint16)
    assert made[kind].eot not in values


@given(st.lists(st.text(st.characters(codec="utf-8") | st.sampled_from(" \n\r\t<|>'a12∀▁"))))
def test_ids_of_any_text(texts):
    for kind, tokenizer in _ANY.items():
        for text, ids in zip(texts, tokenizer.encode_all(texts), strict=True):
            assert ids.tolist() == _LIBRARY[kind](text)
            assert tokenizer.decode_bytes(ids) == text.encode()


_ANY, _LIBRARY = {}, {}


@pytest.fixture(autouse=True, scope="module")
def _for_hypothesis(named, made):
    _ANY.update(made)
    _LIBRARY.update({kind: ids for kind, (_, ids) in named.items()})


def test_a_special_token_has_an_id_and_no_bytes(made):
    for tokenizer in made.values():
        assert tokenizer.token_bytes[tokenizer.eot] == 0
        assert tokenizer.decode_bytes([tokenizer.eot]) == EOT.encode()
        assert tokenizer.encode(EOT).tolist() != [tokenizer.eot]
        assert tokenizer.identity["eot_id"] == tokenizer.eot


def test_the_identity_is_that_of_the_values(tmp_path):
    loose, tight = tmp_path / "a.json", tmp_path / "b.json"
    found = document()
    loose.write_text(json.dumps(found, indent=4))
    tight.write_text(json.dumps(dict(reversed(found.items()))))
    assert read_definition(str(loose)).sha256 == read_definition(str(tight)).sha256
    found["model"]["merges"].pop()
    tight.write_text(json.dumps(found))
    assert read_definition(str(loose)).sha256 != read_definition(str(tight)).sha256


def _without_byte(found):
    vocabulary = found["model"]["vocab"]
    kept = [token for token in sorted(vocabulary, key=vocabulary.get) if token != "Ĩ"]
    found["model"] |= {"vocab": {token: n for n, token in enumerate(kept)}, "merges": []}


def _gap(found):
    found["model"]["vocab"]["beyond"] = 5000


def _twice(found):
    found["model"]["vocab"]["again"] = 7


def _moved(found):
    found["added_tokens"][1]["id"] = 77


def _set(key, value):
    return lambda found: found.update({key: value})


def _prefix(found):
    found["pre_tokenizer"]["add_prefix_space"] = True


def _strip(found):
    found["added_tokens"].append({**found["added_tokens"][1], "content": "zz"})
    ident = len(found["model"]["vocab"])
    found["added_tokens"][2] |= {"id": ident, "special": False, "lstrip": True, "rstrip": True}


PAD = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None}
PAD |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}
HOSTILE = {
    "no-byte": (_without_byte, "tokenizer-loses-text"),
    "gap": (_gap, "not-a-tokenizer"),
    "same-id": (_twice, "not-a-tokenizer"),
    "added-elsewhere": (_moved, "not-a-tokenizer"),
    "normalizer": (_set("normalizer", {"type": "NFC"}), "tokenizer-loses-text"),
    "lowercase": (_set("normalizer", {"type": "Lowercase"}), "tokenizer-loses-text"),
    "prefix-space": (_prefix, "tokenizer-loses-text"),
    "padding": (_set("padding", PAD), "not-a-tokenizer"),
    "truncation": (
        _set(
            "truncation",
            {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0},
        ),
        "not-a-tokenizer",
    ),
    "dropout": (lambda found: found["model"].update(dropout=0.1), "not-a-tokenizer"),
    "no-model": (_set("model", None), "not-a-tokenizer"),
    "no-vocabulary": (
        _set("model", {"type": "BPE", "vocab": {}, "merges": []}),
        "tokenizer-loses-text",
    ),
    "no-special": (_set("added_tokens", []), "eot-missing"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_a_typed_error(what, tmp_path):
    change, kind = HOSTILE[what]
    found = document()
    change(found)
    (tmp_path / "t.json").write_text(json.dumps(found))
    with pytest.raises(InputError) as error:
        make(read_definition(str(tmp_path / "t.json")), EOT)
    assert error.value.kind == kind
    assert error.value.fix


def test_another_end_token_is_named_as_it_would_work(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(document()))
    definition = read_definition(str(tmp_path / "t.json"))
    with pytest.raises(InputError) as error:
        make(definition, "</s>")
    assert error.value.kind == "eot-missing"
    assert make(definition, error.value.fix.split('"')[1]).eot == make(definition, EOT).eot


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"null", b"\xff", b'{"a": NaN}', b"[" * 100_000, b'{"a": 1, "a": 2}'],
)
def test_what_is_no_tokenizer_is_a_typed_error(data, tmp_path):
    (tmp_path / "t.json").write_bytes(data)
    with pytest.raises(InputError, match="not a usable tokenizer"):
        make(read_definition(str(tmp_path / "t.json")), EOT)


def test_text_that_only_a_later_document_loses(tmp_path):
    found = document()
    _strip(found)
    (tmp_path / "t.json").write_text(json.dumps(found))
    tokenizer = make(read_definition(str(tmp_path / "t.json")), EOT)
    assert tokenizer.encode("a zb").tolist()
    with pytest.raises(InputError) as error:
        tokenizer.encode("a  zz  b")
    assert error.value.kind == "tokenizer-loses-text"


def test_a_word_that_is_a_special_tokens_name(tmp_path):
    """Without a pattern and with `ignore_merges`, a whole text could be looked up as a token."""
    found = document()
    found["pre_tokenizer"]["use_regex"] = False
    found["model"]["ignore_merges"] = True
    (tmp_path / "t.json").write_text(json.dumps(found))
    with pytest.raises(InputError) as error:
        make(read_definition(str(tmp_path / "t.json")), EOT).encode(EOT)
    assert error.value.kind == "tokenizer-loses-text"


def test_names_and_files_that_are_not_there(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="cl100k_bas") as unknown:
        read_definition("cl100k_bas")
    assert "cl100k_base" in unknown.value.fix
    with pytest.raises(InputError, match="cannot read"):
        read_definition(str(tmp_path / "none.json"))
    (tmp_path / "huge.json").touch()
    os.truncate(tmp_path / "huge.json", 1 << 27)
    with pytest.raises(InputError, match="at most 67,108,864"):
        read_definition(str(tmp_path / "huge.json"))

    def unreachable(name):
        raise OSError("no network")

    monkeypatch.setattr(tiktoken, "get_encoding", unreachable)
    with pytest.raises(InputError) as error:
        read_definition("cl100k_base")
    assert error.value.kind == "vocabulary-missing"


def corpus(folder):
    rng = np.random.default_rng(3)
    words = ["the", "river", "stone", "twelve", "naïve", "theorem", "simp", "123456", "don't"]
    words += ["→", "日本", "\n", "", "x"]
    texts = [" ".join(rng.choice(words, rng.integers(30, 120))) + EOT for _ in range(40)]
    rows = [json.dumps({"text": text, "id": f"d{n}"}) for n, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("\n".join(rows))
    return dict(zip((f"d{n}" for n in range(40)), texts, strict=True))


def build_documents(folder, name, *more):
    (folder / "mine.toml").write_text(MANIFEST.format(name=json.dumps(name)))
    words = ["build", str(folder / "mine.toml"), "--source", str(folder / "corpus.jsonl")]
    return main([*words, "--out", str(folder), "--quiet", *more])


@pytest.mark.parametrize("kind", KINDS)
def test_own_documents(kind, named, tmp_path, capsys):
    name, ids = named[kind]
    texts = corpus(tmp_path)
    assert build_documents(tmp_path, name) == 0
    folder = tmp_path / "mine-full"
    dataset, lock = open_dataset(folder), verify(folder)
    eot = dataset.tokenizer.eot
    assert lock.data["tokenizer"]["sha256"] == read_definition(name).sha256
    assert lock.configs["default"]["masked_target"] == lock.configs["default"]["pad"] == eot
    assert lock.configs["default"]["vocabulary"] == dataset.tokenizer.size
    rows = dataset.rows("default", "train")
    assert rows.tokens(0).dtype == (np.uint32 if kind == "wide" else np.uint16)
    stream = np.concatenate([rows.tokens(i) for i in range(len(rows))]).tolist()
    encoded = sorted(tuple(ids(text)) for text in texts.values())
    found, start = [], 0
    for at in [i for i, token in enumerate(stream) if token == eot]:
        found.append(tuple(stream[start:at]))
        start = at + 1
    assert len(found) > 20
    assert set(found) <= set(encoded)
    assert list(training.documents(dataset))[:-1] == [
        dataset.tokenizer.decode(one) for one in found
    ]
    for tokens in (row["tokens"] for row in dataset.rows("default", "validation")):
        assert any(
            tokens.tolist() == list(one[at : at + 32])
            for one in encoded
            for at in range(0, len(one) - 31, 32)
        )
    capsys.readouterr()
    assert main(["inspect", str(folder), "--row", "0", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert "".join(shown["pieces"][:8]).isprintable() or "\\x" in str(shown["pieces"][:8])
    assert main(["inspect", str(folder), "--jsonl", "-"]) == 0
    assert main(["why", str(folder), "d1"]) == 0
    standalone = [sys.executable, "manifests/verify_standalone.py", str(folder)]
    done = subprocess.run(standalone, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == lock.root


def test_the_folder_is_whole_without_its_source(named, tmp_path):
    path = write(tmp_path / "gone.json")
    corpus(tmp_path)
    assert build_documents(tmp_path, str(path)) == 0
    path.unlink()
    folder = tmp_path / "mine-full"
    assert open_dataset(folder).tokenizer.encode("the").tolist()
    own = folder / "tokenizer.json"
    data = own.read_bytes()
    own.write_bytes(data.replace(b"the", b"teh", 1))
    with pytest.raises(TangobenchError, match=r"tokenizer\.json is corrupt"):
        verify(folder)
    own.unlink()
    with pytest.raises(TangobenchError, match="missing"):
        open_dataset(folder).tokenizer  # noqa: B018
    own.write_bytes(data)
    assert verify(folder).root == read_lock(folder).root


def test_another_tokenizer_is_another_dataset(named, tmp_path, capsys):
    corpus(tmp_path)
    assert build_documents(tmp_path, "gpt2") == 0
    plain = read_lock(tmp_path / "mine-full")
    assert not {"tokenizer", "eot", "tokenizer_sha256"} & plain.spec.keys()
    assert build_documents(tmp_path, named["bytes"][0]) == 3
    assert "tokenizer_sha256" in capsys.readouterr().err
    assert build_documents(tmp_path, "gpt2", "--set", "eot='<pad>'", "--out", str(tmp_path / "b"))
    wrong = ["--set", f"tokenizer_sha256={'0' * 64}", "--out", str(tmp_path / "c")]
    assert build_documents(tmp_path, named["bytes"][0], *wrong) == 3
    other = ["--set", "eot='<pad>'", "--out", str(tmp_path / "d")]
    assert build_documents(tmp_path, named["bytes"][0], *other) == 0
    assert read_lock(tmp_path / "d" / "mine-full").configs["default"]["pad"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_lean_rows_are_what_encoding_every_prefix_gives(kind, named, made, tmp_path):
    name, ids = named[kind]
    overrides = {"tokenizer": name, "prompt_tokens": 60, "proof_tokens": 40}
    built = api.build("lean", out=str(tmp_path), overrides=overrides)
    assert made[kind].gpt2_boundaries == (kind == "bytes")
    spec = load_spec(LeanSpec, "lean", "sample", overrides)
    dataset = open_dataset(built.folder)
    for split in ("train", "validation"):
        expected = []
        for path, data in sorted(LEAN.items()):
            for found in extract(data, spec.kinds) if split_of(path, spec) == split else ():
                prompt = ids(data[: found.proof_start].decode())[-60:]
                proof = ids(data[found.proof_start : found.proof_end].decode())
                if len(proof) <= 40:
                    expected.append([*prompt, *proof, made[kind].eot])
        rows = [row["tokens"].tolist() for row in dataset.rows("proof", split)]
        assert rows == expected
        for row in dataset.rows("source", split):
            piece = LEAN[row["path"]][row["start"] : row["start"] + row["length"]]
            assert dataset.tokenizer.decode_bytes(row["tokens"]) == piece


def test_fineweb_takes_one_too(named, tmp_path):
    spec = load_spec(api.door("fineweb", "Spec"), "fineweb", "sample", {"tokenizer": "x.json"})
    assert spec.tokenizer == "x.json"
    assert dataclasses.replace(spec, tokenizer="gpt2").eot == EOT


def test_training_twice_gives_the_same_bytes(tmp_path, capsys):
    corpus(tmp_path)
    assert build_documents(tmp_path, "gpt2") == 0
    words = ["tokenizer", "train", str(tmp_path / "mine-full"), "--size", "300"]
    script = "import sys; from tangobench.cli import main; sys.exit(main(sys.argv[1:]))"
    for seed in ("1", "2"):
        out = ["--out", str(tmp_path / f"{seed}.json"), "--quiet"]
        run = [sys.executable, "-c", script, *words, *out]
        subprocess.run(run, env={**os.environ, "PYTHONHASHSEED": seed}, check=True)
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()
    own = make(read_definition(str(tmp_path / "1.json")), EOT)
    assert own.size == 300
    assert own.gpt2_boundaries
    assert len(own.encode("the river")) < len(b"the river")
    assert main([*words[:-1], "256", "--out", str(tmp_path / "3.json")]) == 2
    assert "257" in capsys.readouterr().err


def test_a_run_keeps_its_tokenizer(named, tmp_path):
    corpus(tmp_path)
    assert build_documents(tmp_path, named["wide"][0]) == 0
    folder = tmp_path / "mine-full"
    save(folder, read_lock(folder), tmp_path)
    assert saved(tmp_path).identity == open_dataset(folder).tokenizer.identity
    file = tmp_path / "tokenizer.sealed.json"
    file.write_bytes(file.read_bytes().replace(b"unused7", b"unused8", 1))
    with pytest.raises(TangobenchError, match="damaged or edited"):
        saved(tmp_path)


def test_ids_too_wide_for_a_row_are_never_written(made):
    kind = packing.TokenKind("<u4", made["wide"].eot)
    row = np.array([(1, 0, 2, 0, 202340)], packing.INDEX_ROW)
    bucket = packing.Bucket.of([row], [np.array([70_100, 3], np.uint32)])
    found = packing.gather([packing.stretch(bucket, 0, 3)], 0, 3, kind)
    assert found.tolist() == [70_100, 3, made["wide"].eot]
    assert gpt2().dtype == np.uint16


def test_a_model_with_another_vocabulary_model_is_refused(tmp_path):
    library = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1, EOT: 2}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.add_special_tokens([EOT])
    library.save(str(tmp_path / "t.json"))
    with pytest.raises(InputError) as error:
        make(read_definition(str(tmp_path / "t.json")), EOT)
    assert error.value.kind == "tokenizer-loses-text"
