"""Tables of what the paper does not report: bits per byte, exact match, proofs, probes, test sets.

- What no run measured has no table; what some runs lack is counted.
- Runs of one group answer the same questions, so the interval of a share is that of the mean share
  as if each question were asked once. Differences of models are paired by seed, in their own table.
- Proofs: shares are of those that Lean checked. Only runs that were judged alike share a row; the
  interval is that of the fewest theorems that one of them had checked.
- Test sets: runs are put together by recipe, on one training root and one test root.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tangobench.catalogue import TEST_SETS, metrics_of, title_of
from tangobench.eval.comparison import runs as texts
from tangobench.eval.comparison.analysis import difference_table, explained, judged
from tangobench.eval.comparison.runs import MISSING, Group, label_of, seeds_of, share_text, spread
from tangobench.eval.comparison.studies import REPLICATED, Pair, Result, minus
from tangobench.eval.intervals import paired_t, two_way
from tangobench.eval.published import CLAIMS, LABELS
from tangobench.eval.render import Table
from tangobench.model.training.recipes import runs
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.progress import units

_LEVELS: Final = ("easy", "medium", "hard")
_PROBES: Final = {
    "near_twin": "near twins in training",
    "proof": "proofs in training",
    "proof_length": "proofs in training, by length",
    "novelty": "novelty of the question",
}


def beyond_tables(results: Sequence[Result]) -> Iterator[Table]:
    for group in texts.groups(results):
        yield from group_tables(group)


def group_tables(group: Group) -> list[Table]:
    matched = (exact(group), exact_pairs(group), exact_by_module(group))
    tables = (bits(group), *matched, proof_table(group), *probe_tables(group))
    return [table for table in tables if table is not None]


def _by_model(
    group: Group, title: str, heads: Sequence[str], cells: Callable[[Any], Sequence[str]], note: str
) -> Table:
    rows = [[label_of(model), *cells(runs)] for model, runs in group.by_model.items()]
    return Table(title=title, columns=["Model", *heads], rows=rows, note=group.note(note))


def bits(group: Group) -> Table | None:
    def values(runs: Sequence[Result], metric: str) -> list[float]:
        found = [run["scores"].get(metric, {}).get("bits_per_byte") for run in runs]
        return [float(value) for value in found if value is not None]

    metrics = [metric for metric in group.metrics if values(group.every, metric)]
    if not metrics:
        return None
    return _by_model(
        group,
        group.title("Bits per byte"),
        [texts.metric_title(metric) for metric in metrics],
        lambda runs: [spread(values(runs, metric), group.expected) for metric in metrics],
        "Summed NLL over ln 2 and over the UTF-8 bytes of the scored tokens; mean ± sample "
        "standard deviation over seeds. Lower is better.",
    )


def _shares(runs: Sequence[Result], name: str) -> list[dict[str, Any]]:
    matched = [run["exact_match"]["shares"] for run in runs if "exact_match" in run]
    return [shares[name] for shares in matched if name in shares]


def _asked(group: Group) -> list[str]:
    """What shares any run of the group has; empty if none was matched."""
    found = (run["exact_match"]["shares"] for run in group.every if "exact_match" in run)
    return list(next(found, ()))


def exact(group: Group) -> Table | None:
    names = ["all", *(f"difficulty:{level}" for level in _LEVELS)]
    asked = [name for name in names if name in _asked(group)]
    if not asked:
        return None
    tried = [_shares(group.every, name)[0]["tried"] for name in asked]
    return _by_model(
        group,
        group.title("Exact match of generated answers"),
        [
            f"{name.rpartition(':')[2].capitalize()} ({units(count, 'question')})"
            for name, count in zip(asked, tried, strict=True)
        ],
        lambda runs: [share_text(_shares(runs, name), 1, group.expected) for name in asked],
        "Greedy decoding; an answer counts if it equals the generator's to the last character "
        "and then ends. Mean over seeds; the 95% Wilson interval is that of the questions, "
        "seeds left aside. Models answer the same ones: compare them by their differences.",
    )


def exact_pairs(group: Group) -> Table | None:
    points = {model: _points_by_seeds(runs) for model, runs in group.by_model.items()}
    layout = two_way(points)
    found = [
        {"contrast": f"{LABELS[a]} minus {LABELS[b]}", **judged(minus(a, b), points, layout)}
        for a, b in CLAIMS
        if points.get(a) and points.get(b)
    ]
    if not any(one["paired"] for one in found):
        return None
    note = group.note("Percentage points on the same questions, paired by seed.")
    return difference_table(group.title("Differences of exact match"), found, note, digits=2)


def _points_by_seeds(runs: Sequence[Result]) -> dict[Pair, float]:
    return {
        seeds_of(run): 100 * share["correct"] / share["tried"]
        for run in runs
        for share in _shares([run], "all")
        if share["tried"]
    }


def exact_by_module(group: Group) -> Table | None:
    modules = [name for name in _asked(group) if name.startswith("module:")]
    if not modules:
        return None
    by_model = group.by_model.values()
    return Table(
        title=group.title("Exact match by module"),
        columns=["Module", *map(label_of, group.by_model)],
        rows=[
            [
                texts.marked(name.removeprefix("module:")),
                *(share_text(_shares(runs, name), 0, group.expected) for runs in by_model),
            ]
            for name in modules
        ],
        note=group.note(f"Means over seeds, Wilson intervals at 95%. {texts.ONE_LEVEL}"),
    )


def probe_tables(group: Group) -> Iterator[Table]:
    first: dict[str, Any] = next((run["probes"] for run in group.every if "probes" in run), {})
    fed = " Groups go by the whole training split, of which these runs were fed a part."
    for metric, probes in first.items():
        for name, probe in probes.items():
            yield _by_model(
                group,
                group.title(f"NLL by {_PROBES.get(name, name)}", metric),
                [
                    f"{label.capitalize()} ({units(found['rows'], 'row')})"
                    for label, found in probe["groups"].items()
                ],
                partial(_probe_cells, metric, name, probe["groups"], group.expected),
                f"{probe['definition']}{'' if group.family == 'published' else fed}",
            )


def _probe_cells(
    metric: str, probe: str, groups: dict[str, Any], expected: int, runs: Sequence[Result]
) -> list[str]:
    probed = [run["probes"][metric][probe]["groups"] for run in runs if "probes" in run]
    return [
        spread([f[name]["nll"] for f in probed if f[name]["nll"] is not None], expected)
        if group["count"]
        else "–"
        for name, group in groups.items()
    ]


def proof_table(group: Group) -> Table | None:
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
        rows=[
            [name, *cells]
            for name, found in judged.items()
            for cells in _proof_rows(found, group.expected)
        ],
        note=group.note(
            "Greedy proofs of the validation theorems in place of the originals; mean over seeds, "
            "95% Wilson interval over what was checked. Reasons are summed over seeds."
        ),
    )


def _proof_rows(found: Sequence[Result], expected: int) -> list[list[str]]:
    alike: dict[tuple[str, str], list[Result]] = {}
    for one in found:
        tried = f"first {one['generated']:,}" if one.get("limit") else f"{one['generated']:,}"
        alike.setdefault((one["checker"], tried), []).append(one)
    rows = []
    for way, chosen in sorted(alike.items()):
        checked = statistics.fmean(one["checked"] for one in chosen)
        reasons = [_reasons(chosen, outcome) for outcome in ("failed", "unchecked")]
        rows.append([*way, _proof_share(chosen, expected), f"{checked:,.0f}", *reasons])
    return rows or [[MISSING] * 6]


def _reasons(found: Sequence[Result], outcome: str) -> str:
    total = sum((Counter(one[outcome]) for one in found), Counter[str]())
    return ", ".join(f"{reason} {count:,}" for reason, count in sorted(total.items())) or "–"


def _proof_share(found: Sequence[Result], expected: int) -> str:
    counted = [one for one in found if one["checked"]]
    if not counted:
        return "–"
    tried = min(one["checked"] for one in counted)
    shares = [one["proved"] / one["checked"] for one in counted]
    counts = [{"correct": share * tried, "tried": tried} for share in shares]
    return share_text(counts, 1, expected)


@dataclass(frozen=True, slots=True)
class Gap:
    """Runs by model that were trained on one dataset and scored on one test set."""

    tests: str
    dataset: str
    root: str
    test_root: str
    by_model: dict[str, list[Result]]

    @property
    def every(self) -> list[Result]:
        return [run for runs in self.by_model.values() for run in runs]

    @property
    def parts(self) -> list[str]:
        found = self.every[0]["tests"][self.tests]["scores"]
        known = TEST_SETS[self.tests].configs if self.tests in TEST_SETS else ()
        return sorted(found, key=lambda part: (known.index(part) if part in known else 99, part))

    @property
    def stages(self) -> list[str]:
        return ["Validation", *(part.capitalize() for part in self.parts)]

    def nlls(self, model: str) -> list[list[float]]:
        """By stage (validation, then each part): the NLL of every run."""
        runs = self.by_model[model]
        tested = [run["tests"][self.tests]["scores"] for run in runs]
        stages = [[_validation(run) for run in runs]]
        return stages + [[float(scores[part]["nll"]) for scores in tested] for part in self.parts]

    def modules(self, model: str, part: str) -> list[dict[str, dict[str, Any]]]:
        return [run["tests"][self.tests]["modules"][part] for run in self.by_model[model]]

    def shares(self, model: str, part: str) -> list[dict[str, int]]:
        return [
            {key: sum(module[key] for module in found.values()) for key in ("correct", "tried")}
            for found in self.modules(model, part)
        ]

    @property
    def missing(self) -> list[str]:
        """Runs of the same replications without these scores."""
        there = {run["run"] for run in self.every}
        families = sorted({texts.family_of(run) for run in self.every}.intersection(REPLICATED))
        wanted = [run.name for f in families for run in runs(f, self.dataset)]  # type: ignore[arg-type]
        return [name for name in wanted if name not in there]


def _validation(run: Result) -> float:
    """The score that decides; a dataset of one's own has one of its own name."""
    scores = run["scores"]
    known = [name for name in metrics_of(run["dataset"]) if name in scores]
    return float(scores[(known or list(scores))[0]]["nll"])


