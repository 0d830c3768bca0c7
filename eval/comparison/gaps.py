"""From validation over interpolation to extrapolation: runs that were scored on a test set.

- Runs are put together by recipe, on one training root and one test root; never two recipes.
- Runs of studies count too: a recipe that is not one of the six is named by what it changes.
- NLL is the mean ± sample standard deviation over seed pairs; a share is the mean over seed pairs
  with the 95% Wilson interval of the questions.

Usage: `for gap in gaps(results): render(gap_tables(gap), "markdown")`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tangobench.catalogue import TEST_SETS, metrics_of, title_of
from tangobench.eval.comparison.tables import ONE_LEVEL, marked, share_text, spread
from tangobench.eval.published import LABELS
from tangobench.eval.render import Table
from tangobench.model.config import ARCHS
from tangobench.model.training.recipes import RECIPES, SEED_PAIRS
from tangobench.pipeline.core.hashing import digest

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gap:
    """Runs by model that were trained on one dataset and scored on one test set."""

    tests: str
    dataset: str
    root: str
    test_root: str
    by_model: dict[str, list[Result]]

    @property
    def parts(self) -> list[str]:
        """The configs of the test set, in its own order."""
        runs = next(iter(self.by_model.values()))
        found = runs[0]["tests"][self.tests]["scores"]
        known = TEST_SETS[self.tests].configs if self.tests in TEST_SETS else ()
        return sorted(found, key=lambda part: (known.index(part) if part in known else 99, part))

    def nlls(self, model: str) -> list[list[float]]:
        """By stage (validation, then each part): the NLL of every run."""
        runs = self.by_model[model]
        stages = [[_validation(run) for run in runs]]
        stages += [[run["tests"][self.tests]["scores"][p] for run in runs] for p in self.parts]
        return [[float(score["nll"]) for score in stage] for stage in stages]

    def shares(self, model: str, part: str, module: str | None = None) -> list[dict[str, int]]:
        """Right answers of those tried, per run."""
        found = []
        for run in self.by_model[model]:
            modules = run["tests"][self.tests]["modules"][part]
            chosen = list(modules.values()) if module is None else [modules[module]]
            found.append({key: sum(m[key] for m in chosen) for key in ("correct", "tried")})
        return found

    @property
    def missing(self) -> list[str]:
        """Runs of the six architectures and three seed pairs without these scores."""
        there = {run["run"] for runs in self.by_model.values() for run in runs}
        sizes = {run["recipe"]["name"].split("-")[0] for r in self.by_model.values() for run in r}
        wanted = [
            f"{name}-s{first}-{second}"
            for size in sorted(sizes)
            for arch in ARCHS
            if (name := f"{size}-{self.dataset}-{arch}") in RECIPES
            for first, second in SEED_PAIRS
        ]
        return [name for name in wanted if name not in there]


def _validation(run: Result) -> dict[str, Any]:
    """The score that decides; a dataset of one's own has one of its own name."""
    scores: dict[str, Any] = run["scores"]
    known = [name for name in metrics_of(run["dataset"]) if name in scores]
    found: dict[str, Any] = scores[(known or list(scores))[0]]
    return found


def gaps(results: Sequence[Result]) -> Iterator[Gap]:
    """One for every pair of a training dataset and a test set (the same modules of it)."""
    found: dict[tuple[str, str, str, str, str], dict[tuple[int, str], list[Result]]] = {}
    for run in results:
        for name, scored in run.get("tests", {}).items():
            modules = digest({part: sorted(found) for part, found in scored["modules"].items()})
            key = (name, run["dataset"], run["data"]["root"], scored["data"]["root"], modules)
            place = ARCHS.index(run["arch"]) if run["arch"] in ARCHS else len(ARCHS)
            models = found.setdefault(key, {})
            models.setdefault((place, run["recipe"]["name"]), []).append(run)
    for (tests, dataset, root, test_root, _), models in sorted(found.items()):
        by_model = {name: models[place, name] for place, name in sorted(models)}
        yield Gap(tests, dataset, root, test_root, by_model)


def model_name(recipe: str) -> str:
    """A recipe's name for people: the architecture, and what the recipe changes of it."""
    known = [name for name, one in RECIPES.items() if one.family != "ablation"]
    whole = max((name for name in known if recipe.startswith(name)), key=len, default="")
    if not whole:
        return recipe
    change = recipe.removeprefix(whole).replace("shared_false", "untied").strip("-")
    return LABELS[RECIPES[whole].arch] + (f", {change.replace('_', ' ')}" if change else "")


def gap_tables(gap: Gap) -> list[Table]:
    """Both numbers on every part, then by module."""
    return [_overview(gap), *(_by_module(gap, part) for part in gap.parts)]


def _note(gap: Gap) -> str:
    missing = f" Not scored: {', '.join(gap.missing)}." if gap.missing else ""
    return f"Data root {gap.root[:16]}…, {title_of(gap.tests)} root {gap.test_root[:16]}….{missing}"


def _overview(gap: Gap) -> Table:
    rows = []
    for model, runs in gap.by_model.items():
        nlls = [spread(values, len(runs)) for values in gap.nlls(model)]
        shares = [share_text(gap.shares(model, part), 1, len(runs)) for part in gap.parts]
        rows.append([model_name(model), str(len(runs)), *nlls, *shares])
    titles = [part.capitalize() for part in gap.parts]
    return Table(
        title=f"From validation to extrapolation: {title_of(gap.dataset)}",
        columns=[
            *("Model", "Runs", "Validation, NLL"),
            *(f"{title}, NLL" for title in titles),
            *(f"{title}, exact match" for title in titles),
        ],
        rows=rows,
        note="Ours; the paper reports validation only. NLL in nats per answer token, mean ± sample "
        "standard deviation over seed pairs; exact match with the 95% Wilson interval of the "
        f"questions. {_note(gap)}",
    )


def _by_module(gap: Gap, part: str) -> Table:
    first = next(iter(gap.by_model.values()))[0]["tests"][gap.tests]["modules"][part]
    rows = []
    for module in first:
        cells = [marked(module)]
        for model, runs in gap.by_model.items():
            found = [run["tests"][gap.tests]["modules"][part][module] for run in runs]
            nlls = [one["sum"] / one["count"] for one in found]
            share = share_text(gap.shares(model, part, module), 0, len(runs))
            deviation = f" ± {statistics.stdev(nlls):.2f}" if len(nlls) > 1 else ""
            cells.append(f"{statistics.fmean(nlls):.2f}{deviation}; {share}")
        rows.append(cells)
    return Table(
        title=f"{part.capitalize()} by module: {title_of(gap.dataset)}",
        columns=["Module", *map(model_name, gap.by_model)],
        rows=rows,
        note=f"NLL in nats; exact match with its 95% Wilson interval. {ONE_LEVEL} {_note(gap)}",
    )
