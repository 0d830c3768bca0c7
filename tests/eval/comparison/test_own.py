"""Own runs: grouped by recipe, first, under their own names; any runs beside each other."""

from __future__ import annotations

import dataclasses

import pytest

from tangobench.cli import main
from tangobench.errors import MismatchError, UsageError
from tangobench.eval.comparison.beyond import beyond_tables
from tangobench.eval.comparison.runs import groups
from tangobench.eval.comparison.studies import STUDIES
from tangobench.eval.comparison.tables import choose, compared, own_tables
from tangobench.eval.scoring.result_files import read_results, shipped_results
from tangobench.model.training.recipes import RECIPES, Run, runs, varied

WIDE = varied(RECIPES["mini-dm_math-tango"], d_model=256)


def result(run: Run, nll: float, root: str = "a" * 64):
    recipe = run.recipe
    return {
        "run": run.name,
        "run_sha256": run.sha256,
        "family": recipe.family,
        "dataset": recipe.dataset,
        "arch": recipe.arch,
        "depth": recipe.depth,
        "recipe": recipe.as_json(),
        "seeds": {"initialisation": run.init_seed, "data_order": run.order_seed},
        "data": {"name": recipe.dataset, "root": root},
        "model": {"nonembedding_params": 7},
        "step": recipe.steps,
        "scores": {recipe.dataset: {"nll": nll}},
    }


def test_own_runs_come_first_and_recipes_are_never_averaged():
    """Three recipes of one architecture, one of which has the name of another."""
    other = dataclasses.replace(WIDE, lr_peak=1e-3)
    made = [
        *(result(run, 1.0) for run in runs("mini", "dm_math")),
        *(result(Run(WIDE, seed, 101), 2.0 + seed) for seed in (17, 23, 41, 53)),
        result(Run(other, 17, 101), 9.0),
    ]
    own, mini = groups(made)
    assert (own.family, mini.family) == ("own", "mini")
    assert sorted(map(len, own.by_model.values())) == [1, 4]
    assert all(name.startswith(f"{WIDE.name} (") for name in own.by_model)
    (table,) = own_tables(made)
    assert [row[1] for row in table.rows if "of 4 runs" not in row[1]] == ["35.500 ± 16.523"]
    assert [row[1] for row in table.rows if "of 4 runs" in row[1]] == ["9.000 (1 of 4 runs)"]


def test_a_dataset_built_twice_gives_two_tables_with_two_titles():
    made = [result(Run(WIDE, 17, 101), 2.0, root=letter * 64) for letter in "ab"]
    first, second = (table.title for table in own_tables(made))
    assert first != second
    (alone,) = own_tables(made[:1])
    assert alone.title in first


def test_own_runs_are_as_many_as_they_are_in_every_table():
    """Two seed pairs of one recipe miss no third, in probes, proofs and exact match."""
    groups_of = {"new": {"rows": 1, "nll": 0.5, "sum": 0.5, "count": 1}}
    more = {
        "probes": {"dm_math": {"novelty": {"definition": "How.", "groups": groups_of}}},
        "exact_match": {"shares": {"all": {"correct": 1, "tried": 4}}, "wrong": []},
        "proof_check": {
            **{"checker": "wasm", "limit": None, "generated": 4, "checked": 4, "proved": 2},
            **{"failed": {"error": 2}, "unchecked": {}},
        },
    }
    made = [result(Run(WIDE, seed, 101), 2.0) | more for seed in (17, 23)]
    cells = [cell for table in beyond_tables(made) for row in table.rows for cell in row]
    assert len(cells) > 10 and not [cell for cell in cells if "runs)" in cell]


def test_another_seed_pair_of_a_known_recipe_is_ones_own():
    """It does not move the mean of the replication, which is of the paper's three."""
    recipe = RECIPES["mini-dm_math-gau"]
    made = [*(result(run, 1.0) for run in runs("mini", "dm_math")), result(Run(recipe, 5, 6), 8.0)]
    own, mini = groups(made)
    assert [len(found) for found in own.by_model.values()] == [1]
    assert len(mini.by_model["gau"]) == 3


def test_runs_of_studies_are_in_no_group():
    made = [result(run, 1.0) for run in STUDIES["sharing"]("mini").runs]
    assert {group.family for group in groups(made)} == {"mini"}


def test_differences_are_paired_by_seeds():
    base, wide = RECIPES["mini-dm_math-tango"], WIDE
    made = [result(Run(base, s, 1), 1.0 + s / 100) for s in (1, 2, 3)]
    made += [result(Run(wide, s, 1), 1.5 + s / 100) for s in (3, 1)]
    first, second = compared(choose(made, [base.name, wide.name])).rows
    assert first[2:4] == ["–", "–"]
    assert second[1:4] == [
        "1.520 ± 0.014 (2 of 3 runs)",
        "+0.500 (+0.500 … +0.500)",
        "+0.500, +0.500",
    ]


def test_runs_that_share_nothing_are_not_compared():
    base = RECIPES["mini-dm_math-tango"]
    one, other = result(Run(base, 1, 1), 1.0), result(Run(base, 2, 2), 1.0, "b" * 64)
    with pytest.raises(MismatchError):
        compared([one, other])
    lean = result(Run(RECIPES["mini-lean-tango"], 1, 1), 1.0)
    with pytest.raises(UsageError, match="no score in common"):
        compared([one, lean])
    with pytest.raises(UsageError, match="no result"):
        choose([one], ["nothing"])


def test_the_command_compares_shipped_runs(tmp_path, capsys):
    names = ["mini-dm_math-tango", "mini-dm_math-wango"]
    assert main(["compare", *names, "--out", str(tmp_path)]) == 0
    shipped = read_results([shipped_results()])
    tango, wango = (
        {
            tuple(r["seeds"].values()): r["scores"]["dm_math"]["nll"]
            for r in shipped
            if r["recipe"]["name"] == name
        }
        for name in names
    )
    expected = [wango[pair] - tango[pair] for pair in wango]
    assert len(expected) >= 3
    assert ", ".join(f"{value:+.3f}" for value in expected) in capsys.readouterr().out
    assert main(["compare", f"{names[0]}-s17-101", "--out", str(tmp_path)]) == 0
    assert ": 1 run\n" in capsys.readouterr().out