def gaps(results: Sequence[Result]) -> Iterator[Gap]:
    """One for every pair of a training dataset and a test set (the same modules of it)."""
    found: dict[tuple[str, ...], list[Result]] = {}
    for run in results:
        for name, scored in run.get("tests", {}).items():
            modules = digest({part: sorted(found) for part, found in scored["modules"].items()})
            key = (name, run["dataset"], run["data"]["root"], scored["data"]["root"], modules)
            found.setdefault(key, []).append(run)
    for (tests, dataset, root, test_root, _), same in sorted(found.items()):
        yield Gap(tests, dataset, root, test_root, texts.by_label(same))


def gap_tables(gap: Gap) -> list[Table]:
    names = ", ".join(gap.missing[:3]) + (" …" if len(gap.missing) > 3 else "")
    missing = f" Not scored: {units(len(gap.missing), 'run')} ({names})." if gap.missing else ""
    roots = f"Data root {gap.root[:16]}…, {title_of(gap.tests)} root {gap.test_root[:16]}…"
    note = f"{roots}.{missing}"
    tables = [_overview(gap, note), _differences(gap, note)]
    tables += [_by_module(gap, part, note) for part in gap.parts]
    return [table for table in tables if table.rows]


def _overview(gap: Gap, note: str) -> Table:
    rows = []
    for model, same in gap.by_model.items():
        nlls = [spread(values, len(same)) for values in gap.nlls(model)]
        shares = [share_text(gap.shares(model, part), 1, len(same)) for part in gap.parts]
        rows.append([model, str(len(same)), *nlls, *shares])
    nlls = [f"{stage}, NLL" for stage in gap.stages]
    return Table(
        title=f"From validation to extrapolation: {title_of(gap.dataset)}, root {gap.root[:8]}",
        columns=["Model", "Runs", *nlls, *(f"{stage}, exact match" for stage in gap.stages[1:])],
        rows=rows,
        note="Ours; the paper reports validation only. NLL in nats per answer token, mean ± sample "
        "standard deviation over seed pairs; exact match with the 95% Wilson interval of the "
        f"questions. {note}",
    )


