"""Tables of replications: scores beside the paper's, and its orderings with their verdicts.

- Orderings are judged once all runs of a replication are there; before that, scores say how many
  are missing.
- Runs on different roots are different replications.

Usage: `render(list(replication_tables(results)), "markdown")`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from tangobench.eval.published import LABELS, METRICS, NLL
from tangobench.eval.render import Table
from tangobench.eval.replicate import METRICS_OF, summarise
from tangobench.eval.tables import spread
from tangobench.model.config import ARCHS
from tangobench.model.recipes import Family, runs

_SCALE: Final = {
    "sample": "A toy trained for seconds: it shows that everything runs and says nothing about "
    "the models.",
    "mini": "Models and budgets are smaller than the paper's: compare orders, not values.",
}


def replication_tables(results: Sequence[dict[str, Any]]) -> Iterator[Table]:
    """The tables of every replication that some of the results belong to."""
    profiles: tuple[Family, ...] = ("mini", "sample")
    for profile in profiles:
        for dataset in METRICS_OF:
            hashes = {run.sha256 for run in runs(profile, dataset)}
            found = [result for result in results if result["run_sha256"] in hashes]
            for root in sorted({result["data"]["root"] for result in found}):
                same = [result for result in found if result["data"]["root"] == root]
                yield from summary_tables(summarise(profile, dataset, same))


def summary_tables(summary: dict[str, Any]) -> list[Table]:
    """The scores and the claims of a replication."""
    metrics = summary["metrics"]
    name = f"{summary['profile']} replication"
    score_rows = []
    for arch in ARCHS:
        cells = [LABELS[arch]]
        for metric in metrics:
            mean, deviation = NLL[4][arch][metric]
            cells += [spread(summary["scores"][arch][metric]), f"{mean:.3f} ± {deviation:.3f}"]
        score_rows.append(cells)
    heads = [h for m in metrics for h in (f"{METRICS[m]} ({name})", f"{METRICS[m]} (paper, 44M)")]
    compared = Table(
        title=f"Validation NLL, {METRICS[metrics[0]]}, {name}",
        columns=["Model", *heads],
        rows=score_rows,
        note=f"{_SCALE[summary['profile']]} Data root {summary['root'][:16]}…",
    )
    if not summary["claims"]:
        return [compared]
    judged = Table(
        title=f"The paper's orderings, {METRICS[metrics[0]]}, {name}",
        columns=["Claim", "Verdict", "Difference", "Paper", "95% interval", "Per seed"],
        rows=[_claim_row(claim) for claim in summary["claims"]],
        note="NLL of the second model minus the first on equal seeds and rows; positive agrees "
        f"with the paper. Student's t over seeds. Data root {summary['root'][:16]}…",
    )
    return [compared, judged]


def _claim_row(claim: dict[str, Any]) -> list[str]:
    interval = claim["interval"]
    return [
        f"{LABELS[claim['lower']]} < {LABELS[claim['higher']]}",
        claim["verdict"],
        "–" if claim["mean"] is None else f"{claim['mean']:+.3f}",
        f"{claim['paper']:+.3f}",
        "–" if interval is None else f"{interval[0]:+.3f} … {interval[1]:+.3f}",
        ", ".join(f"{difference:+.3f}" for difference in claim["differences"]),
    ]
