"""Scored runs: in groups inside which only recipes differ, and as cells of tables.

- Runs on different roots never share a group or a mean, and neither do two recipes.
- A run that is no part of the paper's comparison, of its small replications, ablations or studies
  is the user's own: own groups come first, each recipe under its own name.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tangobench.catalogue import METRICS, ONE_DISTRIBUTION, metrics_of, title_of
from tangobench.errors import MismatchError
from tangobench.eval.comparison.studies import REPLICATED, Pair, Result, planned
from tangobench.eval.intervals import wilson
from tangobench.eval.published import LABELS
from tangobench.model.config import ARCHS, SCALING, ModelConfig, formula
from tangobench.model.training.recipes import SEED_PAIRS, Recipe
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.lock import shown_root

OWN: Final = "own"
MISSING: Final = "missing"
ONE_LEVEL: Final = "* The module's three levels are one distribution."
_FAMILIES: Final = (OWN, *REPLICATED)


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
    rebuilt: bool = False
    """Own runs on another dataset of this name are in another group."""

    @property
    def metrics(self) -> list[str]:
        measured = self.first["scores"]
        return [name for name in metrics_of(self.dataset) if name in measured] or list(measured)

    @property
    def first(self) -> Result:
        return self.every[0]

    @property
    def every(self) -> list[Result]:
        return [run for runs in self.by_model.values() for run in runs]

    @property
    def expected(self) -> int:
        most = max(len(runs) for runs in self.by_model.values())
        return most if self.family == OWN else max(most, len(SEED_PAIRS))

    def style(self, model: str) -> str:
        """The colour and marker of a model: an architecture's; own recipes take them in turn."""
        return model if model in ARCHS else ARCHS[list(self.by_model).index(model) % len(ARCHS)]

    def title(self, what: str, metric: str | None = None) -> str:
        depth = "" if self.depth == 4 else f", depth {self.depth}"
        name = metric_title(metric) if metric else title_of(self.dataset)
        root = f", root {self.root[:8]}" if self.rebuilt else ""
        return f"{what}: {name}, {self.family} runs{depth}{root}"

    def note(self, text: str) -> str:
        whose = "Yours." if self.family == OWN else "Ours; the paper has none."
        return f"{whose} {text} Data root {shown_root(self.first['data'])}"


def groups(results: Sequence[Result]) -> list[Group]:
    """All groups: the user's own runs first, then published, mini and sample ones.

    Runs of ablations and studies are in none: they are compared in tables of their own.
    """
    found: dict[tuple[int, str, int, str], list[Result]] = {}
    for result in results:
        family = family_of(result)
        if family in _FAMILIES:
            place = (result["dataset"], result["depth"], result["data"]["root"])
            found.setdefault((_FAMILIES.index(family), *place), []).append(result)
    places = [place[:3] for place in found]
    return [
        Group(
            dataset=dataset,
            family=_FAMILIES[family],
            depth=depth,
            root=root,
            by_model=by_recipe(chosen) if _FAMILIES[family] == OWN else _by_arch(chosen),
            rebuilt=_FAMILIES[family] == OWN and places.count((family, dataset, depth)) > 1,
        )
        for (family, dataset, depth, root), chosen in sorted(found.items())
    ]


def family_of(result: Result) -> str:
    return planned().get(result["run_sha256"], (OWN,))[0]


def _by_arch(chosen: Sequence[Result]) -> dict[str, list[Result]]:
    return {arch: same for arch in ARCHS if (same := [r for r in chosen if r["arch"] == arch])}


def by_recipe(chosen: Sequence[Result]) -> dict[str, list[Result]]:
    """By the recipe's name, in the order of the runs; equal names are told apart by the hash."""
    found: dict[tuple[str, str], list[Result]] = {}
    for run in chosen:
        found.setdefault((run["recipe"]["name"], digest(run["recipe"])), []).append(run)
    names = [name for name, _ in found]
    return {
        name if names.count(name) == 1 else f"{name} ({hashed[:8]})": runs
        for (name, hashed), runs in found.items()
    }


def by_label(chosen: Sequence[Result]) -> dict[str, list[Result]]:
    """By the name of the model that was planned, in the paper's order, or of one's own recipe."""
    found = by_recipe([run for run in chosen if run["run_sha256"] not in planned()])
    for run in chosen:
        if run["run_sha256"] in planned():
            found.setdefault(planned()[run["run_sha256"]][1], []).append(run)
    place = {arch: number for number, arch in enumerate(ARCHS)}
    archs = {name: place.get(runs[0]["arch"], len(ARCHS)) for name, runs in found.items()}
    return {name: found[name] for name in sorted(found, key=lambda name: (archs[name], name))}