def _differences(gap: Gap, note: str) -> Table:
    """Each model against the first, stage by stage; no rows without two seed pairs in common."""
    first, *others = gap.by_model
    by_stage: list[dict[str, dict[Pair, float]]] = [{} for _ in gap.stages]
    for model, same in gap.by_model.items():
        for scores, nlls in zip(by_stage, gap.nlls(model), strict=True):
            scores[model] = dict(zip(map(seeds_of, same), nlls, strict=True))
    rows = []
    for model in others:
        found = [judged(minus(model, first), scores, two_way(scores)) for scores in by_stage]
        if all(one["paired"] and one["two_way"] for one in found):
            cells = [f"{texts.estimate(one['two_way'])}, {explained(one)}" for one in found]
            rows.append([model, *cells])
    return Table(
        title=f"Test parts, NLL minus that of {first}: root {gap.root[:8]}",
        columns=["Model", *gap.stages],
        rows=rows,
        note="95% intervals of the two-way layout over seed pairs, not corrected for their number; "
        f"a verdict needs the paired t too. {note}",
    )


def _by_module(gap: Gap, part: str, note: str) -> Table:
    by_model = [gap.modules(model, part) for model in gap.by_model]
    names = {module: texts.marked(module) for module in by_model[0][0]}
    return Table(
        title=f"{part.capitalize()} by module: {title_of(gap.dataset)}, root {gap.root[:8]}",
        columns=["Module", *gap.by_model],
        rows=[
            [name, *(_module_cell([run[module] for run in runs]) for runs in by_model)]
            for module, name in names.items()
        ],
        note="NLL in nats with the 95% interval of the mean over seed pairs (Student's t); exact "
        f"match with its 95% Wilson interval. {texts.ONE_LEVEL} {note}",
    )


def _module_cell(found: Sequence[dict[str, Any]]) -> str:
    nlls = [one["sum"] / one["count"] for one in found]
    interval = paired_t(nlls)
    ends = f" ({interval[1]:.2f} … {interval[2]:.2f})" if interval else ""
    return f"{statistics.fmean(nlls):.2f}{ends}; {share_text(found, 0, len(found))}"
