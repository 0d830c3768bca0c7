"""The table of judged proofs, with numbers worked out by hand."""

from __future__ import annotations

from tangobench.eval.proof_table import proof_table
from tangobench.eval.report_runs import Group


def run(proved: int, checked: int, generated: int, **failed: int) -> dict:
    counts = {"proved": proved, "checked": checked, "generated": generated, "failed": failed}
    return {"proof_check": {"checker": "wasm", **counts}}


def group(**by_arch) -> Group:
    return Group(dataset="lean", family="mini", depth=4, root="ab" * 32, by_arch=by_arch)


def test_means_over_runs() -> None:
    runs = [run(1, 10, 12, error=8, forbidden=1), run(3, 10, 12, error=7)]
    table = proof_table(group(tango=runs, wango=[{}], gau=[run(0, 0, 12)]))
    assert table is not None
    rows = {row[0]: row[1:] for row in table.rows}
    # Wilson for 2 of 10: 5.7% to 51.0%.
    assert rows["TANGO"] == ["20.0% (5.7% … 51.0%)", "10", "2", "error 15, forbidden 1"]
    assert rows["Full-attention GAU"] == ["–", "0", "12", "–"]
    assert len(set(rows["WANGO"])) == 1
    assert "wasm" in table.note


def test_nothing_judged_is_no_table() -> None:
    assert proof_table(group(tango=[{}])) is None
