"""Tables of what the paper does not report: worked out by hand, and only what was measured."""

from __future__ import annotations

import json

import pytest

from tangobench.cli import FORMS, main
from tangobench.eval.comparison.beyond import beyond_tables
from tangobench.eval.comparison.runs import share_text
from tangobench.eval.intervals import wilson
from tangobench.eval.render import render
from tangobench.eval.report.site import write_report
from tangobench.eval.scoring.result_files import read_results
from tangobench.model.training.recipes import runs


def result(run, root="a" * 64, **more):
    return {
        "run": run.name,
        "run_sha256": run.sha256,
        "family": run.recipe.family,
        "dataset": run.recipe.dataset,
        "arch": run.recipe.arch,
        "depth": run.recipe.depth,
        "recipe": run.recipe.as_json(),
        "seeds": {"initialisation": run.init_seed, "data_order": run.order_seed},
        "data": {"name": run.recipe.dataset, "root": root},
        "scores": {run.recipe.dataset: {"nll": 1.0}},
    } | more


def share(correct, tried):
    return {"correct": correct, "tried": tried}


def test_nothing_measured_is_no_table():
    plain = [result(run) for run in runs("mini", "dm_math")]
    assert list(beyond_tables(plain)) == []
    assert list(beyond_tables([])) == []


def test_bits_per_byte_of_several_seeds():
    tango = [run for run in runs("mini", "lean") if run.recipe.arch == "tango"]
    made = [
        result(
            run,
            scores={
                "lean_source": {"nll": 1.0, "bits_per_byte": bits},
                "lean_proof": {"nll": 1.0, "bits_per_byte": None},  # no byte was scored
                "lean_joint": {"nll": 1.0},
            },
        )
        for run, bits in zip(tango, (1.0, 2.0, 4.0), strict=True)
    ]
    (table,) = beyond_tables(made)
    assert table.title == "Bits per byte: Lean Mathlib, mini runs"
    assert table.columns == ["Model", "Lean source"]
    assert table.rows == [["TANGO", "2.333 ± 1.528"]]


def test_a_share_over_seeds_is_not_surer_for_being_asked_again():
    # 10, 20 and 30 of 100: 20 of 100 with the interval of 100 questions, 13.3% to 28.9%.
    found = [share(10, 100), share(20, 100), share(30, 100)]
    assert share_text(found) == "20.0% (13.3% … 28.9%)"
    assert wilson(20, 100) == pytest.approx((0.1334, 0.2888), abs=1e-4)
    assert share_text(found[:1]) == "10.0% (5.5% … 17.4%) (1 of 3 runs)"
    assert share_text([share(0, 0)] * 3) == "–"
    assert share_text([]) == "missing"


def test_exact_match_by_level_and_module():
    tango, wango = runs("mini", "dm_math")[0], runs("mini", "dm_math")[3]
    shares = {
        "all": share(1, 4),
        "module:a__b": share(1, 4),
        "difficulty:easy": share(1, 2),
        "difficulty:hard": share(0, 2),
        "combination:a__b/easy": share(1, 2),
    }
    made = [result(tango, exact_match={"shares": shares, "wrong": []}), result(wango)]
    table, modules = beyond_tables(made)
    assert table.columns == [
        "Model",
        "All (4 questions)",
        "Easy (2 questions)",
        "Hard (2 questions)",
    ]
    assert table.rows[0][1] == "25.0% (4.6% … 69.9%) (1 of 3 runs)"
    assert table.rows[1] == ["WANGO", *["missing"] * 3]
    assert modules.rows == [["a__b", "25% (5% … 70%) (1 of 3 runs)", "missing"]]


def test_exact_match_is_compared_seed_by_seed():
    def answered(arch, correct):
        chosen = [run for run in runs("mini", "dm_math") if run.recipe.arch == arch]
        return [
            result(run, exact_match={"shares": {"all": share(c, 200)}, "wrong": []})
            for run, c in zip(chosen, correct, strict=False)
        ]

    # TANGO answers 2, 4 and 3 more than FLASH: 1.5 ± 4.303 · 0.5 / √3 points. One seed of GAU
    # gives no interval, and the order of the files is of no account.
    made = [*answered("tango", (52, 34, 63)), *answered("flash", (50, 30, 60))]
    made += answered("gau", (1,))
    table = next(t for t in beyond_tables(made[::-1]) if t.title.startswith("Differences"))
    rows = {row[0]: row[2:] for row in table.rows}
    assert rows["TANGO minus FLASH"] == [
        "+1.50 (+0.26 … +2.74)",
        "above zero",
        "+1.00, +2.00, +1.50",
    ]
    assert rows["TANGO minus Full-attention GAU"][:2] == ["–", "not enough runs"]
    nobody = answered("tango", (0, 0, 0)) + answered("wango", (0, 0, 0))
    for run in nobody:
        run["exact_match"]["shares"]["all"]["tried"] = 0
    assert not [t for t in beyond_tables(nobody) if t.title.startswith("Differences")]


def test_probes_give_a_column_per_group():
    groups = {
        "old": {"rows": 1, "nll": 0.5, "sum": 0.5, "count": 1},
        "none": {"rows": 0, "nll": None, "sum": 0.0, "count": 0},
    }
    probes = {"dm_math": {"novelty": {"definition": "How.", "groups": groups}}}
    (table,) = beyond_tables([result(runs("mini", "dm_math")[0], probes=probes)])
    assert table.title == "NLL by novelty of the question: DeepMind Mathematics, mini runs"
    assert table.columns == ["Model", "Old (1 row)", "None (0 rows)"]
    assert table.rows == [["TANGO", "0.500 (1 of 3 runs)", "–"]]
    assert table.note == (
        "Ours; the paper has none. How. Groups go by the whole training split, of which these runs "
        f"were fed a part. Data root {'a' * 16}… (content not proven)"
    )


def test_runs_on_different_roots_have_tables_of_their_own():
    first, second, *_ = runs("mini", "lean")
    scores = {"lean_source": {"nll": 1.0, "bits_per_byte": 1.0}}
    made = [result(first, scores=scores), result(second, "b" * 64, scores=scores)]
    notes = [table.note for table in beyond_tables(made)]
    assert [f"Data root {c * 16}…" in note for c, note in zip("ab", notes, strict=True)] == [
        True
    ] * 2


def test_the_command_and_the_report_show_them(toy_out, tmp_path, capsys):
    made = list(beyond_tables(read_results([toy_out / "results"])))
    titles = [table.title.partition(":")[0] for table in made]
    assert titles == [
        "Exact match of generated answers",
        "Differences of exact match",
        "Exact match by module",
        "NLL by novelty of the question",
    ]
    for form in FORMS:
        assert main(["tables", str(toy_out / "results"), "--format", form]) == 0
        printed = capsys.readouterr().out
        header = "table,row,column,value\n" if form == "csv" else ""
        assert all(render([table], form).removeprefix(header) in printed for table in made)
    assert main(["tables", str(toy_out / "results"), "--json"]) == 0
    titles = [table["title"] for table in json.loads(capsys.readouterr().out)]
    assert titles[5] == "Validation NLL, DeepMind Mathematics, sample replication"
    assert [title.partition(":")[0] for title in titles[6:8]] == ["Study ablations"] * 2
    assert titles[8:] == [table.title for table in made]
    page = write_report(toy_out, tmp_path).parent / "results.html"
    text = page.read_text(encoding="utf-8")
    for table in made:
        assert text.count(f'<p class="caption">{table.title}</p>') == 1
        assert table.rows[0][1] in text
