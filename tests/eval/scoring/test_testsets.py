"""Scoring a run on a test set: both numbers by module, and every other dataset refused."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from tangobench.cli import main
from tangobench.errors import CorruptionError, MismatchError, UsageError
from tangobench.eval.scoring.result_files import read_result, write_result
from tangobench.eval.scoring.results import evaluate, load_model, require_test_set, score_on
from tangobench.model.training.recipes import RECIPES, Run
from tangobench.model.training.train import Options, train
from tangobench.pipeline.reading import open_dataset


@pytest.fixture(scope="module")
def place(tmp_path_factory, make_toy_math, make_toy_math_tests, make_toy_lean):
    out = tmp_path_factory.mktemp("out")
    make_toy_math(out)
    make_toy_math_tests(out)
    make_toy_lean(out)
    recipe = dataclasses.replace(
        RECIPES["sample-dm_math-untied_transformer"],
        **{"steps": 60, "batch": 8, "warmup": 1, "target_params": 30_000},
    )
    return out, train(Run(recipe, 17, 101), Options(out=out))


def by_hand(folder, tests, part):
    """NLL sums and right answers by module, row by row and without anything of `eval`."""
    model, rows = load_model(folder), tests.rows(part, "test")
    names = tests.lock.notes["combinations"]
    found = {}
    for index in range(len(rows)):
        row = rows[index]
        ids, start = torch.tensor(row["tokens"].astype(np.int64))[None], row["target_start"]
        with torch.no_grad():
            logits = model.hidden(ids)[0] @ model.embed.T
            nll = -torch.log_softmax(logits.double(), -1)
            answer = model.generate(ids[:, :start], ids.shape[1] - start)[0]
        total = sum(float(nll[t - 1, ids[0, t]]) for t in range(start, ids.shape[1]))
        cell = found.setdefault(names[row["combination"]].split("/")[0], [0.0, 0, 0, 0])
        right = answer.tolist() == ids[0, start:].tolist()
        for place, more in enumerate((total, ids.shape[1] - start, int(right), 1)):
            cell[place] += more
    return found


def test_both_parts_are_scored_by_module_as_by_hand(place):
    out, folder = place
    tests = open_dataset(str(out / "dm_math_tests-sample"))
    result = read_result(score_on(folder, str(tests.folder)))
    found = result["tests"]["dm_math_tests"]
    assert found["data"]["root"] == tests.lock.root
    assert found["data"]["content_root"] == tests.lock.content_root
    assert result["data"]["root"] == open_dataset(str(out / "dm_math-sample")).lock.root
    assert set(found["modules"]) == {"interpolate", "extrapolate"}
    for part, modules in found["modules"].items():
        wanted = by_hand(folder, tests, part)
        assert set(modules) == set(wanted)
        for name, (total, count, correct, tried) in wanted.items():
            assert modules[name]["sum"] == pytest.approx(total, rel=1e-5)
            numbers = [modules[name][key] for key in ("count", "correct", "tried")]
            assert numbers == [count, correct, tried]
        assert found["scores"][part]["sum"] == pytest.approx(sum(w[0] for w in wanted.values()))
    right = [m["correct"] for modules in found["modules"].values() for m in modules.values()]
    assert sum(right) > 0  # a model that learnt nothing would let any comparison pass


def test_scoring_again_keeps_the_test_scores(place):
    out, folder = place
    first = score_on(folder, str(out / "dm_math_tests-sample")).read_bytes()
    assert evaluate(folder).read_bytes() == first


def test_a_test_set_scored_again_replaces_only_its_own_entry(place, make_toy_math_tests, tmp_path):
    out, folder = place
    score_on(folder, str(out / "dm_math_tests-sample"))
    other = make_toy_math_tests(tmp_path, seed=4, name="more_tests")
    found = read_result(score_on(folder, str(other)))["tests"]
    assert set(found) == {"dm_math_tests", "more_tests"}
    assert found["dm_math_tests"]["data"]["root"] != found["more_tests"]["data"]["root"]


def test_the_command_prints_both_parts(place, capsys):
    out, folder = place
    assert main(["eval", str(folder), "--on", str(out / "dm_math_tests-sample"), "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "dm_math_tests, interpolate: " in printed
    assert "dm_math_tests, extrapolate: " in printed
    assert main(["eval", str(folder), "--on", str(out / "dm_math_tests-sample"), "--json"]) == 0
    assert "tests" in json.loads(capsys.readouterr().out)


def test_other_tokens_are_refused(place):
    out, _ = place
    tests = open_dataset(str(out / "dm_math_tests-sample"))
    tests.lock.data["tokenizer"] = {"name": "other", "sha256": "0" * 64}
    with pytest.raises(MismatchError, match="in tokens of other"):
        require_test_set(tests, open_dataset(str(out / "dm_math-sample")))


def test_a_dataset_that_is_no_test_set_is_refused(place):
    out, folder = place
    for name in ("dm_math-sample", "lean-sample"):
        with pytest.raises(UsageError, match="is no test set"):
            score_on(folder, str(out / name))


def test_training_on_a_test_set_stays_refused(place, capsys):
    out, _ = place
    args = [
        "train",
        "--recipe",
        "sample-dm_math-tango",
        "--data",
        str(out / "dm_math_tests-sample"),
    ]
    assert main([*args, "--out", str(out)]) in (UsageError.exit_code, MismatchError.exit_code)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "spoil",
    [
        lambda found: found["modules"]["interpolate"]["a__x"].update(correct=99),
        lambda found: found["scores"].pop("interpolate"),
        lambda found: found["modules"]["interpolate"]["a__x"].update(tried=0),
    ],
    ids=["more right than tried", "a part without a score", "nothing tried"],
)
def test_scores_that_cannot_be_are_refused(place, spoil):
    out, folder = place
    path = score_on(folder, str(out / "dm_math_tests-sample"))
    body = read_result(path)
    spoil(body["tests"]["dm_math_tests"])
    write_result(path, body)
    with pytest.raises(CorruptionError, match="tests"):
        read_result(path)
