"""What is said before a study's runs: their hours, differences that they can see, predictions.

- Noise is taken from the six architectures' earlier runs of this size, in a two-way layout.
- Predictions for the paper's size are sealed; docs/findings.py made them, runs judge them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tangobench.catalogue import title_of
from tangobench.eval.comparison import analysis
from tangobench.eval.comparison import runs as texts
from tangobench.eval.comparison.runs import estimate, or_dash
from tangobench.eval.comparison.studies import STUDIES, Result, Study, Weights
from tangobench.eval.intervals import detectable, two_way
from tangobench.eval.render import Table, tabled
from tangobench.eval.scoring.result_files import read_result, shipped_results
from tangobench.pipeline.core.progress import units

PREDICTIONS: Final = "tangobench-predictions/1"
PREDICTIONS_NAME: Final = "predictions.json"


class Prior(NamedTuple):
    """The residual of an earlier layout at a study's size, and the dataset it was measured on."""

    residual: float
    dataset: str


def plan(study: Study, finished: Iterable[Result], prior: Prior | None = None) -> dict[str, Any]:
    """What remains to be done and what the design can see, before anything is run."""
    done = {result["run_sha256"] for result in finished}
    seconds = [study.core_seconds(run.recipe) for run in study.runs if run.sha256 not in done]
    pairs = {arm.name: len(arm.pairs) for arm in study.arms}

    def smallest(weights: Weights) -> float | None:
        blocks = min(pairs[arm] for arm in weights)
        return prior and detectable(prior.residual, weights, arms=len(pairs), blocks=blocks)

    return {
        "study": study.name,
        "question": study.question,
        "runs": [run.name for run in study.runs],
        "finished": len(study.runs) - len(seconds),
        "core_hours": sum(seconds) / 3600,
        "longest_hours": max(seconds, default=0.0) / 3600,
        "prior_residual": prior and prior.residual,
        "prior_dataset": prior and prior.dataset,
        "contrasts": [
            {"name": name, "detectable": smallest(weights)}
            for name, weights in study.contrasts.items()
        ],
    }


def prior_residual(results: Sequence[Result], study: Study) -> Prior | None:
    """Noise of the six architectures' runs of this size, from results made before the study.

    On the study's dataset, or where nothing was run on it, on the noisiest of the others.
    """
    groups = [group for group in texts.groups(results) if group.family == study.profile]
    own = [group for group in groups if study.metric in group.metrics]
    if own:
        groups = [max(own, key=lambda group: len(group.every))]
    fitted = [
        (two_way(analysis.by_arch(g.every, g.metrics[0])), title_of(g.dataset)) for g in groups
    ]
    return max((Prior(layout.residual, on) for layout, on in fitted if layout), default=None)


def plan_title(planned: Mapping[str, Any]) -> str:
    left = f"{len(planned['runs']) - planned['finished']} to train, " if planned["finished"] else ""
    return (
        f"Study {planned['study']}: {units(len(planned['runs']), 'run')}, {left}about "
        f"{planned['core_hours']:.1f} core-hours, the longest {planned['longest_hours']:.1f}"
    )


def plan_table(planned: Mapping[str, Any]) -> Table:
    prior = planned["prior_residual"]
    noise = (
        "No earlier runs of this size say how large the noise is."
        if prior is None
        else f"With the noise of earlier runs of this size (residual {prior:.4f} on "
        f"{planned['prior_dataset']}), a true difference of this size is found in 80% of "
        "repetitions."
    )
    return tabled(
        plan_title(planned),
        planned["contrasts"] or [{"name": "none", "detectable": None}],
        {
            "Comparison, stated before the runs": lambda c: c["name"],
            "Detectable difference": lambda c: or_dash(c["detectable"], ".3f"),
        },
        f"{planned['question']} {noise}",
    )


def read_predictions(folder: Path | None = None) -> dict[str, Any]:
    return read_result((folder or shipped_results()) / PREDICTIONS_NAME, PREDICTIONS)


def prediction_table(found: dict[str, Any], results: Sequence[Result]) -> Table:
    return tabled(
        f"Predictions of {found['date']} for {found['size']}",
        found["predictions"],
        {
            "Comparison": lambda one: one["contrast"],
            "Predicted difference in NLL": lambda one: estimate(
                [one[key] for key in ("estimate", "low", "high")]
            ),
            "Outcome": lambda one: _outcome(one, results),
            "Tested by": lambda one: f"`{one['command']}`",
        },
        f"From results with sha256 {found['results_sha256'][:16]}…; an interval that does not "
        "contain the mean difference of the runs is a failed prediction.",
    )


def _outcome(one: dict[str, Any], results: Sequence[Result]) -> str:
    contrasts = analysis.analyse(STUDIES[one["study"]]("mini"), results)["contrasts"]
    per_seed = next(c["per_seed"] for c in contrasts if c["contrast"] == one["contrast"])
    if not per_seed:
        return "not run"
    mean = statistics.fmean(per_seed)
    verdict = "holds" if one["low"] <= mean <= one["high"] else "failed"
    return f"{verdict}: {mean:+.3f} ({units(len(per_seed), 'seed pair')})"
