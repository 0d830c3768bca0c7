"""Ablations: paired with the right runs, trained once, resumed, and said to be ours."""

from __future__ import annotations

import dataclasses

import pytest

from tangobench.cli import main
from tangobench.errors import UsageError
from tangobench.eval.comparison import replicate as replication
from tangobench.eval.comparison import studies
from tangobench.eval.comparison.analysis import analyse, studies_in, study_tables
from tangobench.eval.comparison.replicate import ablate
from tangobench.eval.comparison.studies import ablations
from tangobench.eval.scoring.result_files import read_results
from tangobench.model.training.recipes import runs

ROOT = "a" * 64


def result(run, nll, root=ROOT):
    return {
        "run": run.name,
        "run_sha256": run.sha256,
        "trained_with": {"code_sha256": "d" * 64},
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
    found = analyse(ablations("mini"), results[::-1])["contrasts"][0]
    assert found["per_seed"] == pytest.approx([0.1, 0.2, 0.3])
    assert found["paired"] == pytest.approx([0.2, 0.2 - 0.24841, 0.2 + 0.24841], abs=1e-5)
    arms, contrasts = study_tables(ablations("mini"), results)
    assert [row[5] for row in arms.rows if row[0] == "TANGO"] == ["1.250 ± 0.250"]
    assert [row[5] for row in arms.rows if "null gate" in row[0]] == ["1.450 ± 0.312"]
    assert contrasts.rows[0] == [
        "TANGO without the null gate (minus TANGO)",
        "+0.200 (-0.048 … +0.448)",
        "+0.200 (-0.048 … +0.448)",
        "undecided",
        "+0.100, +0.200, +0.300",
    ]
    assert "6 of 27 planned runs" in contrasts.note


def test_a_run_without_its_partner_has_no_difference():
    partners = [
        result(WHOLE[0], 1.0),
        result(WHOLE[1], 1.0, root="b" * 64),  # another dataset
        result(of("mini-dm_math-wango")[2], 1.0),  # another architecture
        result(of("sample-dm_math-tango")[2], 1.0),  # another size
    ]
    found = analyse(ablations("mini"), [*partners, *(result(run, 2.0) for run in ABLATED)])
    assert found["contrasts"][0]["per_seed"] == [1.0]
    assert found["contrasts"][0]["paired"] is None
    (study,) = studies_in([result(ABLATED[0], 2.0)])
    _, contrasts = study_tables(study, [result(ABLATED[0], 2.0)])
    assert contrasts.rows[0][1:] == ["–", "–", "not enough runs", "–"]
    assert not list(studies_in([result(run, 1.0) for run in WHOLE]))


def test_every_ablation_says_what_it_changes():
    assert [name.split(" (minus")[0] for name in ablations("mini").contrasts] == [
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
    small = {"steps": 2, "batch": 4, "warmup": 1, "target_params": 30_000}
    whole = ablations("sample")
    kept = ("TANGO", "WANGO", "gate", "16 instead of 64", "4 instead of 2")
    arms = tuple(
        dataclasses.replace(
            arm, recipe=dataclasses.replace(arm.recipe, **small), pairs=((17, 101), (23, 103))
        )
        for arm in whole.arms
        if arm.name.endswith(kept)
    )
    names = {arm.name for arm in arms}
    contrasts = {name: w for name, w in whole.contrasts.items() if w.keys() <= names}
    study = dataclasses.replace(whole, arms=arms, contrasts=contrasts)
    monkeypatch.setattr(replication, "ablations", lambda profile: study)
    monkeypatch.setattr(studies, "ablations", lambda profile: study)
    return study


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
    results = ablate("sample", "dm_math", tmp_path, workers=1)
    assert sorted(trained) == sorted(run.name for run in short.runs)
    assert len(trained) == 2 * (3 + 2)
    # A part that is not there changes the function, a window that is never left does not:
    # rows of at most 15 tokens never leave a window of 16.
    found = {c["contrast"]: c["per_seed"] for c in analyse(short, results)["contrasts"]}
    gate, window, heads = found.values()
    assert window == [0.0, 0.0]
    assert all(gate) and all(heads) and len(gate) == len(heads) == 2
    kept = read_results([tmp_path / "results"])
    assert analyse(short, kept) == analyse(short, results)
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
