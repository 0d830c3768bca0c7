"""Ablations: paired with the right runs, trained once, resumed, and said to be ours."""

from __future__ import annotations

import dataclasses

import pytest

from tangobench.cli import main
from tangobench.errors import UsageError
from tangobench.eval.comparison import replicate as replication
from tangobench.eval.comparison.replicate import ablate
from tangobench.eval.comparison.replications import ablation_tables, differences, label
from tangobench.eval.scoring.result_files import read_results
from tangobench.model.training.recipes import RECIPES, Run, runs

ROOT = "a" * 64


def result(run, nll, root=ROOT):
    return {
        "run": run.name,
        "family": run.recipe.family,
        "recipe": run.recipe.as_json(),
        "seeds": {"initialisation": run.init_seed, "data_order": run.order_seed},
        "data": {"name": run.recipe.dataset, "root": root},
        "scores": {run.recipe.dataset: {"nll": nll}},
    }


def of(name):
    return [run for run in runs() if run.recipe.name == name]


WHOLE, ABLATED = of("mini-dm_math-tango"), of("mini-dm_math-tango-no_null_gate")


def test_paired_differences_against_numbers_worked_out_by_hand():
    # Differences 0.1, 0.2, 0.3: mean 0.2, standard deviation 0.1, t(2) 4.3027 / √3 = 2.4841.
    results = [result(run, nll) for run, nll in zip(WHOLE, (1.0, 1.5, 1.25), strict=True)]
    results += [result(run, nll) for run, nll in zip(ABLATED, (1.1, 1.7, 1.55), strict=True)]
    (found,) = differences(results[::-1])
    assert found["differences"] == pytest.approx([0.1, 0.2, 0.3])
    assert found["mean"] == pytest.approx(0.2)
    assert found["interval"] == pytest.approx([0.2 - 0.24841, 0.2 + 0.24841], abs=1e-5)
    (table,) = ablation_tables([found])
    assert table.rows[0] == [
        "TANGO without the null gate",
        "771,844",
        "1.450 ± 0.312",
        "1.250 ± 0.250",
        "+0.200",
        "-0.048 … +0.448",
        "+0.100, +0.200, +0.300",
    ]
    assert "the paper has none" in table.note


def test_a_run_without_its_partner_has_no_difference():
    partners = [
        result(WHOLE[0], 1.0),
        result(WHOLE[1], 1.0, root="b" * 64),  # another dataset
        result(of("mini-dm_math-wango")[2], 1.0),  # another architecture
        result(of("sample-dm_math-tango")[2], 1.0),  # another size
    ]
    (found,) = differences([*partners, *(result(run, 2.0) for run in ABLATED)])
    assert found["scores"] == [2.0] * 3
    assert found["differences"] == [1.0]
    assert found["interval"] is None
    (alone,) = differences([result(ABLATED[0], 2.0)])
    (table,) = ablation_tables([alone])
    assert table.rows[0][2:] == ["2.000 (1 of 3 runs)", "missing", "–", "–", "–"]
    assert differences([result(run, 1.0) for run in WHOLE]) == []


def test_every_ablation_says_what_it_changes():
    labels = [label(r) for r in RECIPES.values() if (r.family, r.profile) == ("ablation", "mini")]
    assert labels == [
        "TANGO without the null gate",
        "TANGO without the temperature",
        "WANGO, window 16 instead of 64",
        "WANGO, window 32 instead of 64",
        "WANGO, window 128 instead of 64",
        "TANGO, heads 2 instead of 4",
        "TANGO, heads 8 instead of 4",
    ]


@pytest.fixture
def short(monkeypatch):
    """Two seed pairs of three sample ablations and of the whole models, for two steps."""

    def short_runs(family, dataset):
        small = {"steps": 2, "batch": 4, "warmup": 1, "target_params": 30_000}
        return [
            Run(dataclasses.replace(recipe, **small), *pair)
            for recipe in RECIPES.values()
            if (recipe.family, recipe.dataset, recipe.profile) == (family, dataset, "sample")
            and (family == "sample" or recipe.name.endswith(("null_gate", "_16", "_4")))
            for pair in ((17, 101), (23, 103))
        ]

    monkeypatch.setattr(replication, "runs", short_runs)


@pytest.fixture
def trained(monkeypatch):
    names = []
    real = replication.train

    def train(run, options):
        names.append(run.name)
        return real(run, options)

    monkeypatch.setattr(replication, "train", train)
    return names


def test_ablations_are_trained_scored_resumed_and_kept(
    tmp_path, make_toy_math, short, trained, capsys
):
    make_toy_math(tmp_path)
    summary = ablate("sample", "dm_math", tmp_path, workers=1)
    assert sorted(trained) == summary["runs"]
    assert len(trained) == 2 * (3 + 2)
    assert all(len(found["differences"]) == 2 for found in summary["ablations"])
    # A part that is not there changes the function, a window that is never left does not:
    # rows of at most 15 tokens never leave a window of 16.
    by_name = {found["recipe"]: found["differences"] for found in summary["ablations"]}
    assert by_name["sample-dm_math-wango-window_16"] == [0.0, 0.0]
    for change in ("no_null_gate", "heads_4"):
        assert all(by_name[f"sample-dm_math-tango-{change}"])
    assert differences(read_results([tmp_path / "results"])) == summary["ablations"]
    trained.clear()
    words = f"replicate --ablations --probes --exact-match --workers 1 --out {tmp_path} --quiet"
    assert main(words.split()) == 0
    assert "TANGO without the null gate" in capsys.readouterr().out
    assert len(trained) == 10  # their weights are there: they are only scored again
    assert all({"probes", "exact_match"} <= set(r) for r in read_results([tmp_path / "results"]))
    trained.clear()
    ablate("sample", "dm_math", tmp_path, workers=1)
    assert trained == []


def test_unknown_ablations_name_those_there_are(tmp_path):
    with pytest.raises(UsageError, match="no mini ablations on lean") as caught:
        ablate("mini", "lean", tmp_path)
    assert caught.value.fix == "choose one of dm_math"


def test_exact_match_of_proofs_is_refused_before_anything_is_trained(tmp_path, make_toy_lean):
    make_toy_lean(tmp_path)
    with pytest.raises(UsageError, match="exact match needs questions"):
        replication.replicate("sample", "lean", tmp_path, workers=1, extras=("exact_match",))
    assert not (tmp_path / "runs").exists()
