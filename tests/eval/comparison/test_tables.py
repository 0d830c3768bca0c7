"""Tables: the paper's figures untouched, ours computed, missing runs shown as missing."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tangobench.cli import FORMS, main
from tangobench.errors import MismatchError
from tangobench.eval import published
from tangobench.eval.comparison.runs import spread
from tangobench.eval.comparison.tables import (
    compute,
    nll_table,
    paper_tables,
    parameters,
    replication_tables,
    summarise,
    summary_tables,
    verdict,
)
from tangobench.eval.costs.speed import speed_tables
from tangobench.eval.published import CLAIMS
from tangobench.eval.render import Table, render
from tangobench.eval.scoring.result_files import write_result
from tangobench.model.config import ARCHS
from tangobench.model.training.recipes import runs


def result(run, nll, root="a" * 64):
    """A result as `evaluate` writes it, with chosen scores."""
    metrics = ["lean_joint", "lean_source", "lean_proof"]
    names = metrics if run.recipe.dataset == "lean" else [run.recipe.dataset]
    return {
        "format": "tangobench-result/1",
        "run": run.name,
        "model": {"width": 1, "nonembedding_params": 1, "total_params": 2},
        "breakdowns": {},
        "curve": {},
        "training": {"seconds": 1.0, "tokens": 1, "tokens_per_second": 1.0},
        "trained_with": {"code_sha256": "d" * 64},
        "scored_with": {"code_sha256": "d" * 64},
        "run_sha256": run.sha256,
        "step": 1,
        "checkpoint_sha256": "c" * 64,
        "family": run.recipe.family,
        "dataset": run.recipe.dataset,
        "recipe": run.recipe.as_json(),
        "arch": run.recipe.arch,
        "depth": run.recipe.depth,
        "seeds": {"initialisation": run.init_seed, "data_order": run.order_seed},
        "data": {"name": run.recipe.dataset, "profile": run.recipe.profile, "root": root},
        "scores": {name: {"nll": nll} for name in names},
    }


def test_paper_figures_are_all_there():
    assert {arch: len(row) for arch, row in published.NLL[4].items()} == dict.fromkeys(ARCHS, 5)
    assert {arch: len(row) for arch, row in published.NLL[8].items()} == dict.fromkeys(ARCHS, 4)
    for depth in (4, 8):
        for row in published.NLL[depth].values():
            # The printed joint is the mean of the printed parts, to rounding.
            parts = (row["lean_source"][0] + row["lean_proof"][0]) / 2
            assert row["lean_joint"][0] == pytest.approx(parts, abs=0.0011)
    assert published.NLL[4]["gau"]["dm_math"] == (0.515, 0.037)


def test_the_parameter_table_reproduces_every_published_integer():
    table = parameters()
    assert len(table.rows) == 8
    for row in table.rows:
        assert row[2] == row[3]
        assert row[4] == row[5]


def test_the_compute_table_reproduces_every_printed_digit():
    for row in compute().rows:
        assert row[1] == row[2]
        assert row[3] == row[4]


def test_mean_and_sample_deviation_by_hand():
    assert spread([1.0, 2.0, 4.0]) == "2.333 ± 1.528"
    assert spread([1.0, 2.0]) == "1.500 ± 0.707 (2 of 3 runs)"
    assert spread([1.25]) == "1.250 (1 of 3 runs)"
    assert spread([1.0, 2.0, 3.0, 4.0]) == "2.500 ± 1.291 (4 runs)"
    assert spread([]) == "missing"


def test_main_table_puts_ours_beside_the_papers():
    mine = [r for r in runs("published", "dm_math") if r.recipe.arch == "tango"]
    found = [result(run, nll) for run, nll in zip(mine, (0.5, 0.6, 0.7), strict=True)]
    table = nll_table("Main", found, 4, ["fineweb", "dm_math"])
    assert table.columns[3:] == ["DeepMind Mathematics", "DeepMind Mathematics (paper)"]
    assert table.rows[0] == [
        "TANGO",
        "missing",
        "3.293 ± 0.005",
        "0.600 ± 0.100",
        "0.473 ± 0.008",
    ]
    assert table.rows[1][3] == "missing"


def test_depths_and_families_are_never_mixed():
    eight = [result(run, 9.0) for run in runs("published", "fineweb") if run.recipe.depth == 8]
    mini = [result(run, 9.0) for run in runs("mini", "dm_math")]
    _, main_table, lean_table, eight_table, _ = paper_tables(eight + mini)
    for table in (main_table, lean_table):
        assert {cell for row in table.rows for cell in row[1::2]} == {"missing"}
    assert {row[1] for row in eight_table.rows} == {"9.000 ± 0.000"}


def test_a_run_that_only_calls_itself_published_is_named_and_not_counted():
    whole = [result(run, 1.0) for run in runs("published", "lean") if run.recipe.arch == "gau"]
    short = {**whole[0], "run_sha256": "0" * 64}
    sample = {**whole[1], "data": {**whole[1]["data"], "profile": "sample"}}
    _, main_table, *_ = paper_tables([short, sample, *whole[2:]])
    assert main_table.rows[ARCHS.index("gau")][3] == "1.000 (1 of 3 runs)"
    assert f"not the paper's: {short['run']}, {sample['run']}." in main_table.note
    assert f"Data root of lean: {'a' * 16}…" in main_table.note


def test_runs_on_different_roots_never_share_a_mean():
    first, second, *_ = runs("published", "dm_math")
    with pytest.raises(MismatchError, match="b" * 64):
        nll_table("t", [result(first, 1.0), result(second, 1.0, "b" * 64)], 4, ["dm_math"])


NASTY = Table(
    title="A & B_1 | <c>", columns=["x|y", "50%"], rows=[["a_b", "1 ± 2"], ["<i>", "#{}"]], note="n"
)


def test_markdown_keeps_its_columns():
    lines = render([NASTY], "markdown").splitlines()
    assert lines[2] == r"| x\|y | 50% |"
    assert lines[4] == "| a_b | 1 ± 2 |"


def test_csv_round_trips():
    second = Table(title="second", columns=["a", "b", "c"], rows=[["1", "2", "3"]])
    rows = list(csv.reader(io.StringIO(render([NASTY, second], "csv"))))
    assert rows == [
        ["table", "row", "column", "value"],
        ["A & B_1 | <c>", "a_b", "50%", "1 ± 2"],
        ["A & B_1 | <c>", "<i>", "50%", "#{}"],
        ["A & B_1 | <c>", "", "note", "n"],
        ["second", "1", "b", "2"],
        ["second", "1", "c", "3"],
    ]


def test_html_is_well_formed_and_escaped():
    tree = ET.fromstring(f"<div>{render([NASTY], 'html')}</div>")
    assert [cell.text for cell in tree.iter("td")] == ["1 ± 2", "#{}"]
    assert tree.find(".//caption").text == NASTY.title


def test_latex_escapes_what_it_must():
    text = render([NASTY], "latex")
    assert r"a\_b & 1 $\pm$ 2 \\" in text
    assert r"$<$i$>$ & \#\{\} \\" in text
    assert r"A \& B\_1" in text


def test_a_ragged_table_is_refused():
    with pytest.raises(ValueError, match="1 cells under 2"):
        Table(title="t", columns=["a", "b"], rows=[["x"]])


def test_the_command_prints_five_tables_in_every_format(tmp_path, capsys):
    run = runs("published", "lean")[0]
    write_result(tmp_path / f"{run.name}.json", result(run, 1.5))
    for form in FORMS:
        assert main(["tables", str(tmp_path), "--format", form]) == 0
        printed = capsys.readouterr().out
        assert "1.500 (1 of 3 runs)" in printed
        assert "missing" in printed
    assert main(["tables", str(tmp_path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 5
    assert len(list(paper_tables([]))) == 5
    assert main(["tables", str(tmp_path / "none")]) == 2


def replication(offsets):
    """Mini results: architecture i has NLL 1 + offset, the same seed noise for all."""
    noise = {17: 0.1, 23: -0.1, 41: 0.0}
    return [
        result(run, 1 + offsets[run.recipe.arch] + noise[run.init_seed])
        for run in runs("mini", "dm_math")
    ]


def test_paired_differences_cancel_the_seeds_noise():
    offsets = {arch: 0.01 * place for place, arch in enumerate(ARCHS)}
    found = summarise("mini", "dm_math", replication(offsets))["claims"][0]
    assert (found["lower"], found["higher"]) == ("tango", "wango")
    assert found["differences"] == pytest.approx([0.01] * 3)
    assert found["interval"] == pytest.approx([0.01, 0.01], abs=1e-9)
    assert found["verdict"] == "holds"
    assert found["paper"] == 0.014


def test_a_reversed_order_is_reported_as_reversed():
    offsets = {arch: -0.01 * place for place, arch in enumerate(ARCHS)}
    summary = summarise("mini", "dm_math", replication(offsets))
    assert {claim["verdict"] for claim in summary["claims"]} == {"reversed"}
    assert len(summary["claims"]) == len(CLAIMS) == 7
    tables = summary_tables(summary)
    assert len(tables) == 2
    assert "TANGO < WANGO" in tables[1].rows[0]
    assert "reversed" in tables[1].rows[0]


def test_a_replication_is_judged_once_all_its_runs_are_there():
    whole = replication({arch: 0.01 * place for place, arch in enumerate(ARCHS)})
    scores, claims = replication_tables(whole)
    assert "DeepMind Mathematics, mini" in scores.title and len(claims.rows) == 7
    (scores,) = replication_tables([*whole[:7], result(runs("published", "lean")[0], 1.0)])
    assert [row[1] for row in scores.rows[:3]] == [
        "1.000 ± 0.100",
        "1.010 ± 0.100",
        "1.120 (1 of 3 runs)",
    ]
    assert scores.rows[3][1] == "missing"
    assert not list(replication_tables([]))


def test_runs_on_two_roots_are_two_replications():
    whole = replication(dict.fromkeys(ARCHS, 0.0))
    moved = [{**result, "data": {**result["data"], "root": "b" * 64}} for result in whole[:3]]
    tables = list(replication_tables([*whole, *moved]))
    ends = [f"Data root {c * 16}… (content not proven)" for c in "aab"]
    assert all(table.note.endswith(end) for table, end in zip(tables, ends, strict=True))
    assert not list(replication_tables([{**result, "run_sha256": "of before"} for result in whole]))


def test_the_tables_that_are_shipped_are_those_of_the_results(capsys):
    folder = Path(__file__).parents[3] / "results"
    speed = folder.parent / "bench" / "results" / "speed.json"
    assert main(["tables", str(folder), "--speed", str(speed)]) == 0
    head = (folder / "tables.head").read_text()
    assert head + capsys.readouterr().out == (folder / "tables.md").read_text()


def test_speed_and_memory_by_hand(tmp_path, capsys):
    case = {
        "arch": "gau", "task": "train", "length": 256, "size": "mini", "threads": 1,
        "precision": "fp32", "tokens_per_second": 1000.0, "peak_bytes": 5_000_000,
        "forward_macs_per_token": 2_000_000, "disturbed": False,
    }  # fmt: skip
    busy = {**case, "task": "decode", "disturbed": True}
    machine = {"device": "some CPU", "torch": "2"}
    train, decode = speed_tables({"machine": machine, "cases": [busy, case]})
    # 1,000 tokens/s × 2M MACs × 2 operations × 3 passes
    assert train.rows == [["Full-attention GAU", "256", "1,000", "5 MB", "2.00M", "12.0"]]
    assert decode.rows == [["Full-attention GAU", "256", "1,000 (disturbed)", "5 MB", "2.00M"]]
    assert "some CPU, 1 thread, fp32" in train.note
    results, file = tmp_path / "results", tmp_path / "speed.json"
    results.mkdir()
    for text in ("", "[]", "{}", '{"machine": {}, "cases": [{}]}', None):
        file.unlink() if text is None else file.write_text(text)
        assert main(["tables", str(results), "--speed", str(file)]) == 2
        assert "holds no measurements" in capsys.readouterr().err


def test_a_toy_makes_no_claims():
    toy = [result(run, 1.0) for run in runs("sample", "dm_math")]
    summary = summarise("sample", "dm_math", toy)
    assert summary["claims"] == []
    assert len(summary_tables(summary)) == 1


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((0.1, 0.05, 0.15), "holds"),
        ((-0.1, -0.15, -0.05), "reversed"),
        ((0.1, -0.05, 0.25), "undecided, mean agrees"),
        ((-0.1, -0.25, 0.05), "undecided, mean disagrees"),
        (None, "not enough seeds"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_verdicts_are_mechanical(interval, expected):
    assert verdict(interval, interval) == expected


def test_a_verdict_follows_the_stricter_interval():
    assert verdict((0.2, 0.1, 0.3), (0.2, -0.1, 0.5)) == "undecided, mean agrees"
    assert verdict((-0.2, -0.5, 0.1), (-0.2, -0.3, -0.1)) == "undecided, mean disagrees"
    assert verdict((0.2, 0.1, 0.3), None) == "not enough seeds"
