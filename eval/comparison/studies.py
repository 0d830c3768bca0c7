"""Studies: questions that the paper leaves open, with runs and comparisons fixed before any run.

- A study is data: arms (a recipe and its seed pairs) and contrasts of arms.
- `sharing`, `compute`, `rates` and `context` are of the mini size; `large-…` are the same questions
  at the paper's size and test the predictions. With the profile `sample` all are toys.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tangobench.catalogue import metrics_of
from tangobench.eval.published import CLAIMS, LABELS
from tangobench.model.config import ARCHS
from tangobench.model.training.recipes import RECIPES, SEED_PAIRS, Recipe, Run, runs, varied

Result = dict[str, Any]
Pair = tuple[int, int]
Weights = Mapping[str, float]

MORE_PAIRS: Final[tuple[Pair, ...]] = ((53, 109), (67, 113))
REPLICATED: Final = ("published", "mini", "sample")
TUNING_PAIR: Final[Pair] = (71, 127)  # for choosing learning rates; no result uses it
_SECONDS_PER_MAC: Final = 4e-11  # of the forward formula, one core, from the committed mini runs
_RATES: Final = (1e-3, 2e-3, 4e-3)
_BUDGETS: Final = (0.25, 0.5, 1.0)
_TANGO, _FREE, _UNTIED = "TANGO", "TANGO, untied", LABELS["untied_transformer"]


def core_seconds(recipe: Recipe) -> float:
    return recipe.steps * recipe.step_macs * _SECONDS_PER_MAC


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
        return [Run(self.recipe, *pair) for pair in self.pairs]


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A question, the runs that answer it and the comparisons that will be made."""

    name: str
    question: str
    arms: tuple[Arm, ...]
    contrasts: Mapping[str, Weights] = dataclasses.field(default_factory=dict)
    """By name, weights of arms that sum to zero: positive if the first side has the higher NLL."""
    by_position: bool = False
    """Whether the NLL by place in the row is part of the answer."""
    common: str = ""
    """What arms of one model vary: the value that all other studies use."""
    core_seconds: Callable[[Recipe], float] = core_seconds

    @property
    def runs(self) -> list[Run]:
        return [run for arm in self.arms for run in arm.runs]

    def has_run(self, results: Iterable[Result]) -> bool:
        """Whether a run that belongs to no replication is among some results."""
        hashes = {result["run"]: result["run_sha256"] for result in results}
        own = [r for r in self.runs if r.recipe.family not in REPLICATED and r.name in hashes]
        return any(hashes[run.name] == run.sha256 for run in own)

    @property
    def metric(self) -> str:
        return metrics_of(self.arms[0].recipe.dataset)[0]

    @property
    def profile(self) -> str:
        """`sample` if it is a toy."""
        return self.arms[0].recipe.name.split("-")[0]


def minus(first: str, second: str) -> Weights:
    return {first: 1.0, second: -1.0}


def arms_of(recipes: Mapping[str, Recipe], pairs: tuple[Pair, ...] = SEED_PAIRS) -> tuple[Arm, ...]:
    return tuple(Arm(name=name, recipe=recipe, pairs=pairs) for name, recipe in recipes.items())


def sharing(profile: str) -> Study:
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
    return Study(
        name="sharing",
        question="At equal parameters and steps, what do sharing the block, gating and TANGO's "
        "weighting of sources each do to the NLL?",
        arms=arms_of(chosen, (*SEED_PAIRS, *MORE_PAIRS)),
        contrasts={
            "Sharing, both architectures (shared minus untied)": {
                **{shared: 0.5, tango: 0.5},
                **{untied: -0.5, free: -0.5},
            },
            "Gating, shared and untied (Transformer++ minus TANGO)": {
                **{shared: 0.5, untied: 0.5},
                **{tango: -0.5, free: -0.5},
            },
            "Interaction (sharing in Transformer++ minus sharing in TANGO)": {
                **{shared: 1.0, untied: -1.0},
                **{tango: -1.0, free: 1.0},
            },
            "Sharing in Transformer++ (shared minus untied)": minus(shared, untied),
            "Sharing in TANGO (shared minus untied)": minus(tango, free),
            "Gating, untied (Transformer++ minus TANGO)": minus(untied, free),
            "Weighting alone (softmax minus TANGO's)": minus(untied, weighted),
            "Gating beyond weighting (TANGO's weighting minus TANGO)": minus(weighted, free),
            "Window, untied (WANGO minus TANGO)": minus(window, free),
        },
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
        contrasts={
            f"{a} minus {b} at {budget:g}": minus(f"{a} at {budget:g}", f"{b} at {budget:g}")
            for budget in _BUDGETS
            for a, b in ((_TANGO, _UNTIED), (_TANGO, _FREE), (_UNTIED, _FREE))
        },
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
        common=f"{_sized(profile, 'tango').lr_peak:g}",
    )


