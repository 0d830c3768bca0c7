"""Training recipes as data: the paper's 90 runs, and families that a laptop can train.

- A recipe and a seed pair decide a run completely. Within a family and dataset only the
  architecture differs; an ablation changes one part and sees the same rows in the same order.
- `budget_macs` replaces the steps: as many as cost that many forward MACs by the paper's formulas.
- Fields that recipes got later are left out of their JSON at their defaults: old runs keep hashes.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tangobench.catalogue import CATALOGUE
from tangobench.errors import UsageError
from tangobench.model import config as models
from tangobench.model.config import ARCHS, TARGET_PARAMS, WIDTH_STEP, ModelConfig
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.spec import LATER, as_dict

Family = Literal["published", "mini", "sample", "ablation", "study"]
Precision = Literal["bf16", "fp32", "fp64"]

SEED_PAIRS: Final = ((17, 101), (23, 103), (41, 107))  # (initialisation, data order), §4
_OF_MODEL: Final = (
    *("d_model", "heads", "depth", "context", "window"),
    *("null_gate", "temperature", "shared", "weighting", "init_scale"),
)
_GPT2_IDS: Final = CATALOGUE["fineweb"].vocabulary
_FIXED: Final = ("name", "family", "dataset", "arch")  # what `varied` does not change


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Everything but the seeds that decides a run's final weights."""

    name: str
    family: Family
    dataset: str
    profile: str
    arch: str
    depth: int
    context: int
    steps: int
    batch: int
    warmup: int
    target_params: int = TARGET_PARAMS
    width_step: int = WIDTH_STEP
    d_model: int = 512
    heads: int = 16
    lr_peak: float = 6e-4
    lr_final: float = 6e-5
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
    precision: Precision = "bf16"
    window: int = field(default=64, metadata=LATER)
    null_gate: bool = field(default=True, metadata=LATER)
    temperature: bool = field(default=True, metadata=LATER)
    shared: bool | None = field(default=None, metadata=LATER)
    weighting: models.Weighting = field(default="softmax", metadata=LATER)
    init_scale: int | None = field(default=None, metadata=LATER)
    budget_macs: int | None = field(default=None, metadata=LATER)
    vocabulary: int | None = field(default=None, metadata=LATER)
    """Token ids of the model; None is what the catalogue says of the dataset."""
    width: int | None = field(default=None, metadata=LATER)
    """None lets `target_params` choose it."""

    def __post_init__(self) -> None:
        if self.shared == (self.arch in models.SHARED):  # the same run, whether it is said or not
            object.__setattr__(self, "shared", None)
        self._check_warmup()
        if self.budget_macs is not None:
            steps = round(self.budget_macs / self.step_macs)
            object.__setattr__(self, "warmup", max(1, round(steps * self.warmup / self.steps)))
            object.__setattr__(self, "steps", steps)
            self._check_warmup()

    def _check_warmup(self) -> None:
        if not 0 < self.warmup < self.steps:
            fits = f"warmup={max(1, self.steps // 10)}" if self.steps > 1 else "steps=10"
            why = f"recipe {self.name}: warmup {self.warmup} of {self.steps} steps"
            fix = f"warm up for at least one step and fewer than all: {fits}"
            raise UsageError(why, kind="bad-recipe", fix=fix)

    def model_config(self) -> ModelConfig:
        """The model that this recipe trains, of its width or matched in nonembedding parameters."""
        fields = {name: getattr(self, name) for name in _OF_MODEL}
        fields["vocabulary"] = self._model_vocabulary()
        if self.width is not None:
            return ModelConfig(arch=self.arch, width=self.width, **fields)
        return models.matched(self.arch, self.target_params, step=self.width_step, **fields)

    def _model_vocabulary(self) -> int:
        if self.vocabulary is not None or self.dataset in CATALOGUE:
            return self.vocabulary or CATALOGUE[self.dataset].vocabulary
        why = f"recipe {self.name}: the vocabulary of {self.dataset} is not known"
        fix = f"name the dataset folder with --data, or set vocabulary (GPT-2: {_GPT2_IDS})"
        raise UsageError(why, kind="bad-recipe", fix=fix)

    @property
    def folder(self) -> str:
        return f"{self.dataset}-{self.profile}"

    def as_json(self) -> dict[str, Any]:
        return as_dict(self)

    @property
    def step_macs(self) -> int:
        """Forward multiply–accumulates of one step by the paper's formulas."""
        return self.batch * sum(models.formula(self.model_config(), self.context).values())

    @property
    def unablated(self) -> str:
        """Name of the recipe that an ablation is compared with."""
        return _small_name(self.profile, self.dataset, self.arch)


def varied(recipe: Recipe, **fields: Any) -> Recipe:
    """The recipe with some fields changed, of the family `study` and named after them."""
    known = [f.name for f in dataclasses.fields(Recipe) if f.name not in _FIXED]
    for name in fields:
        if name not in known:
            raise UsageError(
                f"no field {name!r} of a recipe can be set" + nearest(name, known),
                kind="bad-recipe",
                fix=f"set one of {', '.join(known)}",
            )
    name = "-".join([recipe.name, *(f"{k}_{str(fields[k]).lower()}" for k in known if k in fields)])
    return dataclasses.replace(recipe, name=name, family="study", **fields)


def _small_name(profile: str, dataset: str, arch: str) -> str:
    return f"{profile}-{dataset}-{arch}"


@dataclass(frozen=True, slots=True)
class Run:
    """A recipe with its seeds: one trained model."""

    recipe: Recipe
    init_seed: int
    order_seed: int

    @property
    def name(self) -> str:
        """Unique among all runs; also its folder and the stem of its result file."""
        return f"{self.recipe.name}-s{self.init_seed}-{self.order_seed}"

    @property
    def sha256(self) -> str:
        """What a checkpoint must have been trained with to be continued."""
        return digest([self.recipe.as_json(), self.init_seed, self.order_seed])


