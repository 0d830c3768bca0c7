"""The gap tables: means and intervals by hand, recipes apart, what is missing by name."""

from __future__ import annotations

import copy

import pytest
from drawings import svg

from tangobench.eval.comparison.beyond import gap_tables, gaps
from tangobench.eval.comparison.studies import STUDIES
from tangobench.eval.intervals import two_way, wilson
from tangobench.eval.report.figures import gap_figure
from tangobench.eval.scoring.result_files import read_results

MODULES = {"interpolate": ("a__x", "measurement__time"), "extrapolate": ("a__x_big",)}


def with_tests(result, nll, correct):
    found = copy.deepcopy(result)
    modules = {
        part: {n: {"sum": 10 * nll, "count": 10, "correct": correct, "tried": 20} for n in names}
        for part, names in MODULES.items()
    }
    found["tests"] = {
        "dm_math_tests": {
            "data": {"name": "dm_math_tests", "root": "5" * 64},
            "scores": {p: {"nll": nll + i} for i, p in enumerate(("extrapolate", "interpolate"))},
            "modules": modules,
        }
    }
    return found


@pytest.fixture(scope="module")
def results(toy_out):
    return read_results([toy_out / "results"])


def test_means_and_intervals_are_over_the_runs_of_one_recipe(results):
    tango = [r for r in results if r["recipe"]["name"] == "sample-dm_math-tango"]
    other = [r for r in results if r["recipe"]["name"] == "sample-dm_math-tango-heads_4"][:1]
    chosen = [with_tests(run, 1.0 + i, 5 * i) for i, run in enumerate(tango)]
    chosen += [with_tests(run, 9.0, 0) for run in other]
    (gap,) = gaps(chosen)
    assert gap.parts == ["interpolate", "extrapolate"]
    assert gap.nlls("TANGO")[1:] == [[2.0, 3.0, 4.0], [1.0, 2.0, 3.0]]
    overview, by_module, _ = gap_tables(gap)
    assert [row[0] for row in overview.rows] == ["TANGO", "TANGO, heads 4 instead of 2"]
    low, high = wilson(10, 40)  # 0, 5 and 10 of 20 in each of two modules
    assert overview.rows[0][3] == "3.000 ± 1.000"
    assert overview.rows[0][5] == f"25.0% ({low:.1%} … {high:.1%})"
    assert [row[0] for row in by_module.rows] == ["a__x", "measurement__time*"]
    # Of 1, 2 and 3: Student's t for three runs is 4.303, and 4.303 / 3 ** 0.5 is 2.48.
    assert by_module.rows[0][1].startswith("2.00 (-0.48 … 4.48); 25% (")
    assert by_module.rows[0][2].startswith("9.00; 0% (")
    assert gap.missing[0] == "sample-dm_math-wango-s17-101"
    assert "sample-dm_math-tango-s17-101" not in overview.note
    assert len(gap.missing) == 15


def test_models_are_compared_stage_by_stage(results):
    chosen = [
        with_tests(run, 1.0 + 0.5 * (run["arch"] == "wango") + place / 1000, 1)
        for place, run in enumerate(r for r in results if r["recipe"]["family"] == "sample")
        if run["arch"] in ("tango", "wango")
    ]
    (gap,) = gaps(chosen)
    table = gap_tables(gap)[1]
    assert table.title.startswith("Test parts, NLL minus that of TANGO")
    (wango,) = table.rows
    layout = two_way({m: dict(enumerate(gap.nlls(m)[1])) for m in gap.by_model})
    middle, low, high = layout.contrast({"WANGO": 1.0, "TANGO": -1.0})
    assert wango[2] == f"{middle:+.3f} ({low:+.3f} … {high:+.3f}), above zero"


def test_runs_without_test_scores_have_no_gap(results):
    assert list(gaps(results)) == []


def test_two_test_sets_are_two_gaps(results):
    first, second = (with_tests(run, 1.0, 1) for run in results[:2])
    second["tests"]["dm_math_tests"]["data"]["root"] = "6" * 64
    assert [gap.test_root for gap in gaps([first, second])] == ["5" * 64, "6" * 64]


def test_the_picture_has_a_line_per_model_and_names_the_parts(results):
    chosen = [with_tests(run, 1.0, 1) for run in results if run["recipe"]["family"] == "sample"]
    (gap,) = gaps(chosen)
    figure = gap_figure(gap)
    assert svg(figure).count("<polyline") == len(gap.by_model) == 6
    for name in ("validation", "interpolate", "extrapolate"):
        assert f">{name}</text>" in svg(figure)


def test_recipes_are_never_averaged_and_have_names_for_people(results):
    """Two recipes of one name, and a run that a study has planned."""
    run = STUDIES["sharing"]("sample").arms[3].runs[0]
    own = [{**results[0], "run": name, "run_sha256": name} for name in ("a", "b")]
    own[1]["recipe"] = {**own[1]["recipe"], "lr_peak": 1.0}
    study = {**results[0], "run": run.name, "run_sha256": run.sha256}
    (gap,) = gaps([with_tests(one, 1.0, 1) for one in (*own, study)])
    name = results[0]["recipe"]["name"]
    labels = [label.replace(f"{name} (", "own (") for label in gap.by_model]
    assert labels[0] == "TANGO, untied (sharing study)"
    assert [label[:5] for label in labels[1:]] == ["own ("] * 2
    assert gap.missing == []
