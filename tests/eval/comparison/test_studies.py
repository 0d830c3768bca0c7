"""Studies: stated before the runs, judged by both intervals, trained where nothing is shipped."""

import json
from dataclasses import replace

import pytest

from tangobench.cli import main
from tangobench.eval.comparison import replicate as replication
from tangobench.eval.comparison.analysis import (
    analyse,
    multipliers,
    side,
    studies_in,
    study_tables,
)
from tangobench.eval.comparison.design import plan, plan_table, prior_residual, read_predictions
from tangobench.eval.comparison.recall import read_recall
from tangobench.eval.comparison.replicate import run_study
from tangobench.eval.comparison.studies import STUDIES, TUNING_PAIR, Arm, Study, minus
from tangobench.eval.scoring.result_files import read_results, shipped_results
from tangobench.model.training.recipes import RECIPES, SEED_PAIRS, runs
from tangobench.pipeline.core.lock import committed_lock
from tangobench.pipeline.dm_math.spec import NAMES


def result(run, nll, root="a" * 64):
    return {
        "run": run.name,
        "run_sha256": run.sha256,
        **{key: getattr(run.recipe, key) for key in ("dataset", "arch", "depth")},
        "seeds": {"initialisation": run.init_seed, "data_order": run.order_seed},
        "data": {"name": run.recipe.dataset, "root": root},
        "scores": {"dm_math": {"nll": nll}},
        "training": {"seconds": 10.0},
        "trained_with": {"code_sha256": "d" * 64},
    }


@pytest.mark.parametrize("profile", ["mini", "sample"])
@pytest.mark.parametrize("name", STUDIES)
def test_a_study_compares_arms_that_it_has(name, profile):
    study = STUDIES[name](profile)
    arms = {arm.name for arm in study.arms}
    assert len(arms) == len(study.arms)
    assert len({run.sha256 for run in study.runs}) == len(study.runs)
    for weights in study.contrasts.values():
        assert set(weights) <= arms
        assert sum(weights.values()) == 0


def test_the_compute_study_spends_equal_operations_and_repeats_no_row():
    study = STUDIES["compute"]("mini")
    tango = RECIPES["mini-dm_math-tango"]
    for arm in study.arms:
        spent = arm.recipe.steps * arm.recipe.step_macs
        assert spent == pytest.approx(arm.budget * tango.steps * tango.step_macs, rel=0.005)
        assert arm.recipe.steps * arm.recipe.batch <= 1200 * len(NAMES)
        assert arm.recipe.warmup / arm.recipe.steps == pytest.approx(30 / 600, rel=0.1)


def test_the_study_profile_has_the_validation_rows_of_mini():
    mini, study = (committed_lock("dm_math", profile) for profile in ("mini", "study"))
    hashes = [
        [shard["rows_sha256"] for shard in lock.shards_of("default", "validation")]
        for lock in (mini, study)
    ]
    assert hashes[0] == hashes[1]
    assert study.rows("default", "train") == 1200 * len(NAMES)


def test_learning_rates_are_tuned_on_seeds_that_no_result_uses():
    used = {(run.init_seed, run.order_seed) for run in STUDIES["compute"]("mini").runs}
    used |= {(run.init_seed, run.order_seed) for run in STUDIES["sharing"]("mini").runs}
    assert TUNING_PAIR not in used
    assert {arm.pairs for arm in STUDIES["rates"]("mini").arms} == {(TUNING_PAIR,)}


def test_effects_are_found_where_they_were_put():
    study = STUDIES["sharing"]("mini")
    effect = {arm.name: 1.5 + 0.05 * i for i, arm in enumerate(study.arms)}
    noise = {run.sha256: 0.001 * (i % 3 - 1) for i, run in enumerate(study.runs)}
    made = [
        result(run, effect[arm.name] + run.init_seed / 1000 + noise[run.sha256])
        for arm in study.arms
        for run in arm.runs
    ]
    found = analyse(study, made)
    assert found["runs"] == found["planned"] == 30
    assert found["freedom"] == 20
    by_name = {c["contrast"].split(" (")[0]: c for c in found["contrasts"]}
    assert by_name["Sharing in TANGO"]["two_way"][0] == pytest.approx(-0.05, abs=0.002)
    assert by_name["Sharing in TANGO"]["verdict"] == "below zero"
    assert by_name["Sharing, both architectures"]["two_way"][0] == pytest.approx(-0.05, abs=0.002)
    assert by_name["Interaction"]["verdict"] == "undecided"
    assert len(found["pairs"]) == 15
    assert [table.title.split(":")[1] for table in study_tables(study, made)][1:] == [
        " comparisons stated before the runs",
        " all pairs",
    ]