def label_of(model: str) -> str:
    return LABELS.get(model, model)


def metric_title(metric: str) -> str:
    return METRICS.get(metric, metric)


def run_macs(result: Result) -> int | None:
    """MACs of one forward pass over a context; None for an architecture without a formula."""
    if result["arch"] not in SCALING:
        return None
    config = Recipe(**result["recipe"]).model_config()
    return operations(config, config.context)


def operations(config: ModelConfig, length: int) -> int:
    return int(sum(formula(config, length).values()))


def seeds_of(result: Result) -> Pair:
    return result["seeds"]["initialisation"], result["seeds"]["data_order"]


def by_seeds(chosen: Iterable[Result], metric: str) -> dict[Pair, float]:
    """The NLL of runs that have one, by seed pair and in its order."""
    scored = [run for run in sorted(chosen, key=seeds_of) if metric in run["scores"]]
    return {seeds_of(run): float(run["scores"][metric]["nll"]) for run in scored}


def values(chosen: Iterable[Result], metric: str) -> list[float]:
    """The NLL of runs that have one, in their own order."""
    return [float(r["scores"][metric]["nll"]) for r in chosen if metric in r["scores"]]


def seconds_of(chosen: Iterable[Result]) -> float | None:
    known = [run["training"]["seconds"] for run in chosen if "training" in run]
    return statistics.fmean(known) if known else None


def require_one_root(results: Sequence[Result]) -> dict[str, str]:
    """The root, as tables show it, of every dataset that some runs are on; never two of a name."""
    seen: dict[str, Result] = {}
    for result in results:
        data = result["data"]
        first = seen.setdefault(data["name"], result)
        if data["root"] != first["data"]["root"]:
            raise MismatchError(
                f"run {first['run']} is scored on {data['name']} with root "
                f"{first['data']['root']}, run {result['run']} on root {data['root']}",
                kind="root-mismatch",
                fix="compare runs on one dataset only: move the other results away",
            )
    return {name: shown_root(result["data"]) for name, result in seen.items()}


def spread(values: Sequence[float], expected: int = len(SEED_PAIRS)) -> str:
    """Mean ± sample standard deviation; says so if there are other than the expected runs."""
    if not values:
        return MISSING
    mean = statistics.fmean(values)
    # `statistics.stdev` computes with fractions: a tenth of the time of all tables.
    squares = math.fsum((value - mean) ** 2 for value in values)
    deviation = math.sqrt(squares / max(1, len(values) - 1))
    shown = f" ± {deviation:.3f}" if len(values) > 1 else ""
    return f"{mean:.3f}{shown}{_how_many(len(values), expected)}"


def share_text(
    found: Sequence[Mapping[str, Any]], digits: int = 1, expected: int = len(SEED_PAIRS)
) -> str:
    """Mean share over runs and its interval; says so if there are other than the expected runs."""
    if not found:
        return MISSING
    tried = found[0]["tried"]
    if not tried:
        return "–"
    correct = statistics.fmean(share["correct"] for share in found)
    low, high = wilson(correct, tried)
    interval = f"{low:.{digits}%} … {high:.{digits}%}"
    return f"{correct / tried:.{digits}%} ({interval}){_how_many(len(found), expected)}"


def _how_many(count: int, expected: int) -> str:
    few = f"{count} of {expected}" if count < expected else f"{count}"
    return "" if count == expected else f" ({few} runs)"


def marked(module: str) -> str:
    """A module's name; a star marks those whose three levels are one distribution."""
    return module + ("*" if module in ONE_DISTRIBUTION else "")


def or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def signed(values: Sequence[float], digits: int = 3) -> str:
    return ", ".join(f"{value:+.{digits}f}" for value in values) or "–"


def ends(interval: Sequence[float] | None, digits: int = 3) -> str:
    """The last two of an interval's numbers: its lower and upper end."""
    return "–" if interval is None else " … ".join(f"{end:+.{digits}f}" for end in interval[-2:])


def estimate(interval: Sequence[float] | None, digits: int = 3) -> str:
    return "–" if interval is None else f"{interval[0]:+.{digits}f} ({ends(interval, digits)})"
