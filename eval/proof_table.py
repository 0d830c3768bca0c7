"""The table of proofs that Lean judged.

- Shares are of the proofs that were checked; what was not checked has its own column.
- Runs of one group try the same theorems, so the interval is that of the mean share as if each
  theorem were tried once.

Usage: `table = proof_table(group)`, None if no run of the group was judged.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tangobench.eval.intervals import wilson
from tangobench.eval.published import LABELS
from tangobench.eval.render import Table
from tangobench.eval.report_runs import Group, Result
from tangobench.eval.tables import MISSING


def proof_table(group: Group) -> Table | None:
    """Proved, failed by reason and unchecked proofs of each architecture."""
    judged = {
        arch: [run["proof_check"] for run in runs if "proof_check" in run]
        for arch, runs in group.by_arch.items()
    }
    everything = [found for each in judged.values() for found in each]
    if not everything:
        return None
    checkers = ", ".join(sorted({found["checker"] for found in everything}))
    return Table(
        title=f"Proofs that Lean accepts: {group.family} runs",
        columns=["Model", "Proved", "Checked per run", "Not checked per run", "Why they failed"],
        rows=[[LABELS[arch], *_cells(each)] for arch, each in judged.items()],
        note=f"Ours; the paper has none. Checker: {checkers}. Greedy proofs of the validation "
        "theorems in place of the originals; mean over seeds, 95% Wilson interval over what was "
        f"checked. Root {group.root[:16]}…",
    )


def _cells(found: Sequence[dict[str, Any]]) -> list[str]:
    if not found:
        return [MISSING] * 4
    checked = statistics.fmean(one["checked"] for one in found)
    unchecked = statistics.fmean(one["generated"] - one["checked"] for one in found)
    reasons: dict[str, int] = {}
    for one in found:
        for reason, count in one["failed"].items():
            reasons[reason] = reasons.get(reason, 0) + count
    why = ", ".join(f"{reason} {count:,}" for reason, count in sorted(reasons.items()))
    return [_share(found), f"{checked:,.0f}", f"{unchecked:,.0f}", why or "–"]


def _share(found: Sequence[Result]) -> str:
    """Mean share and interval of the runs in which anything was checked."""
    shares = [one["proved"] / one["checked"] for one in found if one["checked"]]
    if not shares:
        return "–"
    mean = statistics.fmean(shares)
    low, high = wilson(mean * found[0]["checked"], found[0]["checked"])
    return f"{mean:.1%} ({low:.1%} … {high:.1%})"
