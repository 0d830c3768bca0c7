"""Recipes of your own: files, changed fields and other datasets; wrong ones are typed errors."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tangobench.cli import main
from tangobench.errors import UsageError
from tangobench.model.training.recipe_files import (
    as_toml,
    changed,
    named,
    on_dataset,
    read_recipe,
)
from tangobench.model.training.recipes import RECIPES, Run
from tangobench.model.training.runs import described_run
from tangobench.pipeline.reading import open_dataset

TANGO = RECIPES["sample-dm_math-tango"]


def written(folder, text, name="mine"):
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("recipe", list(RECIPES.values())[::7], ids=lambda recipe: recipe.name)
def test_a_printed_recipe_reads_as_itself(recipe, tmp_path):
    assert read_recipe(written(tmp_path, as_toml(recipe))) is recipe


def test_every_field_of_an_own_recipe_survives_its_file(tmp_path):
    fields = {"shared": False, "weighting": "softmax", "init_scale": 2, "width": 64}
    recipe = changed(TANGO, {**fields, "null_gate": False, "lr_peak": 1, "vocabulary": 80})
    again = read_recipe(written(tmp_path, as_toml(recipe)))
    assert again == recipe
    assert again.lr_peak == 1.0
    assert (again.model_config().width, again.model_config().vocabulary) == (64, 80)
    budget = changed(TANGO, {"budget_macs": 10**10})
    assert read_recipe(written(tmp_path, as_toml(budget))) == budget


def test_a_base_gives_what_a_file_leaves_out(tmp_path):
    text = 'base = "sample-dm_math-tango"\nlr_peak = 1e-3\nmatch_params = 90_000\n'
    recipe = read_recipe(written(tmp_path, text))
    expected = dataclasses.replace(
        TANGO, name="mine", family="study", lr_peak=1e-3, target_params=90_000
    )
    assert recipe == expected
    assert abs(recipe.model_config().deviation) < 0.01


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("base = 'sample-dm_math-tango'\nlr_paek = 1", "spec-key", "lr_peak"),
        ("base = 'sample-dm_math-tagno'", "no-such-recipe", "sample-dm_math-tango"),
        ("base = 3", "no-such-recipe", ""),
        ("lr_peak = 1", "spec-key", "missing"),
        ("base = 'sample-dm_math-tango'\nlr_peak = 'high'", "spec-type", "lr_peak"),
        ("base = 'sample-dm_math-tango'\nlr_peak = nan", "bad-recipe", "lr_peak"),
        ("base = 'sample-dm_math-tango'\nbeta2 = 1", "bad-recipe", "beta2 is 1"),
        ("base = 'sample-dm_math-tango'\nclip = 0", "bad-recipe", "clip is 0"),
        ("base = 'sample-dm_math-tango'\nbatch = 0\nbudget_macs = 9", "bad-recipe", "batch"),
        ("base = 'sample-dm_math-tango'\nd_model = 1_000_000_000", "bad-recipe", "d_model"),
        ("base = 'sample-dm_math-tango'\nd_model = 0x" + "f" * 9000, "bad-recipe", "d_model"),
        (
            "base = 'sample-lean-tango'\nd_model = 65536\nwidth = 16777216",
            "bad-recipe",
            "parameters",
        ),
        ("base = 'sample-dm_math-tango'\nfamily = 'published'", "bad-recipe", "family"),
        ("base = 'sample-dm_math-tango'\nname = '../x'", "bad-recipe", "name"),
        ("base = 'sample-dm_math-tango'\ndataset = '../x'", "bad-recipe", "dataset"),
        ("base = 'sample-dm_math-tango'\nname = 'mini-lean-gau'", "name-taken", ""),
        ("base = 'sample-dm_math-tango'\narch = 'retention'", "bad-recipe", "flash"),
        ("base = 'sample-dm_math-tango'\nmatch_params = 1\ntarget_params = 1", "bad-recipe", ""),
        ("base = 'sample-dm_math-tango'\nmatch_params = true", "bad-recipe", "match_params"),
        ("a = [[", "spec-syntax", ""),
        ("#" * (1 << 21), "spec-missing", "bytes"),
    ],
)
def test_a_wrong_file_is_a_typed_error(tmp_path, text, kind, said):
    with pytest.raises(UsageError) as caught:
        read_recipe(written(tmp_path, text))
    assert caught.value.kind == kind
    assert said in f"{caught.value.message} {caught.value.fix}"
    assert len(caught.value.message) < 400


def test_changed_fields_are_checked_and_name_the_recipe():
    assert changed(TANGO, {"match_params": 90_000}).name == f"{TANGO.name}-target_params_90000"
    for fields, key in (({"lr_paek": 1}, "lr_peak"), ({"steps": "many"}, "steps")):
        with pytest.raises(UsageError) as caught:
            changed(TANGO, fields)
        assert key in f"{caught.value.message} {caught.value.fix}"
    with pytest.raises(UsageError, match="mini-lean-gau"):
        named(TANGO, "mini-lean-gau")


@pytest.mark.parametrize(("arch", "shared"), [("untied_transformer", True), ("tango", False)])
def test_sharing_is_changed_as_the_architecture_means_it(arch, shared, tmp_path):
    """Values are checked as those of another architecture, whose `shared` is another one."""
    recipe = changed(RECIPES[f"sample-dm_math-{arch}"], {"shared": shared})
    assert (recipe.shared, recipe.model_config().blocks) == (shared, 1 if shared else 4)
    assert read_recipe(written(tmp_path, as_toml(recipe))) == recipe
    run = Run(recipe, 17, 101)
    meta = {"recipe": recipe.as_json(), "run": run.name, "run_sha256": run.sha256}
    assert described_run(meta, [17, 101]) == run


def test_any_dataset_whose_vocabulary_fits(tmp_path, make_toy_math, capsys):
    data = make_toy_math(tmp_path / "elsewhere")
    lock = open_dataset(data).lock
    assert on_dataset(TANGO, lock) is TANGO
    lean = on_dataset(RECIPES["sample-lean-gau"], lock)
    assert (lean.family, lean.dataset, lean.model_config().vocabulary) == ("study", "dm_math", 73)
    out = tmp_path / "out"
    words = ["train", "--recipe", "sample-lean-gau", "--data", str(data), "--out", str(out)]
    words += ["--set", "steps=3", "--set", "warmup=1", "--seed-pair", "1,2", "--name", "mine"]
    assert main([*words, "--quiet"]) == 0
    assert main([*words, "--set", "vocabulary=70", "--name", "small", "--quiet"]) == 2
    assert "73" in capsys.readouterr().err
    assert main(["eval", "mine-s1-2", "--out", str(out), "--json"]) == 0
    scored = json.loads(capsys.readouterr().out)
    assert scored["run"] == "mine-s1-2"
    assert scored["data"]["root"] == lock.root
    assert not (out / "dm_math-sample").exists()


def test_an_unfinished_own_run_is_continued_from_its_folder(tmp_path, make_toy_math, capsys):
    make_toy_math(tmp_path)
    words = ["--out", str(tmp_path), "--set", "steps=4", "--set", "warmup=1", "--name", "mine"]
    recipe = ["train", "--recipe", "sample-dm_math-gau", *words, "--stop-at", "2", "--quiet"]
    assert main(recipe) == 0
    assert main(["eval", "mine-s17-101", "--out", str(tmp_path), "--json"]) == 2
    fix = json.loads(capsys.readouterr().out.partition("\n")[2])["fix"].split()
    assert main([*fix[1:], "--quiet"]) == 0
    assert main(["eval", "mine-s17-101", "--out", str(tmp_path), "--quiet"]) == 0


def test_recipes_are_listed_and_shown(capsys, tmp_path):
    assert main(["recipes", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(RECIPES)
    assert main(["recipes", "mini-*-gau"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["recipes", "show", "mini-lean-gau"]) == 0
    recipe = read_recipe(written(tmp_path, capsys.readouterr().out))
    assert named(recipe, "mini-lean-gau") is RECIPES["mini-lean-gau"]
    mine = tmp_path / "mine.toml"
    mine.write_text('base = "mini-lean-gau"\nsteps = 70\n')
    assert main(["recipes", "show", str(mine)]) == 0
    assert "steps = 70\n" in capsys.readouterr().out
    for words in (["nothing-like-it"], ["show"], ["a", "b"], ["show", "mini-lean-gao"]):
        assert main(["recipes", *words]) == 2
