"""The studies: what is asked, the runs that answer it and the comparisons, fixed before any run.

- `sharing`, `compute` and `rates` are of the mini size; `large-…` are the same questions at the
  paper's size and test the predictions. With the profile `sample` all are toys of seconds.

Usage: `STUDIES["sharing"]("mini")`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tangobench.eval.comparison.studies import Arm, Contrast, Pair, Result, Study, analyse
from tangobench.eval.published import CLAIMS, LABELS
from tangobench.model.config import ARCHS
from tangobench.model.training.recipes import RECIPES, SEED_PAIRS, Recipe, varied

MORE_PAIRS: Final[tuple[Pair, ...]] = ((53, 109), (67, 113))
TUNING_PAIR: Final[Pair] = (71, 127)  # for choosing learning rates; no result uses it
_RATES: Final = (1e-3, 2e-3, 4e-3)
_BUDGETS: Final = (0.25, 0.5, 1.0)
_BOTH_WAYS: Final = ("TANGO", "WANGO")  # shared in the paper, untied in studies too


def _minus(name: str, first: str, second: str) -> Contrast:
    return Contrast(name=name, weights={first: 1.0, second: -1.0})


def sharing(profile: str) -> Study:
    """Sharing × gating × weighting at equal parameters and steps."""
    base = {arch: RECIPES[f"{profile}-dm_math-{arch}"] for arch in ARCHS}
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
    return Study(
        name="sharing",
        question="At equal parameters and steps, what do sharing the block, gating and TANGO's "
        "weighting of sources each do to the NLL?",
        arms=tuple(
            Arm(name=name, recipe=recipe, pairs=(*SEED_PAIRS, *MORE_PAIRS))
            for name, recipe in chosen.items()
        ),
        contrasts=(
            Contrast(
                name="Sharing, both architectures (shared minus untied)",
                weights={shared: half, tango: half, untied: -half, free: -half},
            ),
            Contrast(
                name="Gating, shared and untied (Transformer++ minus TANGO)",
                weights={shared: half, untied: half, tango: -half, free: -half},
            ),
            Contrast(
                name="Interaction (sharing in Transformer++ minus sharing in TANGO)",
                weights={shared: 1.0, untied: -1.0, tango: -1.0, free: 1.0},
            ),
            _minus("Sharing in Transformer++ (shared minus untied)", shared, untied),
            _minus("Sharing in TANGO (shared minus untied)", tango, free),
            _minus("Gating, untied (Transformer++ minus TANGO)", untied, free),
            _minus("Weighting alone (softmax minus TANGO's)", untied, weighted),
            _minus("Gating beyond weighting (TANGO's weighting minus TANGO)", weighted, free),
            _minus("Window, untied (WANGO minus TANGO)", window, free),
        ),
    )


def _models(profile: str) -> dict[str, tuple[Recipe, dict[str, Any]]]:
    """The six architectures and the untied variants of two of them."""
    six: dict[str, tuple[Recipe, dict[str, Any]]] = {
        LABELS[arch]: (RECIPES[f"{profile}-dm_math-{arch}"], {}) for arch in ARCHS
    }
    untied = {f"{name}, untied": (six[name][0], {"shared": False}) for name in _BOTH_WAYS}
    return six | untied


def compute(profile: str) -> Study:
    """Equal operations: every model at fractions of TANGO's budget."""
    whole = RECIPES[f"{profile}-dm_math-tango"]
    data = "study" if profile == "mini" else profile
    doubled = ("TANGO", "TANGO, untied", LABELS["untied_transformer"])
    arms = []
    for model, (recipe, fields) in _models(profile).items():
        for budget in (*_BUDGETS, *((2.0,) if model in doubled else ())):
            macs = round(budget * whole.steps * whole.step_macs)
            arms.append(
                Arm(
                    name=f"{model} at {budget:g}",
                    recipe=varied(recipe, profile=data, budget_macs=macs, **fields),
                    pairs=SEED_PAIRS if budget <= 1 else SEED_PAIRS[:2],
                    model=model,
                    budget=budget,
                )
            )
    return Study(
        name="compute",
        question="At equal operations instead of equal parameters and steps, which model has the "
        "lowest NLL, and how many operations does each need for the same NLL?",
        arms=tuple(arms),
        contrasts=tuple(
            _minus(f"{first} minus {second} at {budget:g}", *names)
            for budget in _BUDGETS
            for first, second in (
                ("TANGO", LABELS["untied_transformer"]),
                ("TANGO", "TANGO, untied"),
                (LABELS["untied_transformer"], "TANGO, untied"),
            )
            for names in ((f"{first} at {budget:g}", f"{second} at {budget:g}"),)
        ),
    )


