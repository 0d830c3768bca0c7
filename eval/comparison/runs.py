"""Scored runs, grouped so that only recipes differ inside a group, and none is averaged over two.

- A result whose checksum does not hold is refused by the reader.
- Runs on different roots are never put into one group.
- A run that is no part of the paper's comparison, of its small replications, ablations or studies
  is the user's own: own groups come first, each recipe under its own name.

Usage: `groups(read_results([Path("out/results")]))`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tangobench.catalogue import METRICS, metrics_of, title_of
from tangobench.eval.comparison.designs import all_studies
from tangobench.eval.costs.macs import formula
from tangobench.eval.published import LABELS
from tangobench.model.config import ARCHS, ModelConfig
from tangobench.model.macs import FORMULAS
from tangobench.model.training.recipes import SEED_PAIRS, Recipe, runs
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.lock import shown_root

Result = dict[str, Any]


OWN: Final = "own"
_FAMILIES: Final = (OWN, "published", "mini", "sample")


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Runs of one dataset, family, depth and root, by model; only the recipe differs.

    A model is an architecture in the paper's order, or a recipe of the user's own by its name.
    """

    dataset: str
    family: str
    depth: int
    root: str
    by_model: Mapping[str, Sequence[Result]]

    @property
    def metrics(self) -> list[str]:
        """The group's metrics, the one that decides first."""
        measured = self.first["scores"]
        return [name for name in metrics_of(self.dataset) if name in measured] or list(measured)

    @property
    def first(self) -> Result:
        """Any run, for what all have in common."""
        return next(iter(self.by_model.values()))[0]

    @property
    def expected(self) -> int:
        """Runs per model, if none is missing."""
        most = max(len(runs) for runs in self.by_model.values())
        return most if self.family == OWN else max(most, len(SEED_PAIRS))

    def style(self, model: str) -> str:
        """The colour and marker of a model: an architecture's; own recipes take them in turn."""
        return model if model in ARCHS else ARCHS[list(self.by_model).index(model) % len(ARCHS)]

    def title(self, what: str, metric: str | None = None) -> str:
        """The title of a table of something that the paper does not report."""
        depth = "" if self.depth == 4 else f", depth {self.depth}"
        name = metric_title(metric) if metric else title_of(self.dataset)
        return f"{what}: {name}, {self.family} runs{depth}"

    def note(self, text: str) -> str:
        """The note below it."""
        whose = "Yours." if self.family == OWN else "Ours; the paper has none."
        return f"{whose} {text} Data root {shown_root(self.first['data'])}"


def label_of(model: str) -> str:
    """A model's name for people."""
    return LABELS.get(model, model)


def metric_title(metric: str) -> str:
    """A metric's name for people."""
    return METRICS.get(metric, metric)


def groups(results: Sequence[Result]) -> list[Group]:
    """All groups: the user's own runs first, then published, mini and sample ones.

    Runs of ablations and studies are in none: they are compared in tables of their own.
    """
    known = {run.sha256: run.recipe.family for run in runs()}
    planned = {run.sha256 for study in all_studies() for run in study.runs}
    found: dict[tuple[int, str, int, str], list[Result]] = {}
    for result in results:
        family = known.get(result["run_sha256"], OWN)
        if family in _FAMILIES and not (family == OWN and result["run_sha256"] in planned):
            key = (_FAMILIES.index(family), *_place(result))
            found.setdefault(key, []).append(result)
    return [
        Group(
            dataset=dataset,
            family=_FAMILIES[place],
            depth=depth,
            root=root,
            by_model=_by_model(chosen, own=_FAMILIES[place] == OWN),
        )
        for (place, dataset, depth, root), chosen in sorted(found.items())
    ]


def _place(result: Result) -> tuple[str, int, str]:
    return result["dataset"], result["depth"], result["data"]["root"]


def _by_model(chosen: Sequence[Result], *, own: bool) -> dict[str, list[Result]]:
    """Runs by recipe, never two recipes together; equal names are told apart by the hash."""
    if not own:
        by_arch = {arch: [run for run in chosen if run["arch"] == arch] for arch in ARCHS}
        return {arch: runs for arch, runs in by_arch.items() if runs}
    found: dict[tuple[str, str], list[Result]] = {}
    for run in chosen:
        found.setdefault((run["recipe"]["name"], digest(run["recipe"])), []).append(run)
    names = [name for name, _ in found]
    return {
        name if names.count(name) == 1 else f"{name} ({hashed[:8]})": runs
        for (name, hashed), runs in sorted(found.items())
    }


def run_macs(result: Result) -> int | None:
    """Operations of one forward pass over a whole context of the run's model.

    None for an architecture of the user's own, which has no formula and may not be registered here.
    """
    if result["arch"] not in FORMULAS:
        return None
    config = Recipe(**result["recipe"]).model_config()
    return operations(config, config.context)


def operations(config: ModelConfig, length: int) -> int:
    """All multiply–accumulates of one forward pass over `length` tokens."""
    return int(sum(formula(config, length).values()))


def nll(result: Result, metric: str) -> float | None:
    """A run's score; None if it was not measured."""
    value = result["scores"].get(metric, {}).get("nll")
    return None if value is None else float(value)


def values(runs: Sequence[Result], metric: str) -> list[float]:
    """The scores of runs that have one."""
    return [value for run in runs if (value := nll(run, metric)) is not None]
