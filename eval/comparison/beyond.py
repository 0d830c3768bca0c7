"""Tables of what the paper does not report: bits per byte, exact match, proofs, probes, test sets.

- What no run measured has no table; what some runs lack is counted.
- Runs of one group answer the same questions, so the interval of a share is that of the mean share
  as if each question were asked once. Differences of models are paired by seed, in their own table.
- Proofs: shares are of those that Lean checked. Only runs that were judged alike share a row; the
  interval is that of the fewest theorems that one of them had checked.
- Test sets: runs are put together by recipe, on one training root and one test root.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tangobench.catalogue import TEST_SETS, metrics_of, title_of
from tangobench.eval.comparison.analysis import judged
from tangobench.eval.comparison.replications import ablation_tables, differences
from tangobench.eval.comparison.runs import (
    MISSING,
    ONE_LEVEL,
    Group,
    ends,
    groups,
    label_of,
    marked,
    metric_title,
    seeds_of,
    share_text,
    signed,
    spread,
)
from tangobench.eval.comparison.studies import Pair, Result
from tangobench.eval.published import CLAIMS, LABELS
from tangobench.eval.render import Table
from tangobench.model.config import ARCHS
from tangobench.model.training.recipes import RECIPES, SEED_PAIRS
from tangobench.pipeline.core.hashing import digest

_LEVELS: Final = ("easy", "medium", "hard")
_PROBES: Final = {
    "near_twin": "near twins in training",
    "proof": "proofs in training",
    "proof_length": "proofs in training, by length",
    "novelty": "novelty of the question",
}


def beyond_tables(results: Sequence[Result]) -> Iterator[Table]:
    """All tables that some results allow."""
    for group in groups(results):
        yield from group_tables(group)
    yield from ablation_tables(differences(results))


def group_tables(group: Group) -> list[Table]:
    """The tables of one group of runs; ablations are compared across groups."""
    matched = (exact(group), exact_pairs(group), exact_by_module(group))
    tables = (bits(group), *matched, proof_table(group), *probe_tables(group))
    return [table for table in tables if table is not None]


def _by_model(
    group: Group, title: str, heads: Sequence[str], cells: Callable[[Any], Sequence[str]], note: str
) -> Table:
    """A row per model of a group."""
    rows = [[label_of(model), *cells(runs)] for model, runs in group.by_model.items()]
    return Table(title=title, columns=["Model", *heads], rows=rows, note=group.note(note))


def bits(group: Group) -> Table | None:
    """Bits per byte of every metric that has bytes."""

    def values(runs: Sequence[Result], metric: str) -> list[float]:
        found = [run["scores"].get(metric, {}).get("bits_per_byte") for run in runs]
        return [float(value) for value in found if value is not None]

    metrics = [metric for metric in group.metrics if values(group.every, metric)]
    if not metrics:
        return None
    return _by_model(
        group,
        group.title("Bits per byte"),
        [metric_title(metric) for metric in metrics],
        lambda runs: [spread(values(runs, metric), group.expected) for metric in metrics],
        "Summed NLL over ln 2 and over the UTF-8 bytes of the scored tokens; mean ± sample "
        "standard deviation over seeds. Lower is better.",
    )


def _shares(runs: Sequence[Result], name: str) -> list[dict[str, Any]]:
    matched = [run["exact_match"]["shares"] for run in runs if "exact_match" in run]
    return [shares[name] for shares in matched if name in shares]


def _asked(group: Group) -> dict[str, Any]:
    """Shares of any run of the group; empty if none was matched."""
    found = (run["exact_match"]["shares"] for run in group.every if "exact_match" in run)
    shares: dict[str, Any] = next(found, {})
    return shares


def exact(group: Group) -> Table | None:
    """Exact match over all questions and by difficulty."""
    shares = _asked(group)
    names = ["all", *(f"difficulty:{level}" for level in _LEVELS)]
    asked = {name: shares[name]["tried"] for name in names if name in shares}
    if not shares:
        return None
    return _by_model(
        group,
        group.title("Exact match of generated answers"),
        [f"{n.rpartition(':')[2].capitalize()} ({k:,} questions)" for n, k in asked.items()],
        lambda runs: [share_text(_shares(runs, name), 1, group.expected) for name in asked],
        "Greedy decoding; an answer counts if it equals the generator's to the last character "
        "and then ends. Mean over seeds; the 95% Wilson interval is that of the questions, "
        "seeds left aside. Models answer the same ones: compare them by their differences.",
    )


def exact_pairs(group: Group) -> Table | None:
    """Differences of exact match in the pairs of models that the paper orders, seed by seed."""
    rows = []
    for better, worse in CLAIMS:
        points = {a: _points_by_seeds(group.by_model.get(a, ())) for a in (better, worse)}
        found = judged({better: 1.0, worse: -1.0}, points, None)
        if paired := found["paired"]:
            pair = f"{LABELS[better]} minus {LABELS[worse]}"
            per_seed = signed(found["per_seed"], 2)
            rows.append([pair, f"{paired[0]:+.2f}", ends(paired, 2), per_seed])
    if not rows:
        return None
    return Table(
        title=group.title("Differences of exact match"),
        columns=["Models", "Percentage points", "95% interval", "Per seed"],
        rows=rows,
        note=group.note("The same questions, paired by seed; Student's t over seeds."),
    )


def _points_by_seeds(runs: Sequence[Result]) -> dict[Pair, float]:
    """Right answers in percent, by seed pair."""
    return {
        seeds_of(run): 100 * share["correct"] / share["tried"]
        for run in runs
        for share in _shares([run], "all")
        if share["tried"]
    }


def exact_by_module(group: Group) -> Table | None:
    """Exact match by module, a column per architecture."""
    modules = [name for name in _asked(group) if name.startswith("module:")]
    if not modules:
        return None
    by_model = group.by_model.values()
    return Table(
        title=group.title("Exact match by module"),
        columns=["Module", *map(label_of, group.by_model)],
        rows=[
            [
                marked(name.removeprefix("module:")),
                *(share_text(_shares(runs, name), 0, group.expected) for runs in by_model),
            ]
            for name in modules
        ],
        note=group.note(f"Mean over seeds, 95% Wilson interval of the questions. {ONE_LEVEL}"),
    )


def probe_tables(group: Group) -> Iterator[Table]:
    """NLL by what training holds of a row, a table per probe."""
    first: dict[str, Any] = next((run["probes"] for run in group.every if "probes" in run), {})
    fed = " Groups go by the whole training split, of which these runs were fed a part."
    for metric, probes in first.items():
        for name, probe in probes.items():
            yield _by_model(
                group,
                group.title(f"NLL by {_PROBES.get(name, name)}", metric),
                [_head(*item) for item in probe["groups"].items()],
                partial(_probe_cells, metric, name, probe["groups"]),
                f"{probe['definition']}{'' if group.family == 'published' else fed}",
            )


def _head(name: str, found: dict[str, Any]) -> str:
    return f"{name.capitalize()} ({found['rows']:,} row{'' if found['rows'] == 1 else 's'})"


def _probe_cells(
    metric: str, probe: str, groups: dict[str, Any], runs: Sequence[Result]
) -> list[str]:
    probed = [run["probes"][metric][probe]["groups"] for run in runs if "probes" in run]
    return [
        spread([found[name]["nll"] for found in probed if found[name]["nll"] is not None])
        if group["count"]
        else "–"
        for name, group in groups.items()
    ]


def proof_table(group: Group) -> Table | None:
    """Proved, failed and unchecked proofs of each architecture."""
    judged = {
        label_of(model): [run["proof_check"] for run in runs if "proof_check" in run]
        for model, runs in group.by_model.items()
    }
    if not any(judged.values()):
        return None
    columns = ["Model", "Checker", "Theorems", "Proved", "Checked per run"]
    return Table(
        title=group.title("Proofs that Lean accepts"),
        columns=[*columns, "Why they failed", "Why they were not checked"],
        rows=[[name, *cells] for name, found in judged.items() for cells in _proof_rows(found)],
        note=group.note(
            "Greedy proofs of the validation theorems in place of the originals; mean over seeds, "
            "95% Wilson interval over what was checked. Reasons are summed over seeds."
        ),
    )


def _proof_rows(found: Sequence[Result]) -> list[list[str]]:
    """One row for each way in which runs were judged."""
    alike: dict[tuple[str, str], list[Result]] = {}
    for one in found:
        tried = f"first {one['generated']:,}" if one.get("limit") else f"{one['generated']:,}"
        alike.setdefault((one["checker"], tried), []).append(one)
    rows = []
    for way, chosen in sorted(alike.items()):
        checked = statistics.fmean(one["checked"] for one in chosen)
        reasons = [_reasons(chosen, outcome) for outcome in ("failed", "unchecked")]
        rows.append([*way, _proof_share(chosen), f"{checked:,.0f}", *reasons])
    return rows or [[MISSING] * 6]


def _reasons(found: Sequence[Result], outcome: str) -> str:
    total = sum((Counter(one[outcome]) for one in found), Counter[str]())
    return ", ".join(f"{reason} {count:,}" for reason, count in sorted(total.items())) or "–"


def _proof_share(found: Sequence[Result]) -> str:
    """Mean share and interval of the runs in which anything was checked."""
    counted = [one for one in found if one["checked"]]
    if not counted:
        return "–"
    tried = min(one["checked"] for one in counted)
    shares = [one["proved"] / one["checked"] for one in counted]
    return share_text([{"correct": share * tried, "tried": tried} for share in shares])


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
        found = next(iter(self.by_model.values()))[0]["tests"][self.tests]["scores"]
        known = TEST_SETS[self.tests].configs if self.tests in TEST_SETS else ()
        return sorted(found, key=lambda part: (known.index(part) if part in known else 99, part))

    def nlls(self, model: str) -> list[list[float]]:
        """By stage (validation, then each part): the NLL of every run."""
        runs = self.by_model[model]
        tested = [run["tests"][self.tests]["scores"] for run in runs]
        stages = [[_validation(run) for run in runs]]
        stages += [[scores[part]["nll"] for scores in tested] for part in self.parts]
        return [[float(nll) for nll in stage] for stage in stages]

    def modules(self, model: str, part: str) -> list[dict[str, dict[str, Any]]]:
        """Sums and counts by module, per run."""
        return [run["tests"][self.tests]["modules"][part] for run in self.by_model[model]]

    def shares(self, model: str, part: str) -> list[dict[str, int]]:
        """Right answers of those tried, per run."""
        return [
            {key: sum(module[key] for module in found.values()) for key in ("correct", "tried")}
            for found in self.modules(model, part)
        ]

    @property
    def missing(self) -> list[str]:
        """Runs of the six architectures and three seed pairs without these scores."""
        every = [run for runs in self.by_model.values() for run in runs]
        there = {run["run"] for run in every}
        wanted = [
            f"{name}-s{first}-{second}"
            for size in sorted({run["recipe"]["name"].split("-")[0] for run in every})
            for arch in ARCHS
            if (name := f"{size}-{self.dataset}-{arch}") in RECIPES
            for first, second in SEED_PAIRS
        ]
        return [name for name in wanted if name not in there]


def _validation(run: Result) -> float:
    """The score that decides; a dataset of one's own has one of its own name."""
    scores = run["scores"]
    known = [name for name in metrics_of(run["dataset"]) if name in scores]
    return float(scores[(known or list(scores))[0]]["nll"])


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
    change = re.sub(r"profile_[a-z]+-?|budget_macs_(\d+)", _budget, change).strip("-")
    return LABELS[RECIPES[whole].arch] + (f", {change.replace('_', ' ')}" if change else "")


