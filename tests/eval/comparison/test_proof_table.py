"""The table of judged proofs, with numbers worked out by hand."""

from __future__ import annotations

from tangobench.eval.comparison.beyond import proof_table
from tangobench.eval.comparison.runs import Group


def run(proved: int, checked: int, generated: int, checker="wasm", limit=None, **failed) -> dict:
    counts = {"proved": proved, "checked": checked, "generated": generated, "failed": failed}
    left = generated - checked
    counts["unchecked"] = {"imports": left} if left else {}
    return {"proof_check": {"checker": checker, "limit": limit, **counts}}


def group(depth: int = 4, **by_arch) -> Group:
    data = {"root": "ab" * 32, "content_root": "cd" * 32}
    by_model = {arch: [{"data": data, **run} for run in runs] for arch, runs in by_arch.items()}
    return Group(dataset="lean", family="mini", depth=depth, root=data["root"], by_model=by_model)


def rows(**by_arch) -> dict[str, list[str]]:
    table = proof_table(group(**by_arch))
    assert table is not None
    assert all(len(row) == len(table.columns) for row in table.rows)
    return {row[0]: row[1:] for row in table.rows}


def test_means_over_runs() -> None:
    runs = [run(1, 10, 12, error=8, forbidden=1), run(3, 10, 12, error=7), run(2, 10, 12)]
    found = rows(tango=runs, wango=[{}], gau=[run(0, 0, 12)])
    # Wilson for 2 of 10: 5.7% to 51.0%.
    assert found["TANGO"] == [
        *("wasm", "12", "20.0% (5.7% … 51.0%)", "10", "error 15, forbidden 1", "imports 6")
    ]
    assert found["Full-attention GAU"] == ["wasm", "12", "–", "0", "–", "imports 12"]
    assert set(found["WANGO"]) == {"missing"}


def test_the_interval_is_that_of_the_runs_that_were_counted() -> None:
    # Wilson for 50 of 1,000: 3.8% to 6.5%.
    found = rows(tango=[run(0, 0, 1000), run(50, 1000, 1000)])
    assert found["TANGO"][2] == "5.0% (3.8% … 6.5%) (1 of 3 runs)"


def test_no_run_lends_another_its_number_of_checked_proofs() -> None:
    # Mean of 20% and 20%, by 10 proofs and not by 1,000.
    found = rows(tango=[run(200, 1000, 1000), run(2, 10, 1000), run(200, 1000, 1000)])
    assert found["TANGO"][2] == "20.0% (5.7% … 51.0%)"


def test_missing_seeds_are_counted() -> None:
    assert rows(tango=[run(2, 10, 10)])["TANGO"][2].endswith("(1 of 3 runs)")


def test_only_runs_that_were_judged_alike_share_a_row() -> None:
    runs = [run(2, 10, 10), run(1, 4, 4, limit=4), run(5, 10, 10, checker="toolchain v4.4.0")]
    table = proof_table(group(tango=runs))
    assert table is not None
    assert [row[:4] for row in table.rows] == [
        ["TANGO", "toolchain v4.4.0", "10", "50.0% (23.7% … 76.3%) (1 of 3 runs)"],
        ["TANGO", "wasm", "10", "20.0% (5.7% … 51.0%) (1 of 3 runs)"],
        ["TANGO", "wasm", "first 4", "25.0% (4.6% … 69.9%) (1 of 3 runs)"],
    ]


def test_depths_have_titles_of_their_own() -> None:
    four, eight = (proof_table(group(depth, tango=[run(1, 2, 2)])) for depth in (4, 8))
    assert four is not None and eight is not None
    assert four.title != eight.title


def test_results_from_before_limits_were_recorded_are_read() -> None:
    old = run(2, 10, 10)
    del old["proof_check"]["limit"]
    assert rows(tango=[old])["TANGO"][1] == "10"


def test_nothing_judged_is_no_table() -> None:
    assert proof_table(group(tango=[{}])) is None