def context(profile: str) -> Study:
    """Long rows of text with few token ids: MDN's pages at the mini size."""
    base: dict[str, Recipe] = {LABELS[arch]: RECIPES[f"sample-fineweb-{arch}"] for arch in ARCHS}
    if profile == "mini":
        text: dict[str, Any] = {"dataset": "mdn", "profile": "study", "vocabulary": 4096}
        text |= {"context": 1024, "batch": 4, "steps": 732, "warmup": 36, "family": "study"}
        base = {
            LABELS[arch]: dataclasses.replace(
                _sized(profile, arch), name=f"{profile}-mdn-{arch}", **text
            )
            for arch in ARCHS
        }
    found = {**base, _FREE: varied(base[_TANGO], shared=False)}
    return Study(
        name="context",
        question="On rows of 1,024 tokens of text, which model has the lowest NLL, and which makes "
        "use of distant tokens?",
        arms=arms_of(found),
        by_position=True,
        contrasts={
            f"{other} minus {_TANGO}": minus(other, _TANGO) for other in found if other != _TANGO
        },
    )


def ablations(profile: str) -> Study:
    found = [r for r in RECIPES.values() if (r.family, r.profile) == ("ablation", profile)]
    whole = {LABELS[recipe.arch]: RECIPES[recipe.unablated] for recipe in found}
    changed = {_change(recipe): recipe for recipe in found}
    return Study(
        name="ablations",
        question="What does each part of TANGO and WANGO do to the NLL? Positive if the change "
        "hurts.",
        arms=arms_of(whole | changed),
        contrasts={
            f"{name} (minus {LABELS[recipe.arch]})": minus(name, LABELS[recipe.arch])
            for name, recipe in changed.items()
        },
    )


def _change(recipe: Recipe) -> str:
    whole, name = RECIPES[recipe.unablated], LABELS[recipe.arch]
    if not recipe.null_gate:
        return f"{name} without the null gate"
    if not recipe.temperature:
        return f"{name} without the temperature"
    if recipe.window != whole.window:
        return f"{name}, window {recipe.window} instead of {whole.window}"
    return f"{name}, heads {recipe.heads} instead of {whole.heads}"


def orderings(profile: str, name: str = "orderings") -> Study:
    return Study(
        name=name,
        question="Which of the paper's orderings hold?",
        arms=arms_of({LABELS[arch]: _sized(profile, arch) for arch in ARCHS}),
        contrasts={
            f"{LABELS[higher]} minus {LABELS[lower]}": minus(LABELS[higher], LABELS[lower])
            for lower, higher in CLAIMS
        },
    )


def _sized(profile: str, arch: str) -> Recipe:
    return RECIPES[f"dm_math-{arch}-4" if profile == "paper" else f"{profile}-dm_math-{arch}"]


def _against_tango(name: str, question: str, tango: Recipe, label: str, other: Recipe) -> Study:
    return Study(
        name=name,
        question=f"At the paper's size{question}",
        arms=arms_of({_TANGO: tango, label: other}),
        contrasts={f"{_TANGO} minus {label}": minus(_TANGO, label)},
    )


def large_untied(profile: str) -> Study:
    tango, question = _large(profile, "tango"), ", what does sharing the block do to TANGO's NLL?"
    return _against_tango("large-untied", question, tango, _FREE, varied(tango, shared=False))


def large_compute(profile: str) -> Study:
    """Untied Transformer++ with TANGO's operations, of the paper's size."""
    tango, untied = (_large(profile, arch) for arch in ("tango", "untied_transformer"))
    longer = varied(untied, budget_macs=tango.steps * tango.step_macs)
    question = " and TANGO's operations, is TANGO below the untied Transformer?"
    label = f"{_UNTIED}, TANGO's operations"
    return _against_tango("large-compute", question, tango, label, longer)


def large_orderings(profile: str) -> Study:
    return orderings("paper" if profile == "mini" else profile, "large-orderings")


def _large(profile: str, arch: str) -> Recipe:
    return _sized("paper" if profile == "mini" else profile, arch)


STUDIES: Final[dict[str, Callable[[str], Study]]] = {
    make.__name__.replace("_", "-"): functools.cache(make)
    for make in (sharing, compute, rates, context, large_untied, large_compute, large_orderings)
}
EVERY: Final[tuple[Callable[[str], Study], ...]] = (*STUDIES.values(), functools.cache(ablations))


@functools.cache
def planned() -> dict[str, tuple[str, str]]:
    """Family and name for people of every run that the project has planned, by hash."""
    found: dict[str, tuple[str, str]] = {}
    for make in STUDIES.values():
        for study in (make("mini"), make("sample")):
            for arm in study.arms:
                label = f"{arm.name} ({study.name} study)"
                found = {run.sha256: ("study", label) for run in arm.runs} | found
    for run in runs():
        recipe = run.recipe
        label = _change(recipe) if recipe.family == "ablation" else LABELS[recipe.arch]
        found[run.sha256] = (recipe.family, label)
    return found
