"""The results' page: our runs, and the paper's figures beside them, never mixed.

- The folder's own runs come first, those that come with the project after them.
- A group is one dataset, recipe family and depth; only architectures differ inside it.
- Differences are paired by seed pair. A model is called worse only if two 95% intervals of its
  difference exclude zero: Student's over the pair's own differences, and that of the two-way layout
  of all models and seeds. Nothing is corrected for the number of comparisons; the figure says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tangobench.catalogue import METRICS, title_of
from tangobench.eval import published as paper
from tangobench.eval.comparison.analysis import studies_in, study_tables
from tangobench.eval.comparison.beyond import gap_tables, gaps, group_tables
from tangobench.eval.comparison.replications import (
    ablation_tables,
    differences,
    replications,
    summary_tables,
)
from tangobench.eval.comparison.runs import (
    Group,
    by_seeds,
    groups,
    label_of,
    metric_title,
    operations,
    run_macs,
    spread,
    values,
)
from tangobench.eval.intervals import Layout, paired_t, two_way
from tangobench.eval.report.charts import Axis, Effect, Figure, Series, Table, forest, scatter
from tangobench.eval.report.drawing import short
from tangobench.eval.report.figures import breakdown_figures, curve_figures, gap_figure
from tangobench.eval.report.gather import Found
from tangobench.model.config import ARCHS, published

Scores = Mapping[str, Mapping[Any, float]]
"""NLL by model and seed pair."""

BEST: Final = "lowest mean"


def results_context(found: Found) -> dict[str, Any]:
    """Everything that the results page shows."""
    results = found.results
    claims = {
        (summary["profile"], summary["dataset"], summary["root"]): summary_tables(summary)[1]
        for summary in replications(results)
        if summary["claims"]  # a toy judges none
    }
    return {
        "groups": sorted(
            (_group(group, claims, found.shipped) for group in groups(results)),
            key=lambda group: group["shipped"],
        ),
        "studies": [t for study, _ in studies_in(results) for t in study_tables(study, results)],
        "gaps": [(gap_figure(gap), list(gap_tables(gap))) for gap in gaps(results)],
        "ablations": list(ablation_tables(differences(results))),
        "paper": [paper_table(4), paper_table(8)],
        "paper_figure": paper_figure(),
    }


def _group(
    group: Group, claims: Mapping[tuple[str, str, str], Table], shipped: frozenset[str]
) -> dict[str, Any]:
    every = [run for runs in group.by_model.values() for run in runs]
    title = f"{title_of(group.dataset)}, {group.family} runs"
    return {
        "id": f"{group.dataset}-{group.family}-{group.depth}-{group.root[:8]}",
        "title": title + ("" if group.depth == 4 else f", depth {group.depth}"),
        "published": group.family == "published",
        "trial": group.family == "sample",
        "shipped": {run["run"] for run in every} <= shipped,
        "parameters": group.first["model"]["nonembedding_params"],
        "steps": group.first["step"],
        "root": group.root,
        "code": len({run["trained_with"]["code_sha256"] for run in every}),
        "table": comparison(group),
        "claims": claims.get((group.family, group.dataset, group.root)),
        "standings": standings(group),
        "curves": curve_figures(group),
        "cost": cost(group),
        "breakdowns": breakdown_figures(group),
        "beyond": list(group_tables(group)),
    }


def comparison(group: Group) -> dict[str, Any]:
    """Our final NLL by metric, the paper's beside it."""
    means = {
        metric: {
            m: float(np.mean(v)) for m, r in group.by_model.items() if (v := values(r, metric))
        }
        for metric in group.metrics
    }
    rows = []
    for arch, runs in group.by_model.items():
        cells = []
        for metric, by_arch in means.items():
            printed = paper.NLL.get(group.depth, {}).get(arch, {}).get(metric)
            cells.append(
                {
                    "ours": spread(values(runs, metric), group.expected),
                    "best": arch in by_arch and by_arch[arch] == min(by_arch.values()),
                    "paper": "–" if printed is None else _plus_minus(printed),
                }
            )
        rows.append({"arch": group.style(arch), "label": label_of(arch), "cells": cells})
    return {"metrics": [metric_title(metric) for metric in group.metrics], "rows": rows}


def _plus_minus(printed: tuple[float, float]) -> str:
    return "{:.3f} ± {:.3f}".format(*printed)


def cost(group: Group) -> Figure | None:
    """Final NLL against operations per sequence."""
    metric, series = group.metrics[0], []
    for arch, runs in group.by_model.items():
        scores, count, label = values(runs, metric), run_macs(runs[0]), label_of(arch)
        if scores and count is not None:
            middle = float(np.mean(scores))
            tip = f"{label}: {middle:.3f} at {short(count)} MACs"
            ends = (min(scores), max(scores))
            series.append(_point(group.style(arch), label, (count, middle), ends, tip))
    if not series:
        return None
    return scatter(
        f"NLL against operations: {title_of(group.dataset)}, {group.family}",
        series,
        x=Axis(label="MACs per sequence (log scale)", log=True, text=short),
        y=Axis(label=f"{metric_title(metric)}: validation NLL"),
        description="Final validation NLL against multiply–accumulate operations per sequence.",
        note="Lower left is better. Bars span the seeds.",
    )


