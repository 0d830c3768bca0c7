"""From a tokenizer of your own to a trained model that is scored per byte and writes text."""

from __future__ import annotations

import json
import math

import pytest
from tokenizers_made import TEXTS, register, write

from tangobench.cli import main
from tangobench.eval.scoring.result_files import read_result
from tangobench.pipeline.reading import open_dataset


@pytest.mark.parametrize("kind", ["wide", "tiktoken"])
def test_train_score_and_generate(kind, tmp_path, capsys):
    name = register().name if kind == "tiktoken" else str(write(tmp_path / "t.json", kind))
    texts = [json.dumps({"text": f"{n} {TEXTS[n % 2][: 300 + n]}"}) for n in range(30)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(texts))
    (tmp_path / "mine.toml").write_text(
        f'kind = "documents"\ncontext = 32\nnear_duplicates = "off"\ntokenizer = "{name}"\n'
        f'files = "{tmp_path}/corpus.jsonl"\n[split]\nshare = 0.3\n'
    )
    out = ["--out", str(tmp_path), "--quiet"]
    assert main(["build", str(tmp_path / "mine.toml"), *out]) == 0
    small = ("steps=3", "batch=2", "warmup=1", "target_params=20000", "context=32")
    words = [word for pair in small for word in ("--set", pair)]
    folder = tmp_path / "mine-full"
    train = ["train", "--recipe", "sample-fineweb-tango", "--data", str(folder), "--name", "own"]
    assert main([*train, *words, *out]) == 0
    assert main(["eval", "own-s17-101", *out]) == 0
    found = read_result(tmp_path / "results" / "own-s17-101.json")["scores"]["mine"]
    dataset = open_dataset(folder)
    text = b""
    for row in dataset.rows("default", "validation"):
        kept = [t for t in row["tokens"][1:].tolist() if t != dataset.tokenizer.eot]
        text += dataset.tokenizer.decode_bytes(kept)
    assert found["bytes"] == len(text)
    assert found["bits_per_byte"] == pytest.approx(found["sum"] / math.log(2) / len(text))
    for path in folder.rglob("*"):
        path.unlink() if path.is_file() else None  # the run knows its tokenizer without it
    capsys.readouterr()
    words = ["generate", "own-s17-101", "the river", "--tokens", "5", "--json", *out[:2]]
    assert main(words) == 0
    assert isinstance(json.loads(capsys.readouterr().out)["answer"], str)