def test_runs_on_another_root_are_left_out():
    study = STUDIES["sharing"]("mini")
    made = [result(run, 1.5) for run in study.runs[:4]] + [result(study.runs[4], 9.0, "b" * 64)]
    assert analyse(study, made)["arms"][0]["scores"] == [1.5] * 4


@pytest.mark.parametrize(
    ("pooled", "paired", "expected"),
    [
        ((1, 0.5, 1.5), (1, 0.1, 1.9), 1),
        ((1, 0.5, 1.5), (1, -0.1, 2.1), 0),
        ((-1, -1.5, 0.5), (-1, -1.2, -0.8), 0),
        ((-1, -1.5, -0.5), (-1, -1.2, -0.8), -1),
        (None, (1, 0.5, 1.5), None),
    ],
)
def test_a_verdict_needs_both_intervals(pooled, paired, expected):
    assert side(pooled, paired) == expected


def test_multipliers_of_straight_lines(page):
    """NLL 2 − 0.2·log2(budget) for the reference; one that is 0.2 lower needs half as much."""
    study = STUDIES["compute"]("mini")
    made = [
        result(run, 2.0 - 0.2 * {0.25: -2, 0.5: -1, 1.0: 0, 2.0: 1}[arm.budget] - lower)
        for arm in study.arms
        for lower in [0.2 if arm.model == "FLASH" else 0.0]
        for run in arm.runs
    ]
    found = multipliers(study, made)
    assert found["TANGO"] == pytest.approx([1.0] * 3)
    assert found["FLASH"] == pytest.approx([0.5] * 3)
    table = study_tables(study, made)[2]
    assert ["FLASH", "0.50", "0.50 … 0.50", "0.50, 0.50, 0.50"] in table.rows
    shorter = [run.sha256 for arm in study.arms for run in arm.runs if arm.budget < 1]
    half = [one for one in made if one["run_sha256"] in shorter]
    assert multipliers(study, half)["FLASH"] == pytest.approx([0.5] * 3)  # of TANGO's at 0.5
    assert 'points="60.0,60.0 620.0,210.0"' in page.pictures(half)["findings-compute-curves.svg"]
    assert "(images/findings-compute-curves.svg)" in page.findings(half)
    quarter = [made[i] for i, run in enumerate(study.runs) if run.recipe.steps < 200]
    assert not [t for t in study_tables(study, quarter) if "operations for" in t.title]


def test_rates_are_shown_as_a_grid_with_what_the_best_gains():
    study = STUDIES["rates"]("mini")
    gain = {"at 0.001": 0.3, "at 0.002": 0.2, "at 0.004": 0.1}
    made = [
        result(run, 2.0 + gain[arm.name.removeprefix(f"{arm.model} ")])
        for arm in study.arms
        for run in arm.runs
        if arm.model != "WANGO" or arm.name.endswith("0.001")
    ]
    (table,) = study_tables(study, made, brief=True)
    assert table.columns == ["Model", "at 0.001", "at 0.002", "at 0.004", "Best against 0.002"]
    assert table.rows[0] == ["TANGO", "2.300", "2.200", "2.100", "0.100"]
    assert table.rows[1] == ["WANGO", "2.300", "–", "–", "–"]


def test_the_plan_is_made_of_what_is_left():
    study = STUDIES["sharing"]("mini")
    shipped = read_results([shipped_results()])
    prior = prior_residual(shipped, study)
    assert prior == (pytest.approx(0.0125, abs=0.0001), "DeepMind Mathematics")
    planned, empty = plan(study, shipped, prior), plan(study, [])
    assert planned["finished"] >= 9
    assert planned["core_hours"] < empty["core_hours"]
    assert all(c["detectable"] > 0 for c in planned["contrasts"])
    assert all(c["detectable"] is None for c in empty["contrasts"])
    assert len(plan_table(planned).rows) == len(study.contrasts)


@pytest.mark.parametrize("words", ["", "--profile mini", "--ablations", "--study sharing"])
def test_a_plan_trains_nothing(words, tmp_path):
    assert main(["replicate", "--plan", *words.split(), "--out", str(tmp_path / "out")]) == 0
    assert not (tmp_path / "out").exists()