def _point(
    key: str,
    label: str,
    at: tuple[float, float],
    ends: tuple[float, float],
    tip: str,
    *,
    hollow: bool = False,
) -> Series:
    x, y, low, high = ([value] for value in (*at, *ends))
    found = Series(key=key, label=label, x=x, y=y, low=low, high=high)
    return replace(found, tips=[tip], hollow=hollow)


def paper_table(depth: int) -> dict[str, Any]:
    """The paper's NLL table for a depth, its lowest figures marked."""
    table = paper.NLL[depth]
    metrics = list(table["tango"])
    best = {metric: min(row[metric][0] for row in table.values()) for metric in metrics}
    rows = [
        {
            "label": paper.LABELS[arch],
            "cells": [{"text": _plus_minus(row[m]), "best": row[m][0] == best[m]} for m in metrics],
        }
        for arch, row in table.items()
    ]
    return {"depth": depth, "metrics": [METRICS[m] for m in metrics], "rows": rows}


def paper_figure() -> Figure:
    """The paper's FineWeb-Edu NLL against operation counts."""
    series = []
    for arch in ARCHS:
        middle, deviation = printed = paper.NLL[4][arch]["fineweb"]
        count, label = operations(published(arch, "fineweb"), 8192), paper.LABELS[arch]
        tip = f"{label}: {_plus_minus(printed)}, {short(count)} MACs"
        ends = (middle - deviation, middle + deviation)
        series.append(_point(arch, label, (count, middle), ends, tip, hollow=True))
    return scatter(
        "The paper's FineWeb-Edu results against operations",
        series,
        x=Axis(label="MACs per 8,192-token sequence (log scale)", log=True, text=short),
        y=Axis(label="validation NLL, nats per token (paper)"),
        description="The paper's FineWeb-Edu validation NLL at depth four against MACs per "
        "sequence: TANGO 3.293 at the highest count, WANGO 3.355, Untied Transformer++ 3.318.",
        note="The paper's numbers, not ours. Bars are one sample standard deviation of three runs.",
    )


def standings(group: Group) -> dict[str, Any]:
    """The table of a group, best first, and its forest plot; no plot of a single model."""
    metric = group.metrics[0]
    scores = {
        model: found for model, runs in group.by_model.items() if (found := by_seeds(runs, metric))
    }
    means = {model: float(np.mean(list(found.values()))) for model, found in scores.items()}
    order = sorted(means, key=means.__getitem__)
    layout = two_way(scores) if len(order) > 1 else None
    effects = [_effect(group, scores, layout, model, order[0]) for model in order]
    rows = []
    for rank, (model, effect) in enumerate(zip(order, effects, strict=True), 1):
        interval = paired_t(list(scores[model].values()))  # of the mean itself
        rows.append(
            {
                "rank": rank,
                "key": effect.key,
                "label": effect.label,
                "mean": f"{means[model]:.3f}",
                "interval": f"{interval[1]:.3f} to {interval[2]:.3f}" if interval else "one run",
                "runs": len(scores[model]),
                "verdict": effect.verdict,
            }
        )
    return {
        "metric": metric_title(metric),
        "rows": rows,
        "sentence": _sentence(effects),
        "forest": _forest(group, metric, effects) if len(effects) > 1 else None,
    }


def _effect(group: Group, scores: Scores, layout: Layout | None, model: str, best: str) -> Effect:
    """The difference of a model to the best, paired by seeds."""

    def effect(mean: float, interval: tuple[float, float] | None, verdict: str) -> Effect:
        style = {"key": group.style(model), "label": label_of(model)}
        return Effect(**style, mean=mean, interval=interval, verdict=verdict)

    if model == best:
        return effect(0.0, None, BEST)
    pairs = [scores[model][s] - scores[best][s] for s in scores[model] if s in scores[best]]
    means = [float(np.mean(list(scores[m].values()))) for m in (model, best)]
    mean = float(np.mean(pairs)) if pairs else means[0] - means[1]
    paired = paired_t(pairs)
    if paired is None or layout is None:
        return effect(mean, None, "too few seeds to judge")
    pooled = layout.contrast({model: 1.0, best: -1.0})
    ends = (min(paired[1], pooled[1]), max(paired[2], pooled[2]))
    words = "worse than" if ends[0] > 0 else "no clear gap to"
    return effect(mean, ends, f"{words} {label_of(best)}")


def _sentence(effects: Sequence[Effect]) -> str:
    """The forest plot in words."""
    best, others = effects[0].label, effects[1:]
    worse = [e.label for e in others if e.verdict.startswith("worse")]
    close = [e.label for e in others if e.verdict.startswith("no clear")]
    if not others:
        return f"{best} is the only model here."
    if not worse and not close:
        return f"{best} has the lowest NLL; too few seeds to say by how much."
    parts = [f"{best} has the lowest mean NLL."]
    if worse:
        parts.append(f"The gap to {_listed(worse)} is larger than the seeds explain.")
    if close:
        parts.append(f"The seeds cannot separate it from {_listed(close)}.")
    return " ".join(parts)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _forest(group: Group, metric: str, effects: Sequence[Effect]) -> Figure:
    return forest(
        f"Difference to {effects[0].label}: {metric_title(metric)}, {group.family} runs",
        effects,
        x=Axis(label="difference of NLL, nats per token"),
        description=_sentence(effects),
        note="Mean difference on equal seeds and rows. The bar spans two 95% intervals, paired t "
        "and two-way layout; a model is called worse only if it stays right of zero. Not corrected "
        "for the number of comparisons, nor for choosing the best afterwards.",
    )
