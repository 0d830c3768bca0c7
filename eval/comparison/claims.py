"""The paper's orderings, judged on small runs, and the tables that show it.

- Claims are judged by paired differences: runs of one seed pair saw the same rows in the same
  order, so their difference has less noise than either. The interval is Student's, over seeds.
- The verdict is mechanical and follows the stricter reading: "holds" needs the whole interval on
  the paper's side, by the paired t of the two models and by the two-way layout of all. The `sample`
  profile shows that everything runs; thirty steps of a toy make no claims.
- Orderings are judged once all runs of a replication are there; before that, scores say how many
  are missing. Runs on different roots are different replications.

Usage: `render(list(replication_tables(results)), "markdown")`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from tangobench.catalogue import CATALOGUE, METRICS, metrics_of
from tangobench.eval.comparison.studies import seeds_of
from tangobench.eval.comparison.tables import require_one_root, scores, spread
from tangobench.eval.intervals import Interval, paired_t, two_way
from tangobench.eval.published import CLAIMS, LABELS, NLL
from tangobench.eval.render import Table
from tangobench.model.config import ARCHS
from tangobench.model.training.recipes import Family, runs

_SCALE: Final = {
    "sample": "A toy trained for seconds: it shows that everything runs and says nothing about "
    "the models.",
    "mini": "Models and budgets are smaller than the paper's: compare orders, not values.",
}


def summarise(profile: Family, dataset: str, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Scores by architecture and, once all runs are there, the paper's orderings, judged."""
    require_one_root(results)
    metrics = metrics_of(dataset)
    whole = len(results) == len(runs(profile, dataset))
    claims = CLAIMS if whole and profile != "sample" else ()
    return {
        "profile": profile,
        "dataset": dataset,
        "root": results[0]["data"]["root"],
        "runs": sorted(result["run"] for result in results),
        "metrics": metrics,
        "scores": {
            arch: {metric: scores(results, arch, metric) for metric in metrics} for arch in ARCHS
        },
        "claims": [judge(results, *claim, metrics[0], depth=4) for claim in claims],
    }


def judge(
    results: Sequence[dict[str, Any]], lower: str, higher: str, metric: str, *, depth: int
) -> dict[str, Any]:
    """Whether `lower` has the lower NLL: paired differences, their mean and both intervals."""
    below, above = scores(results, lower, metric), scores(results, higher, metric)
    differences = [b - a for a, b in zip(below, above, strict=True)]
    interval = paired_t(differences)
    mean, low, high = interval or (None, None, None)
    layout = two_way(_by_seeds(results, metric))
    pooled = None if layout is None else layout.contrast({higher: 1.0, lower: -1.0})
    paper = NLL[depth]
    return {
        "lower": lower,
        "higher": higher,
        "metric": metric,
        "differences": differences,
        "mean": mean,
        "interval": None if interval is None else [low, high],
        "two_way": None if pooled is None else list(pooled[1:]),
        "paper": round(paper[higher][metric][0] - paper[lower][metric][0], 3),
        "verdict": verdict(interval, pooled),
    }


def _by_seeds(results: Sequence[dict[str, Any]], metric: str) -> dict[str, dict[Any, float]]:
    found: dict[str, dict[Any, float]] = {}
    for result in results:
        cells = found.setdefault(result["arch"], {})
        cells[seeds_of(result)] = float(result["scores"][metric]["nll"])
    return found


def verdict(paired: Interval | None, pooled: Interval | None) -> str:
    """What both intervals of (higher − lower) say about the claim; the stricter reading wins."""
    if paired is None or pooled is None:
        return "not enough seeds"
    mean = paired[0]
    if paired[1] > 0 and pooled[1] > 0:
        return "holds"
    if paired[2] < 0 and pooled[2] < 0:
        return "reversed"
    return "undecided, mean agrees" if mean > 0 else "undecided, mean disagrees"


def replications(results: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The summary of every replication that some of the results belong to."""
    profiles: tuple[Family, ...] = ("mini", "sample")
    for profile in profiles:
        for dataset in CATALOGUE:
            hashes = {run.sha256 for run in runs(profile, dataset)}
            found = [result for result in results if result["run_sha256"] in hashes]
            for root in sorted({result["data"]["root"] for result in found}):
                same = [result for result in found if result["data"]["root"] == root]
                yield summarise(profile, dataset, same)


def replication_tables(results: Sequence[dict[str, Any]]) -> Iterator[Table]:
    """The tables of every replication that some of the results belong to."""
    for summary in replications(results):
        yield from summary_tables(summary)


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
        columns=[
            *("Claim", "Verdict", "Difference", "Paper"),
            *("95% interval, paired t", "95% interval, two-way layout", "Per seed"),
        ],
        rows=[_claim_row(claim) for claim in summary["claims"]],
        note="NLL of the second model minus the first on equal seeds and rows; positive agrees "
        "with the paper. A verdict needs both intervals: from the pair's own differences, and from "
        f"the residual of all models and seeds. Data root {summary['root'][:16]}…",
    )
    return [compared, judged]


def _claim_row(claim: dict[str, Any]) -> list[str]:
    return [
        f"{LABELS[claim['lower']]} < {LABELS[claim['higher']]}",
        claim["verdict"],
        "–" if claim["mean"] is None else f"{claim['mean']:+.3f}",
        f"{claim['paper']:+.3f}",
        _ends(claim["interval"]),
        _ends(claim["two_way"]),
        ", ".join(f"{difference:+.3f}" for difference in claim["differences"]),
    ]


def _ends(interval: Sequence[float] | None) -> str:
    return "–" if interval is None else f"{interval[0]:+.3f} … {interval[1]:+.3f}"
