"""The results' page: our runs, and the paper's figures beside them, never mixed.

- The folder's own runs come first, those that come with the project after them.
- A group is one dataset, recipe family and depth; only architectures differ inside it.
- Differences are paired by seed pair. A model is called worse only if two 95% intervals of its
  difference exclude zero: Student's over the pair's own differences, and that of the two-way layout
  of all models and seeds. Nothing is corrected for the number of comparisons; the figure says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tangobench.catalogue import METRICS, title_of
from tangobench.eval import published as paper
from tangobench.eval.comparison import analysis, runs
from tangobench.eval.comparison.beyond import gap_tables, gaps, group_tables
from tangobench.eval.comparison.runs import Group, label_of, metric_title, values
from tangobench.eval.comparison.tables import paper_cell, replications, summary_tables
from tangobench.eval.intervals import Layout, paired_t, two_way
from tangobench.eval.report.charts import Axis, Effect, Figure, Series, Table, forest, plot
from tangobench.eval.report.drawing import short
from tangobench.eval.report.figures import breakdown_figures, curve_figures, gap_figure
from tangobench.model.config import ARCHS, published

if TYPE_CHECKING:
    from tangobench.eval.report.gather import Found


class Standing(NamedTuple):
    """A model among those of its group."""

    nll: str
    interval: str
    """Of the mean itself, over the runs of this model alone."""
    runs: int
    effect: Effect
    """The difference to the best model."""


def results_context(found: Found) -> dict[str, Any]:
    results = found.results
    claims = {
        (summary["profile"], summary["dataset"], summary["root"]): summary_tables(summary)[1]
        for summary in replications(results)
        if summary["claims"]  # a toy judges none
    }
    return {
        "groups": sorted(
            (_group(group, claims, found.shipped) for group in runs.groups(results)),
            key=lambda group: group["shipped"],
        ),
        "studies": _studies(results, ablations=False),
        "gaps": [(gap_figure(gap), list(gap_tables(gap))) for gap in gaps(results)],
        "ablations": _studies(results, ablations=True),
        "paper": [paper_table(4), paper_table(8)],
        "paper_figure": paper_figure(),
    }


def _studies(results: Sequence[dict[str, Any]], *, ablations: bool) -> list[Table]:
    chosen = [s for s in analysis.studies_in(results) if (s.name == "ablations") is ablations]
    return [table for study in chosen for table in analysis.study_tables(study, results)]


def _group(
    group: Group, claims: Mapping[tuple[str, str, str], Table], shipped: frozenset[str]
) -> dict[str, Any]:
    title = f"{title_of(group.dataset)}, {group.family} runs"
    return {
        "id": f"{group.dataset}-{group.family}-{group.depth}-{group.root[:8]}",
        "title": title + ("" if group.depth == 4 else f", depth {group.depth}"),
        "family": group.family,
        "shipped": {run["run"] for run in group.every} <= shipped,
        "parameters": group.first["model"]["nonembedding_params"],
        "steps": group.first["step"],
        "root": group.root,
        "code": len({run["trained_with"]["code_sha256"] for run in group.every}),
        "table": beside_paper(group),
        "claims": claims.get((group.family, group.dataset, group.root)),
        "standings": standings(group),
        "curves": curve_figures(group),
        "cost": cost(group),
        "breakdowns": breakdown_figures(group),
        "beyond": list(group_tables(group)),
    }


def beside_paper(group: Group) -> Table:
    rows = []
    for model, chosen in group.by_model.items():
        cells = [label_of(model)]
        for metric in group.metrics:
            cells.append(runs.spread(values(chosen, metric), group.expected))
            cells.append(paper_cell(group.depth, model, metric))
        rows.append(cells)
    heads = [f"{metric_title(m)}, {whose}" for m in group.metrics for whose in ("here", "paper")]
    return Table(columns=["Model", *heads], rows=rows)


def paper_table(depth: int) -> Table:
    title = f"The paper’s figures, {depth} block applications"
    metrics = paper.NLL[depth]["tango"]
    rows = [[paper.LABELS[a], *(paper_cell(depth, a, m) for m in metrics)] for a in ARCHS]
    return Table(title=title, columns=["Model", *(METRICS[m] for m in metrics)], rows=rows)


def cost(group: Group) -> Figure | None:
    metric = group.metrics[0]
    points = []
    for model, chosen in group.by_model.items():
        scores, count = values(chosen, metric), runs.run_macs(chosen[0])
        if scores and count is not None:
            ends = (float(np.mean(scores)), min(scores), max(scores))
            points.append((group.style(model), label_of(model), count, ends))
    title = f"NLL against operations: {title_of(group.dataset)}, {group.family}"
    where = f"{metric_title(metric)}: validation NLL"
    return _costs(title, where, points, "Bars span the seeds.") if points else None


def paper_figure() -> Figure:
    points = []
    for arch in ARCHS:
        middle, deviation = paper.NLL[4][arch]["fineweb"]
        count = runs.operations(published(arch, "fineweb"), 8192)
        ends = (middle, middle - deviation, middle + deviation)
        points.append((arch, paper.LABELS[arch], count, ends))
    title = "The paper’s FineWeb-Edu results against operations"
    note = "The paper’s numbers, not ours. Bars are one sample standard deviation of three runs."
    return _costs(title, "validation NLL, nats per token (paper)", points, note, hollow=True)


def _costs(
    title: str,
    where: str,
    points: Iterable[tuple[str, str, int, tuple[float, float, float]]],
    note: str,
    *,
    hollow: bool = False,
) -> Figure:
    """Points of key, label, operations, and NLL with its lower and upper end."""
    series = [
        Series(key=key, label=label, x=[count], y=[y], low=[low], high=[high], hollow=hollow)
        for key, label, count, (y, low, high) in points
    ]
    return plot(
        title,
        series,
        x=Axis(label="MACs per sequence (log scale)", log=True, text=short),
        y=Axis(label=where, text="{:.3f}".format),
        note=f"Lower left is better. {note}",
        joined=False,
        dots="shown",
    )


def standings(group: Group) -> dict[str, Any]:
    """The models of a group, best first, and their forest plot; no plot of a single model."""
    metric = group.metrics[0]
    scores = {
        model: found
        for model, chosen in group.by_model.items()
        if (found := runs.by_seeds(chosen, metric))
    }
    means = {model: float(np.mean(list(found.values()))) for model, found in scores.items()}
    order = sorted(means, key=means.__getitem__)
    layout = two_way(scores) if len(order) > 1 else None
    rows = []
    for model in order:
        own = paired_t(list(scores[model].values()))
        interval = f"{own[1]:.3f} to {own[2]:.3f}" if own else "one run"
        effect = _effect(group, scores, layout, model, order[0])
        rows.append(Standing(f"{means[model]:.3f}", interval, len(scores[model]), effect))
    return {
        "metric": metric_title(metric),
        "rows": rows,
        "sentence": _sentence(rows),
        "forest": _forest(group, metric, rows) if len(rows) > 1 else None,
    }


def _effect(
    group: Group, scores: analysis.Scores, layout: Layout | None, model: str, best: str
) -> Effect:
    """The difference of a model to the best, paired by seeds."""
    effect = partial(Effect, key=group.style(model), label=label_of(model))
    if model == best:
        return effect(mean=0.0, interval=None, verdict="lowest mean")
    found = analysis.judged({model: 1.0, best: -1.0}, scores, layout)
    first, second = (float(np.mean(list(scores[name].values()))) for name in (model, best))
    mean = float(np.mean(found["per_seed"])) if found["per_seed"] else first - second
    paired, pooled = found["paired"], found["two_way"]
    if paired is None or pooled is None:
        return effect(mean=mean, interval=None, verdict="too few common seeds to judge")
    ends = (min(paired[1], pooled[1]), max(paired[2], pooled[2]))
    words = "worse than" if ends[0] > 0 else "no clear gap to"
    return effect(mean=mean, interval=ends, verdict=f"{words} {label_of(best)}")


def _sentence(rows: Sequence[Standing]) -> str:
    """Which model is best, by how much and how sure."""
    best, others = rows[0], [row.effect for row in rows[1:]]
    if not others:
        return f"{best.effect.label} is the only model here."
    parts = [f"{best.effect.label} has the lowest mean NLL, {best.nll}."]
    sure = (
        f"95% interval {others[0].ends}" if others[0].interval else "too few common seeds to judge"
    )
    parts.append(f"The next is {others[0].label} at {others[0].mean:+.3f} on equal seeds ({sure}).")
    for verdict, before, after in (
        ("worse", "The gap to", " is larger than the seeds explain."),
        ("no clear", f"The seeds cannot separate {best.effect.label} from", "."),
    ):
        names = [effect.label for effect in others if effect.verdict.startswith(verdict)]
        listed = " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
        parts += [f"{before} {listed}{after}"] if names else []
    return " ".join(parts)


def _forest(group: Group, metric: str, rows: Sequence[Standing]) -> Figure:
    return forest(
        f"Difference to {rows[0].effect.label}: {metric_title(metric)}, {group.family} runs",
        [row.effect for row in rows],
        x=Axis(label="difference of NLL, nats per token"),
        description=_sentence(rows),
        note="Mean difference on equal seeds and rows. The bar spans two 95% intervals, paired t "
        "and two-way layout; a model is called worse only if it stays right of zero. Not corrected "
        "for the number of comparisons, nor for choosing the best afterwards.",
    )
