"""Studies: questions that the paper leaves open, with runs, comparisons and power stated first.

- A study is data: arms (a recipe and its seed pairs) and contrasts of arms. Both are fixed before
  the first run; `plan` gives the runs, the core-hours and the difference that the design can see.
- Noise is judged by a two-way layout over seed pairs; the paired t of the same contrast is shown
  beside it, and a verdict needs both. Tukey's intervals cover all pairs of arms.
- Runs that come with the package count if recipe, seeds and root are equal; everything else is
  trained, each run by itself and resumable.
- A contrast is a weighted sum of NLLs: positive means that the first side has the higher NLL.

Usage: `study = STUDIES["sharing"]("mini"); plan(study, []); analyse(study, results)`; the studies
themselves are in `designs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tangobench.catalogue import CATALOGUE
from tangobench.eval.intervals import Interval, Layout, detectable, paired_t, two_way
from tangobench.model.training.recipes import Recipe, Run, runs

Result = dict[str, Any]
Pair = tuple[int, int]

_SECONDS_PER_MAC: Final = 4e-11  # of the forward formula, one core, from the committed mini runs


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One model of a study."""

    name: str
    recipe: Recipe
    pairs: tuple[Pair, ...]
    model: str = ""
    """What the arms of one model at several budgets have in common."""
    budget: float = 1.0

    @property
    def runs(self) -> list[Run]:
        """One run per seed pair."""
        return [Run(self.recipe, *pair) for pair in self.pairs]


@dataclass(frozen=True, kw_only=True, slots=True)
class Contrast:
    """A comparison that is stated before the runs."""

    name: str
    weights: Mapping[str, float]
    """Weights of arms; they sum to zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A question, the runs that answer it and the comparisons that will be made."""

    name: str
    question: str
    arms: tuple[Arm, ...]
    contrasts: tuple[Contrast, ...]

    @property
    def runs(self) -> list[Run]:
        """All runs, arm by arm."""
        return [run for arm in self.arms for run in arm.runs]

    @property
    def metric(self) -> str:
        """The metric that decides."""
        return CATALOGUE[self.arms[0].recipe.dataset].metric


def plan(study: Study, finished: Sequence[Result], prior: float | None = None) -> dict[str, Any]:
    """What remains to be done and what the design can see, before anything is run.

    `prior` is the residual of an earlier layout at this size, see `prior_residual`.
    """
    done = {result["run_sha256"] for result in finished}
    todo = [run for run in study.runs if run.sha256 not in done]
    pairs = {arm.name: len(arm.pairs) for arm in study.arms}
    return {
        "study": study.name,
        "question": study.question,
        "runs": [run.name for run in study.runs],
        "finished": len(study.runs) - len(todo),
        "core_hours": sum(_seconds(run.recipe) for run in todo) / 3600,
        "longest_hours": max((_seconds(run.recipe) for run in todo), default=0.0) / 3600,
        "prior_residual": prior,
        "contrasts": [
            {
                "name": contrast.name,
                "detectable": None
                if prior is None
                else detectable(
                    prior,
                    contrast.weights,
                    arms=len(study.arms),
                    blocks=min(pairs[arm] for arm in contrast.weights),
                ),
            }
            for contrast in study.contrasts
        ],
    }


def _seconds(recipe: Recipe) -> float:
    return recipe.steps * recipe.step_macs * _SECONDS_PER_MAC


def prior_residual(results: Sequence[Result], study: Study) -> float | None:
    """Noise of the six architectures' runs of this size, from results made before the study."""
    size = study.arms[0].recipe.name.split("-")[0]
    hashes = {run.sha256 for run in runs() if run.recipe.family == size}
    found: dict[str, dict[Pair, float]] = {}
    for result in results:
        if result["run_sha256"] in hashes and study.metric in result["scores"]:
            cells = found.setdefault(result["arch"], {})
            cells[seeds_of(result)] = float(result["scores"][study.metric]["nll"])
    layout = two_way(found)
    return None if layout is None else layout.residual


