"""The pages of results and models: what was measured here, and the paper's figures beside it.

- The folder's own runs come first, those that come with the project after them.
- A group is one dataset, recipe family and depth; only architectures differ inside it.
- Differences are paired by seed pair. A model is called worse only if two 95% intervals of its
  difference exclude zero: Student's over the pair's own differences, and that of the two-way layout
  of all models and seeds. Nothing is corrected for the number of comparisons; the figure says so.
- Counts of models come from the configs and the formulas, not from a table, so a difference would
  show. Seconds belong to one machine; the page says which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from tangobench.catalogue import CATALOGUE, METRICS, title_of
from tangobench.eval import published as paper
from tangobench.eval.comparison import analysis, runs, tables
from tangobench.eval.comparison.beyond import gap_tables, gaps, group_tables
from tangobench.eval.comparison.runs import Group, label_of, metric_title, values
from tangobench.eval.comparison.tables import paper_cell, parameters, replications, summary_tables
from tangobench.eval.costs.speed import machine_text, speed_tables
from tangobench.eval.intervals import Layout, paired_t, two_way
from tangobench.eval.render import Table
from tangobench.eval.report.charts import Axis, Figure, Scale, Series, plain, plot, short
from tangobench.eval.report.figures import breakdown_figures, curve_figures, gap_figure
from tangobench.model.config import ARCHS, SCALING, Arch, printed, published

_LENGTHS: Final = tuple(2**power for power in range(8, 17))  # 256 … 65,536
_PAPER_DM_MATH: Final = {"tango": "52.94B", "wango": "52.91B"}  # §5.1, the only two it prints
_LENGTH_AXIS: Final = Axis(label="sequence length T", log=2)


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


def results_context(results: Sequence[dict[str, Any]], shipped: frozenset[str]) -> dict[str, Any]:
    claims = {
        (summary["profile"], summary["dataset"], summary["root"]): summary_tables(summary)[1]
        for summary in replications(results)
        if summary["claims"]  # a toy judges none
    }
    return {
        "groups": sorted(
            (_group(group, claims, shipped) for group in runs.groups(results)),
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
        "table": _beside_paper(group),
        "claims": claims.get((group.family, group.dataset, group.root)),
        "standings": standings(group),
        "curves": curve_figures(group),
        "cost": cost(group),
        "breakdowns": breakdown_figures(group),
        "beyond": list(group_tables(group)),
    }


def _beside_paper(group: Group) -> Table:
    heads = [f"{metric_title(m)}, {whose}" for m in group.metrics for whose in ("here", "paper")]
    scores = tables.nlls(group.by_model, group.metrics)
    rows = tables.beside_paper(scores, group.depth, group.expected)
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


def models_context(own: dict[str, Any], shipped: dict[str, Any]) -> dict[str, Any]:
    return {
        "parameters": parameters(),
        "operations": operation_table(),
        "macs_figure": macs_figure(),
        "own_speed": speed(own, "yours"),
        "speed": speed(shipped, "ours"),
    }


def operation_table() -> Table:
    """MACs of one sequence at every dataset's context."""
    rows = []
    for arch in ARCHS:
        here = {
            n: printed(runs.operations(published(arch, n), d.context)) for n, d in CATALOGUE.items()
        }
        ours = (here["lean"], here["dm_math"], _PAPER_DM_MATH.get(arch, "–"), SCALING[arch])
        rows.append((paper.LABELS[arch], here["fineweb"], paper.MACS[arch], *ours))
    head = (
        *("Model", "FineWeb-Edu, here", "paper", "Lean, here"),
        *("DM Math, here", "paper", "Growth with length"),
    )
    return Table(columns=head, rows=rows)


def macs_figure() -> Figure:
    def counted(arch: Arch, length: int) -> float:
        config = published(arch, "fineweb")
        return runs.operations(replace(config, context=max(length, config.context)), length)

    series = [
        Series(key=a, label=paper.LABELS[a], x=_LENGTHS, y=[counted(a, t) for t in _LENGTHS])
        for a in ARCHS
    ]
    return plot(
        "Operations for one sequence",
        series,
        x=_LENGTH_AXIS,
        y=Axis(label="MACs, one forward pass", log=10, text=short),
        note="The published FineWeb-Edu models, counted from the equations; the output projection "
        "is included. WANGO and FLASH stay linear, the others grow quadratically.",
    )


def speed(results: dict[str, Any], whose: str) -> dict[str, Any] | None:
    """Tokens per second and peak memory of training and decoding; None if not measured."""
    cases: list[dict[str, Any]] = results.get("cases", [])
    if not cases:
        return None
    tasks = {case["task"] for case in cases}
    return {
        "figures": [
            _speed_figure([case for case in cases if case["task"] == task], name, whose)
            for task, name in (("train", "Training"), ("decode", "Decoding"))
            if task in tasks
        ],
        "tables": list(speed_tables(results)),
        "machine": machine_text(results),
        "size": cases[0]["size"],
    }


def _speed_figure(cases: Sequence[dict[str, Any]], name: str, whose: str) -> Figure:
    series = []
    names = dict.fromkeys([*ARCHS, *(case["arch"] for case in cases)])  # registered ones last
    for number, arch in enumerate(names):
        kept = sorted((c["length"], c["tokens_per_second"]) for c in cases if c["arch"] == arch)
        if kept:
            lengths, values = zip(*kept, strict=True)
            key, label = ARCHS[number % len(ARCHS)], paper.LABELS.get(arch, arch)
            series.append(Series(key=key, label=label, x=lengths, y=values))
    return plot(
        f"{name}: tokens per second, {whose}",
        series,
        x=_LENGTH_AXIS,
        y=Axis(label="tokens/s", log=10),
        note="Whole model, four block applications: compare slopes and distances.",
        dots="dot",
    )
