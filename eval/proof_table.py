"""The table of proofs that Lean judged.

- Shares are of the proofs that were checked; what was not checked is counted with its reasons.
- Only runs that were judged alike share a row: the same checker, the same theorems.
- Runs of one row try the same theorems, so the interval is that of the mean share as if each
  theorem were tried once; where runs differ, by the fewest that one of them had checked.

Usage: `table = proof_table(group)`, None if no run of the group was judged.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tangobench.eval.published import LABELS
from tangobench.eval.render import Table
from tangobench.eval.report_runs import Group
from tangobench.eval.tables import MISSING, share_text

Found = dict[str, Any]


def proof_table(group: Group) -> Table | None:
    """Proved, failed and unchecked proofs of each architecture."""
    judged = {
        arch: [run["proof_check"] for run in runs if "proof_check" in run]
        for arch, runs in group.by_arch.items()
    }
    if not any(judged.values()):
        return None
    columns = ["Model", "Checker", "Theorems", "Proved", "Checked per run"]
    text = (
        "Greedy proofs of the validation theorems in place of the originals; mean over seeds, 95% "
        "Wilson interval over what was checked. Reasons are summed over seeds."
    )
    return Table(
        title=group.title("Proofs that Lean accepts"),
        columns=[*columns, "Why they failed", "Why they were not checked"],
        rows=[[LABELS[arch], *cells] for arch, found in judged.items() for cells in _rows(found)],
        note=group.note(text),
    )


def _rows(found: Sequence[Found]) -> list[list[str]]:
    """One row for each way in which runs were judged."""
    alike: dict[tuple[str, str], list[Found]] = {}
    for one in found:
        tried = f"first {one['generated']:,}" if one.get("limit") else f"{one['generated']:,}"
        alike.setdefault((one["checker"], tried), []).append(one)
    rows = [[*way, *_cells(chosen)] for way, chosen in sorted(alike.items())]
    return rows or [[MISSING] * 6]


def _cells(found: Sequence[Found]) -> list[str]:
    checked = statistics.fmean(one["checked"] for one in found)
    reasons = [_reasons(found, outcome) for outcome in ("failed", "unchecked")]
    return [_share(found), f"{checked:,.0f}", *reasons]


def _reasons(found: Sequence[Found], outcome: str) -> str:
    total = sum((Counter(one[outcome]) for one in found), Counter[str]())
    return ", ".join(f"{reason} {count:,}" for reason, count in sorted(total.items())) or "–"


def _share(found: Sequence[Found]) -> str:
    """Mean share and interval of the runs in which anything was checked."""
    counted = [one for one in found if one["checked"]]
    if not counted:
        return "–"
    tried = min(one["checked"] for one in counted)
    shares = [one["proved"] / one["checked"] for one in counted]
    return share_text([{"correct": share * tried, "tried": tried} for share in shares])
