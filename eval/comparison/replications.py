"""The paper's orderings judged on small runs, and models with one part changed.

- Differences are paired: runs of one seed pair saw the same rows in the same order. Intervals are
  Student's, over seeds; an ablated run without its whole partner has a score but no difference.
- A claim "holds" only if the whole interval is on the paper's side, by the paired t of the two
  models and by the two-way layout of all. Claims are judged once all runs of a replication are
  there; the `sample` profile shows that everything runs and judges none.
- Runs on different roots are different replications.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tangobench.catalogue import CATALOGUE, METRICS, metrics_of
from tangobench.eval.comparison.analysis import Scores, judged, side
from tangobench.eval.comparison.runs import (
    MISSING,
    by_seeds,
    ends,
    require_one_root,
    signed,
    spread,
)
from tangobench.eval.comparison.studies import Result
from tangobench.eval.intervals import Interval, two_way
from tangobench.eval.published import CLAIMS, LABELS, NLL
from tangobench.eval.render import Table, tabled
from tangobench.model.config import ARCHS
from tangobench.model.training.recipes import RECIPES, Family, Recipe, runs
from tangobench.pipeline.core.lock import shown_root

_SCALE: Final = {
    "sample": "A toy trained for seconds: it shows that everything runs and says nothing about "
    "the models.",
    "mini": "Models and budgets are smaller than the paper's: compare orders, not values.",
}


def summarise(profile: Family, dataset: str, results: Sequence[Result]) -> dict[str, Any]:
    """Scores by architecture and, once all runs are there, the paper's orderings, judged."""
    require_one_root(results)
    metrics = metrics_of(dataset)
    whole = len(results) == len(runs(profile, dataset))
    found = {metric: _by_arch(results, metric) for metric in metrics}
    data = results[0]["data"]
    return {
        "profile": profile,
        "dataset": dataset,
        "root": data["root"],
        "content_root": data.get("content_root"),
        "runs": sorted(result["run"] for result in results),
        "metrics": metrics,
        "scores": {
            arch: {metric: list(found[metric][arch].values()) for metric in metrics}
            for arch in ARCHS
        },
        "claims": [
            judge(found[metrics[0]], *claim, metrics[0])
            for claim in (CLAIMS if whole and profile != "sample" else ())
        ],
    }


def _by_arch(results: Sequence[Result], metric: str) -> Scores:
    return {arch: by_seeds((r for r in results if r["arch"] == arch), metric) for arch in ARCHS}


def judge(scores: Scores, lower: str, higher: str, metric: str) -> dict[str, Any]:
    """Whether `lower` has the lower NLL: paired differences, their mean and both intervals."""
    found = judged({higher: 1.0, lower: -1.0}, scores, two_way(scores))
    paired, pooled, paper = found["paired"], found["two_way"], NLL[4]
    return {
        "lower": lower,
        "higher": higher,
        "metric": metric,
        "differences": found["per_seed"],
        "mean": paired and paired[0],
        "interval": paired and paired[1:],
        "two_way": pooled and pooled[1:],
        "paper": round(paper[higher][metric][0] - paper[lower][metric][0], 3),
        "verdict": verdict(paired, pooled),
    }


def verdict(paired: Interval | None, pooled: Interval | None) -> str:
    """What both intervals of (higher − lower) say about the claim; the stricter reading wins."""
    where = side(pooled, paired)
    if where is None or paired is None:
        return "not enough seeds"
    if where:
        return "holds" if where > 0 else "reversed"
    return f"undecided, mean {'agrees' if paired[0] > 0 else 'disagrees'}"


def replications(results: Sequence[Result]) -> Iterator[dict[str, Any]]:
    """The summary of every replication that some of the results belong to."""
    profiles: tuple[Family, ...] = ("mini", "sample")
    for profile in profiles:
        for dataset in CATALOGUE:
            hashes = {run.sha256 for run in runs(profile, dataset)}
            found = [result for result in results if result["run_sha256"] in hashes]
            for root in sorted({result["data"]["root"] for result in found}):
                same = [result for result in found if result["data"]["root"] == root]
                yield summarise(profile, dataset, same)


def replication_tables(results: Sequence[Result]) -> Iterator[Table]:
    """The tables of every replication that some of the results belong to."""
    for summary in replications(results):
        yield from summary_tables(summary)


def beside_paper(
    scores: Mapping[str, Mapping[str, Sequence[float]]], metrics: Sequence[str], depth: int
) -> list[list[str]]:
    """A row per architecture: our mean and the paper's, metric by metric."""
    rows = []
    for arch in ARCHS:
        cells = [LABELS[arch]]
        for metric in metrics:
            printed = NLL[depth][arch].get(metric)
            cells.append(spread(scores[arch][metric]))
            cells.append(f"{printed[0]:.3f} ± {printed[1]:.3f}" if printed else MISSING)
        rows.append(cells)
    return rows


