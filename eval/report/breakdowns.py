"""Where models are good or bad: NLL by module, level, directory and position, as charts.

- Values are means over seeds of each run's own sums and counts; nothing is weighted again.

Usage: `breakdown_figures(group)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tangobench.eval.comparison.runs import Group, label_of, metric_title
from tangobench.eval.published import LABELS
from tangobench.eval.report.charts import Axis, Figure, Series, lines
from tangobench.eval.report.charts_compare import heat_map
from tangobench.eval.report.contents import module_label

_SHORT: Final = LABELS | {
    "recurrent_transformer": "Recurrent",
    "untied_transformer": "Untied",
    "gau": "GAU",
}
_MAPS: Final = ("difficulty", "module", "directory")
_LEVELS: Final = ("easy", "medium", "hard")
_ROWS: Final = 60

Scores = dict[str, dict[str, Any]]


def _short(model: str) -> str:
    return _SHORT.get(model, model)


def breakdown_figures(group: Group) -> list[Figure]:
    """All breakdowns that the group's runs have."""
    figures = []
    for metric, kinds in group.first["breakdowns"].items():
        by_kind = [kind for kind in _MAPS if kinds.get(kind)]
        figures += [_map(group, metric, kind) for kind in by_kind]
        if kinds.get("position"):
            figures.append(_positions(group, metric))
    return figures


def _scores(group: Group, metric: str, kind: str) -> dict[str, list[Scores]]:
    """Each architecture's breakdowns, one per seed."""
    return {
        arch: [run["breakdowns"].get(metric, {}).get(kind, {}) for run in runs]
        for arch, runs in group.by_model.items()
    }


def _mean(runs: Sequence[Scores], label: str) -> float | None:
    found = [run[label]["nll"] for run in runs if run.get(label, {}).get("nll") is not None]
    return float(np.mean(found)) if found else None


def _map(group: Group, metric: str, kind: str) -> Figure:
    scores = _scores(group, metric, kind)
    labels = sorted(next(iter(scores.values()))[0], key=_order)[:_ROWS]
    return heat_map(
        f"NLL by {kind}: {metric_title(metric)}, {group.family}",
        [module_label(label) for label in labels],
        [(_short(arch), _short(arch)[:6]) for arch in scores],
        [[_mean(runs, label) for runs in scores.values()] for label in labels],
        description=f"Validation NLL by {kind}: {len(labels)} rows, {len(scores)} models.",
        note="The best model of a line is framed and shows its NLL in nats per token, mean over "
        "seeds; the others show how far above it they are. Stronger colour is further behind.",
    )


def _order(label: str) -> tuple[int, str]:
    """Levels by difficulty, everything else by name."""
    return (_LEVELS.index(label) if label in _LEVELS else 0, label)


def _positions(group: Group, metric: str) -> Figure:
    """NLL against the place of the scored token; bins are named by their first place."""
    series = []
    for arch, runs in _scores(group, metric, "position").items():
        found = [(int(name.split("-")[0]) + 1, _mean(runs, name)) for name in runs[0]]
        points = sorted((place, value) for place, value in found if value is not None)
        if points:
            x, y = zip(*points, strict=True)
            series.append(Series(key=group.style(arch), label=label_of(arch), x=x, y=y))
    prompted = metric in ("dm_math", "lean_proof")
    where = "place among the scored tokens" if prompted else "place in the row"
    return lines(
        f"NLL by position: {metric_title(metric)}, {group.family}",
        series,
        x=Axis(label=f"{where} (log scale)", log=True, base=2),
        y=Axis(label="nats per token"),
        description=f"Validation NLL against {where} for {len(series)} models.",
        note="Places are exact up to 16 and in powers of two from there; mean over seeds.",
    )