def _budget(found: re.Match[str]) -> str:
    return f"{int(found[1]) / 1e12:.2g}T MACs" if found[1] else ""


def gap_tables(gap: Gap) -> list[Table]:
    """Both numbers on every part, then by module."""
    missing = f" Not scored: {', '.join(gap.missing)}." if gap.missing else ""
    roots = f"Data root {gap.root[:16]}…, {title_of(gap.tests)} root {gap.test_root[:16]}…"
    note = f"{roots}.{missing}"
    return [_overview(gap, note), *(_by_module(gap, part, note) for part in gap.parts)]


def _overview(gap: Gap, note: str) -> Table:
    rows = []
    for model, runs in gap.by_model.items():
        nlls = [spread(values, len(runs)) for values in gap.nlls(model)]
        shares = [share_text(gap.shares(model, part), 1, len(runs)) for part in gap.parts]
        rows.append([model_name(model), str(len(runs)), *nlls, *shares])
    stages = ["Validation", *(part.capitalize() for part in gap.parts)]
    nlls = [f"{stage}, NLL" for stage in stages]
    return Table(
        title=f"From validation to extrapolation: {title_of(gap.dataset)}",
        columns=["Model", "Runs", *nlls, *(f"{stage}, exact match" for stage in stages[1:])],
        rows=rows,
        note="Ours; the paper reports validation only. NLL in nats per answer token, mean ± sample "
        "standard deviation over seed pairs; exact match with the 95% Wilson interval of the "
        f"questions. {note}",
    )


def _by_module(gap: Gap, part: str, note: str) -> Table:
    by_model = [gap.modules(model, part) for model in gap.by_model]
    return Table(
        title=f"{part.capitalize()} by module: {title_of(gap.dataset)}",
        columns=["Module", *map(model_name, gap.by_model)],
        rows=[
            [marked(module), *(_module_cell([run[module] for run in runs]) for runs in by_model)]
            for module in by_model[0][0]
        ],
        note=f"NLL in nats; exact match with its 95% Wilson interval. {ONE_LEVEL} {note}",
    )


def _module_cell(found: Sequence[dict[str, Any]]) -> str:
    nlls = [one["sum"] / one["count"] for one in found]
    deviation = f" ± {statistics.stdev(nlls):.2f}" if len(nlls) > 1 else ""
    return f"{statistics.fmean(nlls):.2f}{deviation}; {share_text(found, 0, len(found))}"
