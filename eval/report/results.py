"""The results' page: our runs, and the paper's figures beside them, never mixed.

- The folder's own runs come first, those that come with the project after them.
- A group is one dataset, recipe family and depth; only architectures differ inside it.
- The paper's numbers come from models of 44M parameters and whole budgets; ours may be far smaller,
  and the page says so beside every table.

Usage: `results_context(gather(Path("out")))`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tangobench.catalogue import METRICS, title_of
from tangobench.eval import published as paper
from tangobench.eval import render
from tangobench.eval.comparison.analysis import studies_in, study_tables
from tangobench.eval.comparison.beyond import gap_tables, gaps, group_tables
from tangobench.eval.comparison.replications import (
    ablation_tables,
    differences,
    replications,
    summary_tables,
)
from tangobench.eval.comparison.runs import (
    OWN,
    Group,
    groups,
    label_of,
    metric_title,
    operations,
    run_macs,
    spread,
    values,
)
from tangobench.eval.report.breakdowns import breakdown_figures
from tangobench.eval.report.charts import Axis, Figure, Series, scatter
from tangobench.eval.report.charts_scale import short
from tangobench.eval.report.curves import curve_figures
from tangobench.eval.report.gaps import gap_figure
from tangobench.eval.report.gather import Found
from tangobench.eval.report.standings import standings
from tangobench.model.config import ARCHS, published


def results_context(found: Found) -> dict[str, Any]:
    """Everything that the results page shows."""
    claims = [claim for summary in replications(found.results) if (claim := claim_table(summary))]
    return {
        "groups": sorted(
            (_group(group, claims, found.shipped) for group in groups(found.results)),
            key=lambda group: group["shipped"],
        ),
        "studies": [
            _shown(table)
            for study, _ in studies_in(found.results)
            for table in study_tables(study, found.results)
        ],
        "gaps": [
            {"figure": gap_figure(gap), "tables": [_shown(t) for t in gap_tables(gap)]}
            for gap in gaps(found.results)
        ],
        "ablations": [_shown(t) for t in ablation_tables(differences(found.results))],
        "paper": [paper_table(4), paper_table(8)],
        "paper_figure": paper_figure(),
    }


def claim_table(summary: dict[str, Any]) -> dict[str, Any] | None:
    """The paper's orderings as a replication judged them; None if it is a toy that judges none."""
    if not summary["claims"]:
        return None
    table = summary_tables(summary)[1]
    return {
        "key": (summary["profile"], summary["dataset"], summary["root"]),
        "table": table,
        "note": table.note,
    }


def _group(
    group: Group, claims: Sequence[dict[str, Any]], shipped: frozenset[str]
) -> dict[str, Any]:
    every = [run for runs in group.by_model.values() for run in runs]
    title = f"{title_of(group.dataset)}, {group.family} runs"
    key = (group.family, group.dataset, group.root)
    return {
        "dataset": group.dataset,
        "id": f"{group.dataset}-{group.family}-{group.depth}-{group.root[:8]}",
        "title": title + ("" if group.depth == 4 else f", depth {group.depth}"),
        "published": group.family == "published",
        "trial": group.family == "sample",
        "shipped": {run["run"] for run in every} <= shipped,
        "own": group.family == OWN,
        "parameters": group.first["model"]["nonembedding_params"],
        "steps": group.first["step"],
        "root": group.root,
        "code": len({run["trained_with"]["code_sha256"] for run in every}),
        "table": comparison(group),
        "claims": next((claim for claim in claims if claim["key"] == key), None),
        "standings": standings(group),
        "curves": curve_figures(group),
        "cost": cost(group),
        "breakdowns": breakdown_figures(group),
        "beyond": [_shown(table) for table in group_tables(group)],
    }


def _shown(table: render.Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "table": table,
        "note": table.note,
        "long": len(table.rows) > len(ARCHS) + 1,
    }


def comparison(group: Group) -> dict[str, Any]:
    """Our final NLL by metric, the paper's beside it."""
    means = {
        (arch, metric): float(np.mean(scores))
        for arch, runs in group.by_model.items()
        for metric in group.metrics
        if (scores := values(runs, metric))
    }
    rows = []
    for arch, runs in group.by_model.items():
        cells = []
        for metric in group.metrics:
            printed = paper.NLL.get(group.depth, {}).get(arch, {}).get(metric)
            best = min((m for (_, name), m in means.items() if name == metric), default=None)
            cells.append(
                {
                    "ours": spread(values(runs, metric), group.expected),
                    "best": (arch, metric) in means and means[arch, metric] == best,
                    "paper": "–" if printed is None else f"{printed[0]:.3f} ± {printed[1]:.3f}",
                }
            )
        rows.append({"arch": group.style(arch), "label": label_of(arch), "cells": cells})
    return {"metrics": [metric_title(metric) for metric in group.metrics], "rows": rows}


def cost(group: Group) -> Figure | None:
    """Final NLL against operations per sequence."""
    metric = group.metrics[0]
    series = [
        _point(group.style(arch), label_of(arch), macs, scores)
        for arch, runs in group.by_model.items()
        if (scores := values(runs, metric)) and (macs := run_macs(runs[0])) is not None
    ]
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


def _point(key: str, label: str, count: float, scores: Sequence[float]) -> Series:
    middle = float(np.mean(scores))
    return Series(
        key=key,
        label=label,
        x=[count],
        y=[middle],
        low=[min(scores)],
        high=[max(scores)],
        tips=[f"{label}: {middle:.3f} at {short(count)} MACs"],
    )


def paper_table(depth: int) -> dict[str, Any]:
    """The paper's NLL table for a depth, its lowest figures marked."""
    table = paper.NLL[depth]
    metrics = list(table["tango"])
    best = {metric: min(row[metric][0] for row in table.values()) for metric in metrics}
    rows = [
        {
            "label": paper.LABELS[arch],
            "cells": [
                {"text": f"{row[m][0]:.3f} ± {row[m][1]:.3f}", "best": row[m][0] == best[m]}
                for m in metrics
            ],
        }
        for arch, row in table.items()
    ]
    return {"depth": depth, "metrics": [METRICS[m] for m in metrics], "rows": rows}


def paper_figure() -> Figure:
    """The paper's FineWeb-Edu NLL against operation counts."""
    series = []
    for arch in ARCHS:
        middle, deviation = paper.NLL[4][arch]["fineweb"]
        count = operations(published(arch, "fineweb"), 8192)
        series.append(
            Series(
                key=arch,
                label=paper.LABELS[arch],
                x=[count],
                y=[middle],
                low=[middle - deviation],
                high=[middle + deviation],
                hollow=True,
                tips=[f"{paper.LABELS[arch]}: {middle:.3f} ± {deviation:.3f}, {short(count)} MACs"],
            )
        )
    return scatter(
        "The paper's FineWeb-Edu results against operations",
        series,
        x=Axis(label="MACs per 8,192-token sequence (log scale)", log=True, text=short),
        y=Axis(label="validation NLL, nats per token (paper)"),
        description="The paper's FineWeb-Edu validation NLL at depth four against MACs per "
        "sequence: TANGO 3.293 at the highest count, WANGO 3.355, Untied Transformer++ 3.318.",
        note="The paper's numbers, not ours. Bars are one sample standard deviation of three runs.",
    )
