"""Figures of a group of runs: loss curves, NLL by module, directory and position, test sets.

- Curves are shown as differences to a chosen model, seed pair by seed pair and step by step: such
  runs saw the same rows, so most of the noise cancels; and as they are, on log axes.
- A line is the mean over seeds; its band spans the lowest and the highest run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Final

import numpy as np

from tangobench.catalogue import title_of
from tangobench.eval.comparison.beyond import Gap
from tangobench.eval.comparison.runs import Group, label_of, metric_title, seeds_of, values
from tangobench.eval.published import LABELS
from tangobench.eval.report.charts import Axis, Figure, Series, module_label, plot
from tangobench.model.config import ARCHS

Curve = Mapping[int, float]
Curves = Mapping[str, Mapping[Any, Curve]]
"""Value by step, of each model and seed pair."""

_POINTS: Final = 25  # of a difference; means over stretches, for one step is mostly noise
_KINDS: Final = {"curve": "Training loss", "validation_curve": "Validation NLL while training"}
_SHORT: Final = {"recurrent_transformer": "Recurrent", "untied_transformer": "Untied", "gau": "GAU"}
_MAPS: Final = ("difficulty", "module", "directory")
_LEVELS: Final = ("easy", "medium", "hard")
_ROWS: Final = 60
_STEPS: Final = "optimizer steps"


def curve_figures(group: Group) -> list[Figure]:
    """For each kind of curve the loss itself, and a variant against each model, the best first."""
    found = []
    for (kind, what), config in product(_KINDS.items(), group.first.get("curve", {})):
        curves = {
            model: {seeds_of(r): dict(map(tuple, r.get(kind, {}).get(config, []))) for r in runs}
            for model, runs in group.by_model.items()
        }
        kept = {m: c for m, c in curves.items() if all(len(points) > 1 for points in c.values())}
        name = what if config == "default" else f"{what}, {config} rows"
        title = f"{name}: {title_of(group.dataset)}, {group.family}"
        found += [_curve_figure(group, title, kept)] if kept else []
    return found


def _curve_figure(group: Group, title: str, curves: Curves) -> Figure:
    absolute = plot(
        title,
        _lines(group, curves),
        x=Axis(label=_STEPS, log=10),
        y=Axis(label="nats per token", log=10),
        note="Mean over seeds; the band spans the lowest and the highest run.",
    )
    metric = group.metrics[0]
    order = sorted(curves, key=lambda m: float(np.mean(values(group.by_model[m], metric) or [9e9])))
    against = []
    for model in order:
        minus = f"minus {label_of(model)}"
        if len(series := _lines(group, _gaps(curves, model))) > 1:
            shown = plot(
                f"{title}, {minus}",
                series,
                x=Axis(label=_STEPS, low=0, counts=True),
                y=Axis(label=f"nats per token, {minus}"),
                note=f"Below zero is better than {label_of(model)}. Mean over seeds; the band "
                "spans them.",
                dots=None,
            )
            against.append((minus, shown))
    if not against:
        return absolute
    variants = (*against, ("loss itself, log axes", absolute))
    return replace(against[0][1], title=title, note="", table=absolute.table, variants=variants)


def _gaps(curves: Curves, chosen: str) -> Curves:
    """Differences of equal seeds at equal steps, as means over stretches of steps."""
    base = curves[chosen]
    return {
        model: {
            seeds: _binned({s: v - base[seeds][s] for s, v in curve.items() if s in base[seeds]})
            for seeds, curve in runs.items()
            if seeds in base
        }
        for model, runs in curves.items()
    }


def _lines(group: Group, curves: Curves) -> list[Series]:
    """A line per model, at the steps that all its seeds have."""
    found = []
    for model, runs in curves.items():
        steps = sorted(set.intersection(*map(set, runs.values()))) if runs else []
        if len(steps) > 1:
            lines = [[curve[step] for step in steps] for curve in runs.values()]
            style, label = group.style(model), label_of(model)
            found.append(Series.over(lines, steps, key=style, label=label))
    return found


def _binned(curve: Curve) -> Curve:
    """Means over equal stretches, each at its last step."""
    steps = sorted(curve)
    size = max(1, len(steps) // _POINTS)
    parts = [steps[i : i + size] for i in range(0, len(steps), size)]
    return {part[-1]: float(np.mean([curve[step] for step in part])) for part in parts}


def breakdown_figures(group: Group) -> list[Figure | dict[str, Any]]:
    figures: list[Figure | dict[str, Any]] = []
    for metric, kinds in group.first["breakdowns"].items():
        figures += [_map(group, metric, kind) for kind in _MAPS if kinds.get(kind)]
        figures += [_positions(group, metric)] if kinds.get("position") else []
    return figures


def _scores(group: Group, metric: str, kind: str) -> dict[str, dict[str, float | None]]:
    """Each architecture's NLL by label, mean over seeds; the labels are its first run's."""
    found: dict[str, dict[str, float | None]] = {}
    for arch, runs in group.by_model.items():
        seeds = [run["breakdowns"].get(metric, {}).get(kind, {}) for run in runs]
        nlls = {name: [s[name]["nll"] for s in seeds if name in s] for name in seeds[0]}
        known = {name: [v for v in each if v is not None] for name, each in nlls.items()}
        found[arch] = {n: float(np.mean(each)) if each else None for n, each in known.items()}
    return found


def _map(group: Group, metric: str, kind: str) -> dict[str, Any]:
    """A table of NLLs, which the template colours by their gap to the lowest of their row."""
    scores = _scores(group, metric, kind)
    # Levels by difficulty, everything else by name.
    places = {level: place for place, level in enumerate(_LEVELS)}
    labels = sorted(next(iter(scores.values())), key=lambda name: (places.get(name, 0), name))
    names = [(LABELS | _SHORT).get(arch, arch) for arch in scores]
    return {
        "title": f"NLL by {kind}: {metric_title(metric)}, {group.family}",
        "columns": [(name, name[:6]) for name in names],  # and what is left of them on a phone
        "rows": {module_label(n): [s.get(n) for s in scores.values()] for n in labels[:_ROWS]},
        "note": "The best model of a line is framed and shows its NLL in nats per token, mean over "
        "seeds; the others show how far above it they are. Stronger colour is further behind.",
    }


def _positions(group: Group, metric: str) -> Figure:
    """NLL against the place of the scored token; bins are named by their first place."""
    series = []
    for arch, nlls in _scores(group, metric, "position").items():
        found = ((int(name.split("-")[0]) + 1, value) for name, value in nlls.items())
        if points := sorted((place, value) for place, value in found if value is not None):
            x, y = zip(*points, strict=True)
            series.append(Series(key=group.style(arch), label=label_of(arch), x=x, y=y))
    prompted = metric in ("dm_math", "lean_proof")
    where = "place among the scored tokens" if prompted else "place in the row"
    return plot(
        f"NLL by position: {metric_title(metric)}, {group.family}",
        series,
        x=Axis(label=where, log=2),
        y=Axis(label="nats per token"),
        note="Places are exact up to 16 and in powers of two from there; mean over seeds.",
    )


def gap_figure(gap: Gap) -> Figure:
    """NLL on validation and on each part of the test set, a line per model."""
    stages = ["validation", *gap.parts]
    places = [float(place) for place in range(len(stages))]
    series = []
    for number, (model, runs) in enumerate(gap.by_model.items()):
        arch = runs[0]["arch"]
        key = arch if arch in ARCHS else ARCHS[number % len(ARCHS)]
        lines = zip(*gap.nlls(model), strict=True)
        series.append(Series.over(list(lines), places, key=key, label=model))
    budgets = any(" at 0.25" in model for model in gap.by_model)
    return plot(
        f"From validation to extrapolation: {title_of(gap.dataset)}, "
        f"{gap.every[0]['data']['profile']} data (root {gap.root[:8]})",
        series,
        x=Axis(label="part", text=lambda v: stages[int(v)] if v in places else "", margin=0.12),
        y=Axis(label="nats per answer token"),
        note="Mean over seed pairs; bands from the lowest to the highest run."
        + " “At 0.25”: with a quarter of the operations of TANGO’s full run." * budgets,
        dots="dot",
    )
