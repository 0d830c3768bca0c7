"""Loss curves in which models can be told apart: as differences to a chosen one, and on log axes.

- Differences are taken seed pair by seed pair, step by step: such runs saw the same rows, so most
  of the noise cancels. The line is the mean over seeds, the band spans the lowest and highest.
- Training loss and, where a run recorded it, the NLL of its validation subset.

Usage: `curve_figures(group)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tangobench.catalogue import title_of
from tangobench.eval.comparison.runs import Group, label_of, seeds_of, values
from tangobench.eval.report.charts import Axis, Figure, Series, lines

Curve = Mapping[int, float]
Curves = Mapping[str, Mapping[Any, Curve]]
"""Value by step, of each model and seed pair."""

_POINTS: Final = 25  # of a difference; means over stretches, for one step is mostly noise
_KINDS: Final = {"curve": "Training loss", "validation_curve": "Validation NLL while training"}


def curve_figures(group: Group) -> list[Figure]:
    """The curves of a group, one figure for each kind and config."""
    found = []
    for kind, what in _KINDS.items():
        for config in group.first.get(kind, {}):
            name = what if config == "default" else f"{what}, {config} rows"
            title = f"{name}: {title_of(group.dataset)}, {group.family}"
            if (shown := _figure(group, title, _curves(group, kind, config))) is not None:
                found.append(shown)
    return found


def _curves(group: Group, kind: str, config: str) -> Curves:
    found = {
        model: {seeds_of(run): dict(map(tuple, run.get(kind, {}).get(config, []))) for run in runs}
        for model, runs in group.by_model.items()
    }
    return {
        m: runs for m, runs in found.items() if all(len(points) > 1 for points in runs.values())
    }


def _figure(group: Group, title: str, curves: Curves) -> Figure | None:
    """The loss itself, and a variant against each model, the best first."""
    if not curves:
        return None
    absolute = lines(
        title,
        [s for model in curves if (s := _series(group, model, curves[model]))],
        x=Axis(label="optimizer steps (log scale)", log=True),
        y=Axis(label="nats per token (log scale)", log=True),
        description=f"{title} for {len(curves)} models, both axes logarithmic.",
        note="Mean over seeds; the band spans the lowest and the highest run.",
    )
    metric = group.metrics[0]
    order = sorted(curves, key=lambda m: float(np.mean(values(group.by_model[m], metric) or [9e9])))
    against = [
        (f"minus {label_of(model)}", shown)
        for model in order
        if (shown := _against(group, title, curves, model)) is not None
    ]
    if not against:
        return absolute
    _, first = against[0]
    return replace(
        first, table=absolute.table, variants=(*against, ("loss itself, log axes", absolute))
    )


def _against(group: Group, title: str, curves: Curves, chosen: str) -> Figure | None:
    """All curves minus those of one model."""
    series = []
    for model, runs in curves.items():
        shared = {seeds: runs[seeds] for seeds in runs if seeds in curves[chosen]}
        gaps = {
            seeds: {
                s: v - curves[chosen][seeds][s]
                for s, v in curve.items()
                if s in curves[chosen][seeds]
            }
            for seeds, curve in shared.items()
        }
        if found := _series(group, model, {k: _binned(v) for k, v in gaps.items()}):
            series.append(found)
    if len(series) < 2:
        return None
    return lines(
        f"{title}, minus {label_of(chosen)}",
        series,
        x=Axis(label="optimizer steps", low=0, counts=True),
        y=Axis(label=f"nats per token, minus {label_of(chosen)}"),
        description=f"{title}: {len(series)} models minus {label_of(chosen)} on equal rows.",
        note=f"Below zero is better than {label_of(chosen)}. Mean over seeds; the band spans them.",
        tips=False,
    )


def _series(group: Group, model: str, runs: Mapping[Any, Curve]) -> Series | None:
    """Mean and range over seeds, at the steps that all have."""
    steps = sorted(set.intersection(*(set(curve) for curve in runs.values()))) if runs else []
    if len(steps) < 2:
        return None
    found = np.array([[curve[step] for step in steps] for curve in runs.values()])
    ends: tuple[Sequence[float], Sequence[float]] = (found.min(0).tolist(), found.max(0).tolist())
    low, high = ends if len(runs) > 1 else ((), ())
    mean, style = found.mean(0).tolist(), group.style(model)
    return Series(key=style, label=label_of(model), x=steps, y=mean, low=low, high=high)


def _binned(curve: Curve) -> Curve:
    """Means over equal stretches, each at its last step."""
    steps = sorted(curve)
    size = max(1, len(steps) // _POINTS)
    parts = [steps[i : i + size] for i in range(0, len(steps), size)]
    return {part[-1]: float(np.mean([curve[step] for step in part])) for part in parts}
