"""The results' page: our runs, and the paper's figures beside them, never mixed.

- The folder's own runs come first, those that come with the project after them.
- A group is one dataset, recipe family and depth; only architectures differ inside it.
- Differences are paired by seed pair. A model is called worse only if two 95% intervals of its
  difference exclude zero: Student's over the pair's own differences, and that of the two-way layout
  of all models and seeds. Nothing is corrected for the number of comparisons; the figure says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tangobench.catalogue import METRICS, title_of
from tangobench.eval import published as paper
from tangobench.eval.comparison import analysis, runs
from tangobench.eval.comparison.beyond import gap_tables, gaps, group_tables
from tangobench.eval.comparison.runs import Group, label_of, metric_title, values
from tangobench.eval.comparison.tables import paper_cell, replications, summary_tables
from tangobench.eval.intervals import Layout, paired_t, two_way
from tangobench.eval.render import Table
from tangobench.eval.report.charts import plot
from tangobench.eval.report.drawing import Axis, Figure, Scale, Series, plain, short
from tangobench.eval.report.figures import breakdown_figures, curve_figures, gap_figure
from tangobench.model.config import ARCHS, published

if TYPE_CHECKING:
    from tangobench.eval.report.gather import Found


class Standing(NamedTuple):
    """A model among those of its group, and its difference to the best of them."""

    key: str
    label: str
    nll: str
    own: str
    """Interval of the mean itself, over the runs of this model alone."""
    runs: int
    mean: float
    interval: tuple[float, float] | None
    verdict: str

    @property
    def ends(self) -> str:
        return "{:+.3f} to {:+.3f}".format(*self.interval) if self.interval else ""


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
    def cells(model: str, metric: str) -> tuple[str, str]:
        ours = runs.spread(values(group.by_model[model], metric), group.expected)
        return ours, paper_cell(group.depth, model, metric)

    heads = [f"{metric_title(m)}, {whose}" for m in group.metrics for whose in ("here", "paper")]
    rows = [
        [label_of(model), *(cell for m in group.metrics for cell in cells(model, m))]
        for model in group.by_model
    ]
    return Table(columns=["Model", *heads], rows=rows)


def paper_table(depth: int) -> Table:
    title = f"The paper’s figures, {depth} block applications"
    metrics = paper.NLL[depth]["tango"]
    rows = [[paper.LABELS[a], *(paper_cell(depth, a, m) for m in metrics)] for a in ARCHS]
    return Table(title=title, columns=["Model", *(METRICS[m] for m in metrics)], rows=rows)


def cost(group: Group) -> Figure | None:
    metric = group.metrics[0]
    series = [
        Series.over([[v] for v in found], [count], key=group.style(model), label=label_of(model))
        for model, chosen in group.by_model.items()
        if (found := values(chosen, metric)) and (count := runs.run_macs(chosen[0])) is not None
    ]
    title = f"NLL against operations: {title_of(group.dataset)}, {group.family}"
    where = f"{metric_title(metric)}: validation NLL"
    return _costs(title, where, series, "Bars span the seeds.") if series else None


def paper_figure() -> Figure:
    series = []
    for arch in ARCHS:
        nll, deviation = paper.NLL[4][arch]["fineweb"]
        ends = {"y": [nll], "low": [nll - deviation], "high": [nll + deviation]}
        count = runs.operations(published(arch, "fineweb"), 8192)
        series.append(Series(key=arch, label=paper.LABELS[arch], x=[count], hollow=True, **ends))
    title = "The paper’s FineWeb-Edu results against operations"
    note = "The paper’s numbers, not ours. Bars are one sample standard deviation of three runs."
    return _costs(title, "validation NLL, nats per token (paper)", series, note)


def _costs(title: str, where: str, series: Sequence[Series], note: str) -> Figure:
    return plot(
        title,
        series,
        x=Axis(label="MACs per sequence", log=10, text=short),
        y=Axis(label=where, text="{:.3f}".format),
        note=f"Lower left is better. {note}",
    )


def standings(group: Group) -> dict[str, Any]:
    """The models of a group, best first, each with its difference to the best as a forest plot."""
    metric = group.metrics[0]
    found = {model: runs.by_seeds(chosen, metric) for model, chosen in group.by_model.items()}
    scores = {model: nlls for model, nlls in found.items() if nlls}
    means = {model: float(np.mean(list(nlls.values()))) for model, nlls in scores.items()}
    order = sorted(means, key=means.__getitem__)
    layout = two_way(scores) if len(order) > 1 else None
    rows = []
    for model in order:
        nlls, nll = list(scores[model].values()), f"{means[model]:.3f}"
        alone = paired_t(nlls)
        own = f"{alone[1]:.3f} to {alone[2]:.3f}" if alone else "one run"
        difference = _difference(model, order[0], scores, layout)
        style, label = group.style(model), label_of(model)
        rows.append(Standing(style, label, nll, own, len(nlls), *difference))
    return {
        "metric": metric_title(metric),
        "rows": rows,
        "sentence": _sentence(rows),
        **(_forest(rows) if len(rows) > 1 else {"bars": [], "ticks": []}),
    }


def _forest(rows: Sequence[Standing]) -> dict[str, Any]:
    """Where interval ends, means and ticks are on a common axis with zero on it, in percent."""
    ends = [(row.mean, *(row.interval or (row.mean, row.mean))) for row in rows]
    scale = Scale(Axis(label="", margin=0.05), [0.0, *np.ravel(ends).tolist()], 0, 100, 4)
    return {
        "bars": [[round(scale(value), 1) for value in values] for values in ends],
        "ticks": [(round(scale(tick), 1), plain(tick)) for tick in scale.ticks],
        "zero": round(scale(0.0), 1),
    }


def _difference(
    model: str, best: str, scores: analysis.Scores, layout: Layout | None
) -> tuple[float, tuple[float, float] | None, str]:
    """The mean difference to the best model, paired by seeds, its interval and a verdict."""
    if model == best:
        return 0.0, None, "lowest mean"
    found = analysis.judged({model: 1.0, best: -1.0}, scores, layout)
    gaps = found["per_seed"] or [
        float(np.mean(list(scores[model].values())) - np.mean(list(scores[best].values())))
    ]
    paired, pooled, mean = found["paired"], found["two_way"], float(np.mean(gaps))
    if paired is None or pooled is None:
        return mean, None, "too few common seeds to judge"
    ends = (min(paired[1], pooled[1]), max(paired[2], pooled[2]))
    words = "worse than" if ends[0] > 0 else "no clear gap to"
    return mean, ends, f"{words} {label_of(best)}"


def _sentence(rows: Sequence[Standing]) -> str:
    """Which model is best, by how much and how sure."""
    best, *others = rows
    if not others:
        return f"{best.label} is the only model here."
    second = others[0]
    sure = f"95% interval {second.ends}" if second.interval else "too few common seeds to judge"
    parts = [
        f"{best.label} has the lowest mean NLL, {best.nll}.",
        f"The next is {second.label} at {second.mean:+.3f} on equal seeds ({sure}).",
    ]
    for verdict, before, after in (
        ("worse", "The gap to", " is larger than the seeds explain."),
        ("no clear", f"The seeds cannot separate {best.label} from", "."),
    ):
        names = [row.label for row in others if row.verdict.startswith(verdict)]
        listed = " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
        parts += [f"{before} {listed}{after}"] if names else []
    return " ".join(parts)
