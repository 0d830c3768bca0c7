"""Recipes: the published ones are the paper's, and all of a family differ in architecture only."""

from __future__ import annotations

import dataclasses

import pytest

from tangobench.errors import UsageError
from tangobench.model.config import ARCHS, published
from tangobench.model.training.recipes import RECIPES, SEED_PAIRS, Recipe, Run, find, runs, varied

PUBLISHED = runs("published")


def test_there_are_ninety_published_runs():
    assert len(PUBLISHED) == 90
    assert len({run.name for run in PUBLISHED}) == 90
    assert len({run.sha256 for run in runs()}) == len(runs())


@pytest.mark.parametrize(
    ("dataset", "positions"),
    [("fineweb", 1_499_987_968), ("lean", 999_817_216)],
    ids=["fineweb", "lean"],
)
def test_budgets_are_the_papers(dataset, positions):
    for recipe in {run.recipe.name: run.recipe for run in runs("published", dataset)}.values():
        assert recipe.steps * recipe.batch * recipe.context == positions


def test_math_budget_is_one_epoch_of_168_combinations():
    recipe = RECIPES["dm_math-tango-4"]
    assert recipe.steps * recipe.batch == 5_376_000 == 168 * 32_000


@pytest.mark.parametrize("run", PUBLISHED[::3], ids=lambda run: run.recipe.name)
def test_published_recipes_train_the_published_models(run):
    recipe = run.recipe
    assert recipe.model_config() == published(recipe.arch, recipe.dataset, recipe.depth)
    assert (recipe.beta1, recipe.beta2, recipe.eps) == (0.9, 0.95, 1e-8)
    assert (recipe.lr_peak, recipe.lr_final) == (6e-4, 6e-5)
    assert (recipe.weight_decay, recipe.clip, recipe.precision) == (0.1, 1.0, "bf16")
    assert recipe.warmup == {"fineweb": 200, "lean": 76, "dm_math": 1680}[recipe.dataset]


def test_seed_pairs_are_the_papers():
    assert SEED_PAIRS == ((17, 101), (23, 103), (41, 107))


def test_recipes_of_a_group_differ_in_architecture_only():
    groups: dict = {}
    for recipe in (run.recipe for run in runs()[::3] if run.recipe.family != "ablation"):
        rest = {**recipe.as_json(), "name": None, "arch": None}
        groups.setdefault((recipe.family, recipe.dataset, recipe.depth), []).append((recipe, rest))
    for members in groups.values():
        assert [recipe.arch for recipe, _ in members] == list(ARCHS)
        assert all(rest == members[0][1] for _, rest in members)


@pytest.mark.parametrize(
    ("name", "sha256"),
    [
        ("mini-dm_math-wango", "bc18adfdd417f602f63d3c54c8f5dc1448e1c458dd74b859b35fccf26f158131"),
        ("mini-lean-gau", "74c48f141a6486baf2f825f3c7b88e2e9dd6d3a8e103cd895046c302ad906ab2"),
        ("dm_math-tango-4", "e03cc1f31457b54fb23748264ee7dc3a6305b805a1a2240e813656297d2395f1"),
    ],
)
def test_checkpoints_of_known_runs_stay_theirs(name, sha256):
    assert find(name).sha256 == sha256


def test_an_ablation_changes_one_thing():
    ablations = [recipe for recipe in RECIPES.values() if recipe.family == "ablation"]
    assert len(ablations) == 2 * 7
    for recipe in ablations:
        whole = RECIPES[recipe.unablated]
        fields = dataclasses.fields(recipe)
        changed = {f.name for f in fields if getattr(recipe, f.name) != getattr(whole, f.name)}
        assert changed - {"name", "family"} in (
            *({"null_gate"}, {"temperature"}, {"window"}, {"heads"}),
        )
        assert Recipe(**recipe.as_json()) == recipe
        (change,) = changed - {"name", "family"}
        assert getattr(recipe.model_config(), change) == getattr(recipe, change)


def test_ablations_are_matched_by_the_same_rule():
    found = {
        recipe.name.removeprefix("mini-dm_math-"): recipe.model_config().deviation
        for recipe in RECIPES.values()
        if (recipe.family, recipe.profile) == ("ablation", "mini")
    }
    # Eight heads divide the width, so it moves by 8 columns, 0.4% of the parameters, at once.
    assert found.pop("tango-heads_8") == pytest.approx(0.00115, abs=1e-5)
    assert max(map(abs, found.values())) < 1e-3


def test_a_budget_gives_every_architecture_the_same_operations():
    tango = RECIPES["mini-dm_math-tango"]
    budget = tango.steps * tango.step_macs
    for arch in ARCHS:
        recipe = varied(RECIPES[f"mini-dm_math-{arch}"], budget_macs=budget)
        assert abs(recipe.steps * recipe.step_macs - budget) <= recipe.step_macs / 2
        assert recipe.warmup == round(recipe.steps / 20)
        assert Recipe(**recipe.as_json()) == recipe
    assert varied(tango, budget_macs=budget).steps == tango.steps
    with pytest.raises(UsageError, match="warmup"):
        varied(tango, budget_macs=1)


def test_variants_are_named_after_what_they_change():
    untied = varied(RECIPES["mini-dm_math-tango"], shared=False, lr_peak=1e-3)
    assert untied.name == "mini-dm_math-tango-lr_peak_0.001-shared_false"
    assert (untied.family, untied.model_config().blocks) == ("study", 4)
    # At this size four columns of width are 0.8% of the parameters of four blocks.
    assert untied.model_config().deviation == pytest.approx(-0.0023, abs=1e-5)
    assert Recipe(**untied.as_json()) == untied
    weighted = varied(RECIPES["mini-dm_math-untied_transformer"], weighting="cosine-null")
    assert weighted.model_config().deviation == pytest.approx(0.00101, abs=1e-5)
    said = varied(RECIPES["mini-dm_math-tango"], shared=True)
    assert "shared" not in said.as_json()
    for wrong in ({"arch": "gau"}, {"share": False}):
        with pytest.raises(UsageError, match="no field"):
            varied(untied, **wrong)


@pytest.mark.parametrize("dataset", ["dm_math", "lean"])
def test_mini_models_match_within_a_thousandth(dataset):
    for run in runs("mini", dataset):
        assert abs(run.recipe.model_config().deviation) < 1e-3, run.name


def test_find_by_recipe_run_and_seeds():
    assert find("mini-lean-gau").order_seed == 101
    assert find("mini-lean-gau", (5, 6)).name == "mini-lean-gau-s5-6"
    assert find("mini-lean-gau-s23-103") == Run(RECIPES["mini-lean-gau"], 23, 103)


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean mini-lean-gau"):
        find("mini-lean-gao")
    with pytest.raises(UsageError, match="already names its seeds"):
        find("mini-lean-gau-s23-103", (17, 101))


@pytest.mark.parametrize("warmup", [0, 5722])
def test_a_warmup_outside_the_run_is_refused(warmup):
    recipe = RECIPES["fineweb-tango-4"]
    with pytest.raises(UsageError, match="warmup") as caught:
        dataclasses.replace(recipe, warmup=warmup)
    key, value = caught.value.fix.split(": ")[1].split("=")
    assert dataclasses.replace(recipe, **{key: int(value)})