def test_the_command_shows_the_plan_and_starts_nothing(tmp_path, capsys):
    words = f"replicate --study compute --plan --json --out {tmp_path / 'out'}"
    assert main(words.split()) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 78
    assert not (tmp_path / "out").exists()


@pytest.fixture
def small():
    """Two arms of two seed pairs, eight steps each."""
    recipes = [
        replace(RECIPES[f"sample-dm_math-{arch}"], steps=8, warmup=1)
        for arch in ("untied_transformer", "gau")
    ]
    arms = tuple(Arm(name=r.arch, recipe=r, pairs=SEED_PAIRS[:2]) for r in recipes)
    contrasts = {"difference": minus("gau", "untied_transformer")}
    return Study(name="small", question="Which?", arms=arms, contrasts=contrasts)


def test_a_study_trains_what_is_missing_and_keeps_the_rest(
    tmp_path, make_toy_math, small, monkeypatch
):
    make_toy_math(tmp_path)
    trained = []
    real = replication.train
    monkeypatch.setattr(
        replication, "train", lambda run, options: trained.append(run.name) or real(run, options)
    )
    results = run_study(small, tmp_path, workers=1)
    assert sorted(trained) == sorted(run.name for run in small.runs)
    found = analyse(small, results)
    assert (found["runs"], found["freedom"]) == (4, 1)
    trained.clear()
    assert analyse(small, run_study(small, tmp_path, workers=1)) == found
    assert trained == []


def test_shipped_runs_are_not_trained_again(tmp_path, make_toy_math, small, monkeypatch):
    make_toy_math(tmp_path / "there")
    run_study(small, tmp_path / "there", workers=1)
    make_toy_math(tmp_path / "here")
    monkeypatch.setattr(replication, "shipped_results", lambda: tmp_path / "there" / "results")
    monkeypatch.setattr(replication, "train", None)
    assert analyse(small, run_study(small, tmp_path / "here", workers=1))["runs"] == 4


def test_the_committed_page_is_that_of_the_results(page):
    made = page.findings(
        read_results([shipped_results()]),
        read_recall([shipped_results()]),
        read_predictions(),
    )
    assert made == (page.HERE / "findings.md").read_text(encoding="utf-8")


def test_the_page_tells_what_ran_and_what_did_not(page):
    study = STUDIES["sharing"]("mini")
    made = [result(run, 1.5 + i % 7 / 100) for i, run in enumerate(study.runs)]
    text = page.findings(made)
    found = analyse(study, made)["contrasts"][0]["two_way"]
    assert f"{found[0]:+.3f} ({found[1]:+.3f} … {found[2]:+.3f})" in text
    small = [name for name in STUDIES if not name.startswith("large")]
    assert text.count("Not run yet") == len(small) - 1


def test_studies_among_results_are_those_with_a_run_of_their_own():
    mini = [result(run, 1.0) for run in runs("mini", "dm_math")]
    assert not list(studies_in(mini))
    own = STUDIES["sharing"]("mini").arms[3].runs[0]
    assert [study.name for study in studies_in([*mini, result(own, 1.0)])] == ["sharing"]


def test_long_rows_are_also_compared_by_place():
    study = STUDIES["context"]("mini")
    places = {"15": (4.0, 2), "3": (6.0, 2), "512-1023": (100.0, 50), "64-127": (90.0, 30)}
    tallies = {name: {"sum": total, "count": count} for name, (total, count) in places.items()}
    made = [
        result(run, 2.0)
        | {"scores": {"mdn": {"nll": 2.0, "bits_per_byte": 1.25}}}
        | {"breakdowns": {"mdn": {"position": tallies}}}
        for run in study.runs[:2]
    ]
    arms, *_, table = study_tables(study, made)
    assert arms.rows[0][arms.columns.index("Bits per byte")].startswith("1.250")
    assert table.columns[1:4] == ["1–15", "64–127", "512–1023"]
    assert table.rows == [["TANGO", "2.500", "3.000", "2.000", "-1.000"]]
    assert not [table for table in study_tables(study, []) if "place" in table.title]


def test_a_dataset_without_runs_takes_the_largest_noise_of_its_size():
    prior = prior_residual(read_results([shipped_results()]), STUDIES["context"]("mini"))
    assert prior.dataset == "Lean Mathlib"
    assert prior_residual([], STUDIES["context"]("mini")) is None
