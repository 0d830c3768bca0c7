"""Who is ahead: the models of a group with mean, interval, rank and difference to the best.

- Differences are paired by seed pair: such runs saw the same rows in the same order.
- A model is called worse only if two 95% intervals of its difference exclude zero: Student's over
  the pair's own differences, and that of the two-way layout of all models and seeds. The interval
  shown spans both. Nothing is corrected for the number of comparisons, and the figure says so.

Usage: `standings(group)["rows"][0]["label"]` is the model with the lowest mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tangobench.eval.comparison.runs import Group, by_seeds, label_of, metric_title
from tangobench.eval.intervals import Layout, paired_t, two_way
from tangobench.eval.report.charts import Axis, Figure
from tangobench.eval.report.charts_compare import Effect, forest

Scores = Mapping[str, Mapping[Any, float]]
"""NLL by model and seed pair."""

BEST: Final = "lowest mean"


def standings(group: Group) -> dict[str, Any]:
    """The table of a group, best first, and its forest plot; no plot of a single model."""
    metric = group.metrics[0]
    scores = {
        model: found for model, runs in group.by_model.items() if (found := by_seeds(runs, metric))
    }
    order = sorted(scores, key=lambda model: float(np.mean(list(scores[model].values()))))
    layout = two_way(scores) if len(order) > 1 else None
    effects = [_effect(group, scores, layout, model, order[0]) for model in order]
    rows = [
        _row(group, rank, model, list(scores[model].values()), effect.verdict)
        for rank, (model, effect) in enumerate(zip(order, effects, strict=True), 1)
    ]
    return {
        "metric": metric_title(metric),
        "rows": rows,
        "seeds": group.expected,
        "sentence": _sentence(effects),
        "forest": _forest(group, metric, effects) if len(effects) > 1 else None,
    }


def _row(
    group: Group, rank: int, model: str, found: Sequence[float], verdict: str
) -> dict[str, Any]:
    interval = paired_t(found)  # of the mean itself
    return {
        "rank": rank,
        "key": group.style(model),
        "label": label_of(model),
        "mean": f"{float(np.mean(found)):.3f}",
        "interval": f"{interval[1]:.3f} to {interval[2]:.3f}" if interval else "one run",
        "runs": len(found),
        "verdict": verdict,
    }


def _effect(group: Group, scores: Scores, layout: Layout | None, model: str, best: str) -> Effect:
    """The difference of a model to the best, paired by seeds."""
    label, key = label_of(model), group.style(model)
    if model == best:
        return Effect(key=key, label=label, mean=0.0, interval=None, verdict=BEST)
    pairs = [scores[model][s] - scores[best][s] for s in scores[model] if s in scores[best]]
    means = [float(np.mean(list(scores[m].values()))) for m in (model, best)]
    mean = float(np.mean(pairs)) if pairs else means[0] - means[1]
    paired = paired_t(pairs)
    if paired is None or layout is None:
        words = "too few seeds to judge"
        return Effect(key=key, label=label, mean=mean, interval=None, verdict=words)
    pooled = layout.contrast({model: 1.0, best: -1.0})
    ends = (min(paired[1], pooled[1]), max(paired[2], pooled[2]))
    apart = ends[0] > 0
    verdict = f"worse than {label_of(best)}" if apart else f"no clear gap to {label_of(best)}"
    return Effect(key=key, label=label, mean=mean, interval=ends, verdict=verdict)


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
    best = effects[0].label
    return forest(
        f"Difference to {best}: {metric_title(metric)}, {group.family} runs",
        effects,
        x=Axis(label="difference of NLL, nats per token"),
        description=_sentence(effects),
        note="Mean difference on equal seeds and rows. The bar spans two 95% intervals, paired t "
        "and two-way layout; a model is called worse only if it stays right of zero. Not corrected "
        "for the number of comparisons, nor for choosing the best afterwards.",
    )