def seeds_of(result: Result) -> Pair:
    """The seed pair of a result: initialisation, data order."""
    return result["seeds"]["initialisation"], result["seeds"]["data_order"]


def results_of(study: Study, results: Sequence[Result]) -> dict[str, dict[Pair, Result]]:
    """The study's results by arm and seed pair; runs on two roots are never put together."""
    wanted = {run.sha256: arm.name for arm in study.arms for run in arm.runs}
    chosen = [result for result in results if result["run_sha256"] in wanted]
    roots = [result["data"]["root"] for result in chosen]
    root = max(sorted(set(roots)), key=roots.count, default="")
    found: dict[str, dict[Pair, Result]] = {arm.name: {} for arm in study.arms}
    for result in chosen:
        if result["data"]["root"] == root:
            found[wanted[result["run_sha256"]]][seeds_of(result)] = result
    return found


def scores_of(study: Study, results: Sequence[Result]) -> dict[str, dict[Pair, float]]:
    """NLL by arm and seed pair."""
    return {
        name: {pair: float(r["scores"][study.metric]["nll"]) for pair, r in sorted(found.items())}
        for name, found in results_of(study, results).items()
    }


def analyse(study: Study, results: Sequence[Result]) -> dict[str, Any]:
    """Scores by arm, the stated contrasts with intervals and verdicts, and all pairs."""
    by_arm, scores = results_of(study, results), scores_of(study, results)
    layout = two_way(scores)
    known = [result for found in by_arm.values() for result in found.values()]
    return {
        "study": study.name,
        "question": study.question,
        "metric": study.metric,
        "root": known[0]["data"]["root"] if known else None,
        "runs": len(known),
        "planned": len(study.runs),
        "codes": len({result["trained_with"]["code_sha256"] for result in known}),
        "residual": None if layout is None else layout.residual,
        "freedom": None if layout is None else layout.freedom,
        "arms": [_arm(arm, list(scores[arm.name].values()), by_arm) for arm in study.arms],
        "contrasts": [_judged(contrast, scores, layout) for contrast in study.contrasts],
        "pairs": []
        if layout is None
        else [
            {"first": first, "second": second, "interval": list(interval)}
            for first, second, interval in layout.all_pairs()
        ],
    }


def _arm(
    arm: Arm, scores: Sequence[float], by_arm: Mapping[str, Mapping[Pair, Result]]
) -> dict[str, Any]:
    config = arm.recipe.model_config()
    found = by_arm[arm.name].values()
    seconds = [result["training"]["seconds"] for result in found if "training" in result]
    return {
        "arm": arm.name,
        "model": arm.model,
        "budget": arm.budget,
        "planned": len(arm.pairs),
        "scores": list(scores),
        "nonembedding_params": config.nonembedding_params,
        "deviation": config.deviation,
        "step_macs": arm.recipe.step_macs,
        "steps": arm.recipe.steps,
        "seconds": sum(seconds) / len(seconds) if seconds else None,
    }


def _judged(
    contrast: Contrast, scores: Mapping[str, Mapping[Pair, float]], layout: Layout | None
) -> dict[str, Any]:
    arms = [scores[arm] for arm in contrast.weights]
    pairs = sorted(set(arms[0]).intersection(*arms[1:]))
    per_seed = [sum(w * scores[a][pair] for a, w in contrast.weights.items()) for pair in pairs]
    paired = paired_t(per_seed)
    known = layout is not None and all(arm in layout.arms for arm in contrast.weights)
    pooled = layout.contrast(contrast.weights) if known else None
    return {
        "contrast": contrast.name,
        "per_seed": per_seed,
        "two_way": None if pooled is None else list(pooled),
        "paired": None if paired is None else list(paired),
        "verdict": verdict(pooled, paired),
    }


def verdict(pooled: Interval | None, paired: Interval | None) -> str:
    """What both intervals say; the stricter reading wins."""
    if pooled is None or paired is None:
        return "not enough runs"
    if pooled[1] > 0 and paired[1] > 0:
        return "above zero"
    if pooled[2] < 0 and paired[2] < 0:
        return "below zero"
    return "undecided"