def rates(profile: str) -> Study:
    """Three learning rates per model at a quarter of the budget, on a seed pair of their own."""
    whole = RECIPES[f"{profile}-dm_math-tango"]
    data = "study" if profile == "mini" else profile
    macs = round(whole.steps * whole.step_macs / 4)
    return Study(
        name="rates",
        question="Does the common learning rate favour one of the models?",
        arms=tuple(
            Arm(
                name=f"{model} at {rate:g}",
                recipe=varied(
                    recipe,
                    **{"profile": data, "budget_macs": macs, **fields},
                    **{"lr_peak": rate, "lr_final": rate / 10},
                ),
                pairs=(TUNING_PAIR,),
                model=model,
            )
            for model, (recipe, fields) in _models(profile).items()
            for rate in _RATES
        ),
        contrasts=(),
    )


def orderings(profile: str, name: str = "orderings") -> Study:
    """The six architectures and the paper's orderings of them."""
    return Study(
        name=name,
        question="Which of the paper's orderings hold?",
        arms=tuple(
            Arm(name=LABELS[arch], recipe=_sized(profile, arch), pairs=SEED_PAIRS) for arch in ARCHS
        ),
        contrasts=tuple(
            _minus(f"{LABELS[higher]} minus {LABELS[lower]}", LABELS[higher], LABELS[lower])
            for lower, higher in CLAIMS
        ),
    )


def _sized(profile: str, arch: str) -> Recipe:
    return RECIPES[f"dm_math-{arch}-4" if profile == "paper" else f"{profile}-dm_math-{arch}"]


def _pair_study(name: str, question: str, first: Arm, second: Arm) -> Study:
    contrast = _minus(f"{first.name} minus {second.name}", first.name, second.name)
    return Study(name=name, question=question, arms=(first, second), contrasts=(contrast,))


def _large(profile: str) -> str:
    return "paper" if profile == "mini" else profile


def large_untied(profile: str) -> Study:
    """TANGO with one block and with four, of the paper's size."""
    tango = _sized(_large(profile), "tango")
    return _pair_study(
        "large-untied",
        "At the paper's size, what does sharing the block do to TANGO's NLL?",
        Arm(name="TANGO", recipe=tango, pairs=SEED_PAIRS),
        Arm(name="TANGO, untied", recipe=varied(tango, shared=False), pairs=SEED_PAIRS),
    )


def large_compute(profile: str) -> Study:
    """Untied Transformer++ with TANGO's operations, of the paper's size."""
    tango, untied = (_sized(_large(profile), arch) for arch in ("tango", "untied_transformer"))
    longer = varied(untied, budget_macs=tango.steps * tango.step_macs)
    name = f"{LABELS['untied_transformer']}, TANGO's operations"
    return _pair_study(
        "large-compute",
        "At the paper's size and TANGO's operations, is TANGO below the untied Transformer?",
        Arm(name="TANGO", recipe=tango, pairs=SEED_PAIRS),
        Arm(name=name, recipe=longer, pairs=SEED_PAIRS),
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


def studies_in(results: Sequence[Result], profile: str = "mini") -> Iterator[tuple[Study, Any]]:
    """Every study of which a run of its own is among some results, with its analysis."""
    for make in STUDIES.values():
        study = make(profile)
        own = {run.sha256 for run in study.runs if run.recipe.family == "study"}
        if any(result["run_sha256"] in own for result in results):
            yield study, analyse(study, results)
