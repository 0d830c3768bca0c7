"""The gap from validation over interpolation to extrapolation as one picture.

Usage: `[gap_figure(gap) for gap in gaps(results)]`.
"""

from __future__ import annotations

import statistics

from tangobench.catalogue import title_of
from tangobench.eval.comparison.beyond import Gap, model_name
from tangobench.eval.report.charts import Axis, Figure, Series, lines
from tangobench.model.config import ARCHS


def gap_figure(gap: Gap) -> Figure:
    """NLL on validation and on each part of the test set, a line per model."""
    stages = ["validation", *gap.parts]
    places = [float(place) for place in range(len(stages))]
    series = []
    for number, (model, runs) in enumerate(gap.by_model.items()):
        arch = runs[0]["arch"]
        nlls = gap.nlls(model)
        series.append(
            Series(
                key=arch if arch in ARCHS else ARCHS[number % len(ARCHS)],
                label=model_name(model),
                x=places,
                y=[statistics.fmean(stage) for stage in nlls],
                low=[min(stage) for stage in nlls],
                high=[max(stage) for stage in nlls],
            )
        )

    def name(place: float) -> str:
        return stages[int(place)] if place in places else ""

    return lines(
        f"From validation to extrapolation: {title_of(gap.dataset)}",
        series,
        x=Axis(label="part", text=name, margin=0.12),
        y=Axis(label="nats per answer token"),
        description=f"NLL of {len(series)} models on {', '.join(stages)}.",
        note="Mean over seed pairs; bands from the lowest to the highest run.",
        points=True,
    )