def summary_tables(summary: dict[str, Any]) -> list[Table]:
    """The scores and the claims of a replication."""
    metrics, name = summary["metrics"], f"{summary['profile']} replication"
    what, root = f"{METRICS[metrics[0]]}, {name}", f"Data root {shown_root(summary)}"
    heads = [h for m in metrics for h in (f"{METRICS[m]} ({name})", f"{METRICS[m]} (paper, 44M)")]
    scores = Table(
        title=f"Validation NLL, {what}",
        columns=["Model", *heads],
        rows=beside_paper(summary["scores"], metrics, 4),
        note=f"{_SCALE.get(summary['profile'], '')} {root}",
    )
    claims = tabled(
        f"The paper's orderings, {what}",
        summary["claims"],
        {
            "Claim": lambda claim: f"{LABELS[claim['lower']]} < {LABELS[claim['higher']]}",
            "Verdict": lambda claim: claim["verdict"],
            "Difference": _mean,
            "Paper": lambda claim: f"{claim['paper']:+.3f}",
            "95% interval, paired t": lambda claim: ends(claim["interval"]),
            "95% interval, two-way layout": lambda claim: ends(claim["two_way"]),
            "Per seed": lambda claim: signed(claim["differences"]),
        },
        "NLL of the second model minus the first on equal seeds and rows; positive agrees "
        "with the paper. A verdict needs both intervals: from the pair's own differences, and from "
        f"the residual of all models and seeds. {root}",
    )
    return [scores, claims] if summary["claims"] else [scores]


def _mean(found: dict[str, Any]) -> str:
    return "–" if found["mean"] is None else f"{found['mean']:+.3f}"


def differences(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Every ablation among some results with its paired differences, in the recipes' order."""
    found: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        found.setdefault((result["data"]["root"], result["recipe"]["name"]), []).append(result)
    order = {name: place for place, name in enumerate(RECIPES)}
    ablated = [key for key, same in found.items() if same[0]["family"] == "ablation"]
    ablated.sort(key=lambda key: (key[0], order[key[1]]))
    return [
        _ablation(found[root, name], found.get((root, RECIPES[name].unablated), ()))
        for root, name in ablated
    ]


def _ablation(ablated: Sequence[Result], whole: Sequence[Result]) -> dict[str, Any]:
    recipe, data = Recipe(**ablated[0]["recipe"]), ablated[0]["data"]
    metric = metrics_of(recipe.dataset)[0]
    mine, theirs = by_seeds(ablated, metric), by_seeds(whole, metric)
    found = judged({"mine": 1.0, "theirs": -1.0}, {"mine": mine, "theirs": theirs}, None)
    paired = found["paired"]
    return {
        "recipe": recipe.name,
        "label": label(recipe),
        "profile": recipe.profile,
        "metric": metric,
        "root": data["root"],
        "content_root": data.get("content_root"),
        "nonembedding_params": recipe.model_config().nonembedding_params,
        "scores": list(mine.values()),
        "unablated": [theirs[pair] for pair in mine if pair in theirs],
        "differences": found["per_seed"],
        "mean": paired and paired[0],
        "interval": paired and paired[1:],
    }


def label(recipe: Recipe) -> str:
    """What an ablation changes, in words."""
    whole, name = RECIPES[recipe.unablated], LABELS[recipe.arch]
    if not recipe.null_gate:
        return f"{name} without the null gate"
    if not recipe.temperature:
        return f"{name} without the temperature"
    if recipe.window != whole.window:
        return f"{name}, window {recipe.window} instead of {whole.window}"
    return f"{name}, heads {recipe.heads} instead of {whole.heads}"


def ablation_tables(found: Sequence[dict[str, Any]]) -> Iterator[Table]:
    """One table per profile, metric and root."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for item in found:
        groups.setdefault((item["profile"], item["metric"], item["root"]), []).append(item)
    for (profile, metric, _), items in groups.items():
        toy = " A toy trained for seconds: it says nothing about the models."
        yield tabled(
            f"Ablations: {METRICS[metric]}, {profile} runs",
            items,
            {
                "Changed": lambda item: item["label"],
                "Nonembedding parameters": lambda item: f"{item['nonembedding_params']:,}",
                "NLL": lambda item: spread(item["scores"]),
                "NLL of the whole model": lambda item: spread(item["unablated"]),
                "Difference": _mean,
                "95% interval": lambda item: ends(item["interval"]),
                "Per seed": lambda item: signed(item["differences"]),
            },
            "Ours; the paper has none. NLL of the changed model minus the whole one on equal "
            "seeds and rows: positive if the change hurts. Student's t over seeds. "
            f"Data root {shown_root(items[0])}{toy if profile == 'sample' else ''}",
        )
