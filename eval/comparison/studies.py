"""Studies: questions that the paper leaves open, with runs and comparisons fixed before any run.

- A study is data: arms (a recipe and its seed pairs) and contrasts of arms.
- `sharing`, `compute` and `rates` are of the mini size; `large-…` are the same questions at the
  paper's size and test the predictions. With the profile `sample` all are toys of seconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tangobench.catalogue import CATALOGUE
from tangobench.eval.published import CLAIMS, LABELS
from tangobench.model.config import ARCHS
from tangobench.model.training.recipes import RECIPES, SEED_PAIRS, Recipe, Run, varied

Result = dict[str, Any]
Pair = tuple[int, int]

MORE_PAIRS: Final[tuple[Pair, ...]] = ((53, 109), (67, 113))
TUNING_PAIR: Final[Pair] = (71, 127)  # for choosing learning rates; no result uses it
_RATES: Final = (1e-3, 2e-3, 4e-3)
_BUDGETS: Final = (0.25, 0.5, 1.0)
_TANGO, _FREE, _UNTIED = "TANGO", "TANGO, untied", LABELS["untied_transformer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One model of a study."""

    name: str
    recipe: Recipe
    pairs: tuple[Pair, ...] = SEED_PAIRS
    model: str = ""
    """What the arms of one model at several budgets have in common."""
    budget: float = 1.0

    @property
    def runs(self) -> list[Run]:
        """One run per seed pair."""
        return [Run(self.recipe, *pair) for pair in self.pairs]


@dataclass(frozen=True, kw_only=True, slots=True)
class Contrast:
    """A weighted sum of NLLs: positive means that the first side has the higher NLL."""

    name: str
    weights: Mapping[str, float]
    """Weights of arms; they sum to zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A question, the runs that answer it and the comparisons that will be made."""

    name: str
    question: str
    arms: tuple[Arm, ...]
    contrasts: tuple[Contrast, ...] = ()

    @property
    def runs(self) -> list[Run]:
        """All runs, arm by arm."""
        return [run for arm in self.arms for run in arm.runs]

    @property
    def own(self) -> set[str]:
        """Hashes of the runs that belong to studies only."""
        return {run.sha256 for run in self.runs if run.recipe.family == "study"}

    @property
    def metric(self) -> str:
        """The metric that decides."""
        return CATALOGUE[self.arms[0].recipe.dataset].metric


def _minus(name: str, first: str, second: str) -> Contrast:
    return Contrast(name=name, weights={first: 1.0, second: -1.0})


def sharing(profile: str) -> Study:
    """Sharing × gating × weighting at equal parameters and steps."""
    base = {arch: _sized(profile, arch) for arch in ARCHS}
    chosen = {
        "Transformer++, shared": base["recurrent_transformer"],
        "Transformer++, untied": base["untied_transformer"],
        "TANGO, shared": base["tango"],
        "TANGO, untied": varied(base["tango"], shared=False),
        "WANGO, untied": varied(base["wango"], shared=False),
        "Transformer++, untied, TANGO's weighting": varied(
            base["untied_transformer"], weighting="cosine-null"
        ),
    }
    shared, untied, tango, free, window, weighted = chosen
    half = 0.5
    several = {
        "Sharing, both architectures (shared minus untied)": {
            **{shared: half, tango: half},
            **{untied: -half, free: -half},
        },
        "Gating, shared and untied (Transformer++ minus TANGO)": {
            **{shared: half, untied: half},
            **{tango: -half, free: -half},
        },
        "Interaction (sharing in Transformer++ minus sharing in TANGO)": {
            **{shared: 1.0, untied: -1.0},
            **{tango: -1.0, free: 1.0},
        },
    }
    return Study(
        name="sharing",
        question="At equal parameters and steps, what do sharing the block, gating and TANGO's "
        "weighting of sources each do to the NLL?",
        arms=tuple(
            Arm(name=name, recipe=recipe, pairs=(*SEED_PAIRS, *MORE_PAIRS))
            for name, recipe in chosen.items()
        ),
        contrasts=(
            *(Contrast(name=name, weights=weights) for name, weights in several.items()),
            _minus("Sharing in Transformer++ (shared minus untied)", shared, untied),
            _minus("Sharing in TANGO (shared minus untied)", tango, free),
            _minus("Gating, untied (Transformer++ minus TANGO)", untied, free),
            _minus("Weighting alone (softmax minus TANGO's)", untied, weighted),
            _minus("Gating beyond weighting (TANGO's weighting minus TANGO)", weighted, free),
            _minus("Window, untied (WANGO minus TANGO)", window, free),
        ),
    )


