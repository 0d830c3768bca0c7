"""A quick look at a model: part of the NLL, samples and answers."""

from __future__ import annotations

import json

import pytest
from training import options, tiny_run

from tangobench.cli import main
from tangobench.eval.scoring.generate import answer, samples, spaced
from tangobench.eval.scoring.nll import score
from tangobench.eval.scoring.results import load_model
from tangobench.model.training.loader import Stream
from tangobench.model.training.train import train
from tangobench.pipeline.reading import open_dataset


@pytest.fixture
def trained(tmp_path, make_toy_math):
    make_toy_math(tmp_path)
    return train(tiny_run(), options(tmp_path)), tmp_path


def test_all_rows_are_what_eval_scores(trained):
    folder, out = trained
    model = load_model(folder)
    stream = Stream(open_dataset(out / "dm_math-sample"), "default", "validation")
    whole = score(model, stream).tally()
    found = score(model, stream, rows=spaced(stream, 1000), tokens_at_once=64).tally()
    assert found.count == whole.count
    assert found.sum == pytest.approx(whole.sum, rel=1e-6)
    assert score(model, stream, rows=spaced(stream, 3)).tally().count < whole.count


def test_samples_hold_prompt_answer_and_target(trained):
    folder, out = trained
    model = load_model(folder)
    dataset = open_dataset(out / "dm_math-sample")
    found = list(samples(model, Stream(dataset, "default", "validation"), 4))
    assert [sample["row"] for sample in found] == [0, 3, 6, 10]
    for sample in found:
        question = sample["prompt"].removeprefix("<bos>").removesuffix("<sep>")
        assert sample["answer"] == answer(model, question, longest=4)[: len(sample["answer"])]
        row = dataset.rows("default", "validation")[sample["row"]]
        assert len(sample["target"]) == len(row["tokens"]) - row["target_start"] - 1


def test_the_commands(trained, capsys):
    folder, out = trained
    run = [folder.name, "--out", str(out)]
    assert main(["eval", *run, "--limit", "3", "--samples", str(out / "s.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["limit"] == 3
    assert len((out / "s.jsonl").read_text().splitlines()) == 3
    assert not (out / "results").exists()
    words = ["generate", folder.name, "What is 12 + 30?", "--out", str(out), "--json"]
    assert main([*words, "--tokens", "5"]) == 0
    greedy = json.loads(capsys.readouterr().out)["answer"]
    assert greedy == answer(load_model(folder), "What is 12 + 30?", longest=5)
    sampled = [*words, "--tokens", "20", "--temperature", "5", "--seed", "3"]
    assert main(sampled) == 0
    first = capsys.readouterr().out
    assert main(sampled) == 0
    assert capsys.readouterr().out == first
    assert main(["generate", folder.name, "日本", "--out", str(out)]) == 5
    assert main([*words, "--temperature", "nan"]) == 2
