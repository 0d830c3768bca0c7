"""Tables of studies: the plan before the runs, then arms, stated contrasts and all pairs.

- Every number comes from results; a table says how many of the planned runs it rests on.
- The stated contrasts carry two intervals: of the two-way layout over seed pairs and of the paired
  t. A verdict needs both.

Usage: `render(study_tables(study, results), "markdown")`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tangobench.catalogue import METRICS
from tangobench.eval.comparison.studies import Study, analyse, results_of
from tangobench.eval.comparison.tables import spread
from tangobench.eval.intervals import paired_t
from tangobench.eval.published import LABELS
from tangobench.eval.render import Table
from tangobench.pipeline.core.lock import shown_root

Result = dict[str, Any]


def plan_table(planned: Mapping[str, Any]) -> Table:
    """The comparisons that will be made and the difference that the design can see."""
    left = len(planned["runs"]) - planned["finished"]
    prior = planned["prior_residual"]
    noise = (
        "No earlier runs of this size say how large the noise is."
        if prior is None
        else f"With the noise of earlier runs of this size (residual {prior:.4f}), a true "
        "difference of this size is found in 80% of repetitions."
    )
    return Table(
        title=f"Study {planned['study']}: {len(planned['runs'])} runs, {left} to train, about "
        f"{planned['core_hours']:.1f} core-hours, the longest {planned['longest_hours']:.1f}",
        columns=["Comparison, stated before the runs", "Detectable difference"],
        rows=[
            [c["name"], "–" if c["detectable"] is None else f"{c['detectable']:.3f}"]
            for c in planned["contrasts"]
        ],
        note=f"{planned['question']} {noise}",
    )


def study_tables(study: Study, results: Sequence[Result]) -> list[Table]:
    """Everything that a study's results say so far."""
    found = analyse(study, results)
    tables = [_arms(found)]
    if found["contrasts"]:
        tables.append(_contrasts(found))
    if any(arm["model"] for arm in found["arms"]) and study.contrasts:
        tables.append(_multipliers(study, results))
    if found["pairs"] and len(found["arms"]) <= 8:
        tables.append(_pairs(found))
    return tables


def _note(found: Mapping[str, Any]) -> str:
    codes = "" if found["codes"] < 2 else f" {found['codes']} versions of the code trained them."
    root = "" if found["root"] is None else f" Data root {shown_root(found)}"
    return f"{found['runs']} of {found['planned']} planned runs.{codes}{root}"


def _arms(found: Mapping[str, Any]) -> Table:
    return Table(
        title=f"Study {found['study']}: {METRICS[found['metric']]}",
        columns=[
            *("Model", "Nonembedding parameters", "Off the target", "Steps", "MACs of training"),
            *("NLL", "Seconds per run"),
        ],
        rows=[
            [
                arm["arm"],
                f"{arm['nonembedding_params']:,}",
                "–" if arm["deviation"] is None else f"{arm['deviation']:+.2%}",
                f"{arm['steps']:,}",
                f"{arm['steps'] * arm['step_macs'] / 1e12:.2f}T",
                spread(arm["scores"], arm["planned"]),
                "–" if arm["seconds"] is None else f"{arm['seconds']:,.0f}",
            ]
            for arm in found["arms"]
        ],
        note=f"{found['question']} Mean ± sample standard deviation over seed pairs; forward MACs "
        f"by the paper's formulas. {_note(found)}",
    )


def _interval(interval: Sequence[float] | None, digits: int = 3) -> str:
    if interval is None:
        return "–"
    middle, low, high = interval
    return f"{middle:+.{digits}f} ({low:+.{digits}f} … {high:+.{digits}f})"


def _contrasts(found: Mapping[str, Any]) -> Table:
    rest = (
        ""
        if found["residual"] is None
        else f" Residual {found['residual']:.4f} with {found['freedom']} degrees of freedom."
    )
    return Table(
        title=f"Study {found['study']}: comparisons stated before the runs",
        columns=["Comparison", "Two-way layout", "Paired t", "Verdict", "Per seed pair"],
        rows=[
            [
                contrast["contrast"],
                _interval(contrast["two_way"]),
                _interval(contrast["paired"]),
                contrast["verdict"],
                ", ".join(f"{value:+.3f}" for value in contrast["per_seed"]) or "–",
            ]
            for contrast in found["contrasts"]
        ],
        note="NLL in nats, with 95% intervals; a verdict needs both intervals on one side of "
        f"zero.{rest} {_note(found)}",
    )


def _pairs(found: Mapping[str, Any]) -> Table:
    return Table(
        title=f"Study {found['study']}: all pairs",
        columns=["Models", "Difference", "Verdict"],
        rows=[
            [
                f"{pair['second']} minus {pair['first']}",
                _interval(pair["interval"]),
                "told apart" if pair["interval"][1] * pair["interval"][2] > 0 else "undecided",
            ]
            for pair in found["pairs"]
        ],
        note="Tukey: the 95% holds for all pairs of the two-way layout together. " + _note(found),
    )


def multipliers(
    study: Study, results: Sequence[Result], reference: str = LABELS["tango"]
) -> dict[str, list[float]]:
    """By model, per seed pair: operations that it needs for the NLL of the reference at 1.

    A line through NLL against the logarithm of operations is fitted to each model and seed pair.
    """
    by_arm = results_of(study, results)
    arms = {(arm.model, arm.budget): by_arm[arm.name] for arm in study.arms}
    aims = {pair: _nll(r, study) for pair, r in arms.get((reference, 1.0), {}).items()}
    found: dict[str, list[float]] = {}
    for model in dict.fromkeys(arm.model for arm in study.arms):
        for pair, aim in sorted(aims.items()):
            points = [
                (math.log2(budget), _nll(cells[pair], study))
                for (name, budget), cells in arms.items()
                if name == model and pair in cells
            ]
            if len(points) < 2:
                continue
            slope, start = np.polyfit([x for x, _ in points], [y for _, y in points], 1)
            if slope < 0:
                found.setdefault(model, []).append(float(2 ** ((aim - start) / slope)))
    return found


def _nll(result: Result, study: Study) -> float:
    return float(result["scores"][study.metric]["nll"])


def _multipliers(study: Study, results: Sequence[Result]) -> Table:
    rows = []
    for model, values in multipliers(study, results).items():
        logs = [math.log(value) for value in values]
        interval = paired_t(logs)
        low_high = (
            "–"
            if interval is None
            else f"{math.exp(interval[1]):.2f} … {math.exp(interval[2]):.2f}"
        )
        middle = math.exp(statistics.fmean(logs))
        rows.append([model, f"{middle:.2f}", low_high, ", ".join(f"{v:.2f}" for v in values)])
    return Table(
        title=f"Study {study.name}: operations for the NLL of TANGO at its budget",
        columns=["Model", "Times the operations", "95% interval", "Per seed pair"],
        rows=rows,
        note="A line through NLL against the logarithm of operations, per model and seed pair; "
        f"geometric mean and Student's t on logarithms. Outside {_range(study)} times the budget "
        "it is an extrapolation.",
    )


def _range(study: Study) -> str:
    budgets = [arm.budget for arm in study.arms]
    return f"{min(budgets):g} to {max(budgets):g}"