def _models(profile: str, budget: float, **fields: Any) -> dict[str, Recipe]:
    """The six architectures and two untied ones, with a fraction of TANGO's operations."""
    tango = _sized(profile, "tango")
    fields["profile"] = "study" if profile == "mini" else profile
    fields["budget_macs"] = round(budget * tango.steps * tango.step_macs)
    found = {LABELS[arch]: varied(_sized(profile, arch), **fields) for arch in ARCHS}
    for arch in ("tango", "wango"):
        untied = varied(_sized(profile, arch), shared=False, **fields)
        found[f"{LABELS[arch]}, untied"] = untied
    return found


def compute(profile: str) -> Study:
    """Equal operations: every model at fractions of TANGO's budget, three at twice of it."""
    whole = {budget: _models(profile, budget) for budget in (*_BUDGETS, 2.0)}
    return Study(
        name="compute",
        question="At equal operations instead of equal parameters and steps, which model has the "
        "lowest NLL, and how many operations does each need for the same NLL?",
        arms=tuple(
            Arm(
                name=f"{model} at {budget:g}",
                recipe=whole[budget][model],
                pairs=SEED_PAIRS if budget <= 1 else SEED_PAIRS[:2],
                model=model,
                budget=budget,
            )
            for model in whole[1.0]
            for budget in whole
            if budget <= 1 or model in (_TANGO, _FREE, _UNTIED)
        ),
        contrasts=tuple(
            _minus(f"{a} minus {b} at {budget:g}", f"{a} at {budget:g}", f"{b} at {budget:g}")
            for budget in _BUDGETS
            for a, b in ((_TANGO, _UNTIED), (_TANGO, _FREE), (_UNTIED, _FREE))
        ),
    )


def rates(profile: str) -> Study:
    """Three learning rates per model at a quarter of the budget, on a seed pair of their own."""
    whole = {r: _models(profile, 0.25, lr_peak=r, lr_final=r / 10) for r in _RATES}
    return Study(
        name="rates",
        question="Does the common learning rate favour one of the models?",
        arms=tuple(
            Arm(name=f"{name} at {r:g}", recipe=whole[r][name], pairs=(TUNING_PAIR,), model=name)
            for name in whole[_RATES[0]]
            for r in _RATES
        ),
    )


def orderings(profile: str, name: str = "orderings") -> Study:
    """The six architectures and the paper's orderings of them."""
    return Study(
        name=name,
        question="Which of the paper's orderings hold?",
        arms=tuple(Arm(name=LABELS[arch], recipe=_sized(profile, arch)) for arch in ARCHS),
        contrasts=tuple(
            _minus(f"{LABELS[higher]} minus {LABELS[lower]}", LABELS[higher], LABELS[lower])
            for lower, higher in CLAIMS
        ),
    )


def _sized(profile: str, arch: str) -> Recipe:
    return RECIPES[f"dm_math-{arch}-4" if profile == "paper" else f"{profile}-dm_math-{arch}"]


def _large(profile: str) -> str:
    return "paper" if profile == "mini" else profile


def _against_tango(name: str, question: str, tango: Recipe, label: str, other: Recipe) -> Study:
    return Study(
        name=name,
        question=question,
        arms=(Arm(name=_TANGO, recipe=tango), Arm(name=label, recipe=other)),
        contrasts=(_minus(f"{_TANGO} minus {label}", _TANGO, label),),
    )


def large_untied(profile: str) -> Study:
    """TANGO with one block and with four, of the paper's size."""
    tango = _sized(_large(profile), "tango")
    question = "At the paper's size, what does sharing the block do to TANGO's NLL?"
    return _against_tango("large-untied", question, tango, _FREE, varied(tango, shared=False))


def large_compute(profile: str) -> Study:
    """Untied Transformer++ with TANGO's operations, of the paper's size."""
    tango, untied = (_sized(_large(profile), arch) for arch in ("tango", "untied_transformer"))
    longer = varied(untied, budget_macs=tango.steps * tango.step_macs)
    question = "At the paper's size and TANGO's operations, is TANGO below the untied Transformer?"
    return _against_tango(
        "large-compute", question, tango, f"{_UNTIED}, TANGO's operations", longer
    )


def large_orderings(profile: str) -> Study:
    """The paper's own comparison on mathematics."""
    return orderings(_large(profile), "large-orderings")


STUDIES: Final[dict[str, Callable[[str], Study]]] = {
    "sharing": sharing,
    "compute": compute,
    "rates": rates,
    "large-untied": large_untied,
    "large-compute": large_compute,
    "large-orderings": large_orderings,
}


@functools.cache
def all_studies() -> tuple[Study, ...]:
    """Every study at every size."""
    return tuple(make(profile) for make in STUDIES.values() for profile in ("mini", "sample"))