# The paper's Experimental Design: context, steps, batch, warmup.
_PUBLISHED: Final[dict[str, dict[str, Any]]] = {
    "fineweb": {"context": 8192, "steps": 5722, "batch": 32, "warmup": 200},
    "lean": {"context": 2048, "steps": 3814, "batch": 128, "warmup": 76},
    "dm_math": {"context": 256, "steps": 84_000, "batch": 64, "warmup": 1680},
}
_DEPTHS: Final = {"fineweb": (4, 8), "lean": (4, 8), "dm_math": (4,)}

# At d=128 the four-block models move by 24,576 parameters for 16 columns of width. In steps of 2
# columns, 772,500 is the smallest count that all six meet within 0.1% at both contexts.
_MINI_SIZE: Final[dict[str, Any]] = {
    "d_model": 128,
    "heads": 4,
    "target_params": 772_500,
    "width_step": 2,
    "lr_peak": 2e-3,  # of 1e-3, 2e-3 and 4e-3 the best on average: bench/learning_rate.py
    "lr_final": 2e-4,
    "precision": "fp32",
}
_MINI: Final[dict[str, dict[str, Any]]] = {
    # 19,200 of the 84,000 rows of the mini dataset: no row is seen twice.
    "dm_math": {"context": 256, "steps": 600, "batch": 32, "warmup": 30, **_MINI_SIZE},
    # Rows are cut to 512 tokens, two chunks of FLASH: the vocabulary of 50,257 makes each source
    # token cost as much as nine of DeepMind Mathematics. With 400 steps of 4 rows, all 18 runs are
    # three to five core-hours.
    "lean": {"context": 512, "steps": 400, "batch": 4, "warmup": 20, **_MINI_SIZE},
}
_SAMPLE_SIZE: Final[dict[str, Any]] = {
    **_MINI_SIZE,
    "d_model": 32,
    "heads": 2,
    "target_params": 60_000,
    "lr_peak": 6e-3,
    "lr_final": 6e-4,
}
_SAMPLE: Final[dict[str, dict[str, Any]]] = {
    "dm_math": {"context": 256, "steps": 30, "batch": 16, "warmup": 3, **_SAMPLE_SIZE},
    "lean": {"context": 128, "steps": 20, "batch": 4, "warmup": 2, **_SAMPLE_SIZE},
    "fineweb": {"context": 128, "steps": 20, "batch": 4, "warmup": 2, **_SAMPLE_SIZE},
}
# The parts that the paper's discussion leaves untested, one change each.
_ABLATIONS: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    ("tango", "no_null_gate", {"null_gate": False}),
    ("tango", "no_temperature", {"temperature": False}),
    *(("wango", f"window_{window}", {"window": window}) for window in (16, 32, 128)),
)
_OTHER_HEADS: Final = {"mini": (2, 8), "sample": (1, 4)}  # half as many and twice as many


def _recipes() -> Iterator[Recipe]:
    for dataset, fields in _PUBLISHED.items():
        shared: dict[str, Any] = {"dataset": dataset, "profile": "paper", **fields}
        for depth in _DEPTHS[dataset]:
            for arch in ARCHS:
                name = f"{dataset}-{arch}-{depth}"
                yield Recipe(name=name, family="published", arch=arch, depth=depth, **shared)
    small: dict[Family, dict[str, dict[str, Any]]] = {"mini": _MINI, "sample": _SAMPLE}
    for family, sizes in small.items():
        for dataset, fields in sizes.items():
            shared = {"dataset": dataset, "profile": family, **fields}
            for arch in ARCHS:
                name = _small_name(family, dataset, arch)
                yield Recipe(name=name, family=family, arch=arch, depth=4, **shared)


def _ablated(whole: dict[str, Recipe]) -> Iterator[Recipe]:
    for profile, counts in _OTHER_HEADS.items():
        heads = tuple(("tango", f"heads_{count}", {"heads": count}) for count in counts)
        for arch, change, fields in (*_ABLATIONS, *heads):
            recipe = whole[_small_name(profile, "dm_math", arch)]
            name = f"{recipe.name}-{change}"
            yield dataclasses.replace(recipe, name=name, family="ablation", **fields)


RECIPES: Final[dict[str, Recipe]] = {recipe.name: recipe for recipe in _recipes()}
RECIPES.update({recipe.name: recipe for recipe in _ablated(RECIPES)})


def runs(family: Family | None = None, dataset: str | None = None) -> list[Run]:
    """All runs, or those of a family or dataset, seeds varying fastest."""
    return [
        Run(recipe, *pair)
        for recipe in RECIPES.values()
        if family in (None, recipe.family) and dataset in (None, recipe.dataset)
        for pair in SEED_PAIRS
    ]


def find(name: str, seed_pair: tuple[int, int] | None = None) -> Run:
    """A run by its own name, or by its recipe's name and a seed pair (default: the first)."""
    if name in RECIPES:
        return Run(RECIPES[name], *(seed_pair or SEED_PAIRS[0]))
    for run in runs():
        if run.name == name:
            if seed_pair not in (None, (run.init_seed, run.order_seed)):
                why = f"{name} already names its seeds"
                fix = f"give --recipe {run.recipe.name} with --seed-pair"
                raise UsageError(why, kind="usage", fix=fix)
            return run
    raise UsageError(
        f"no recipe {name!r}" + nearest(name, RECIPES),
        kind="no-such-recipe",
        fix="`tangobench recipes` lists them all",
    )


def nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean {near[0]}?" if near else ""
