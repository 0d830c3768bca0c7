"""Runs of the user's own: a table of each group, and any runs beside each other.

- A mean is over the seed pairs of one recipe, never over two recipes.
- Differences are paired by seed pair: such runs saw the same rows in the same order.

Usage: `render([compared(chosen)], "markdown")`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tangobench.errors import UsageError
from tangobench.eval.comparison.runs import (
    OWN,
    Group,
    Result,
    groups,
    metric_title,
    run_macs,
    values,
)
from tangobench.eval.comparison.studies import seeds_of
from tangobench.eval.comparison.tables import require_one_root, spread
from tangobench.eval.intervals import paired_t
from tangobench.eval.render import Table
from tangobench.pipeline.core.hashing import digest


def own_tables(results: Sequence[Result]) -> Iterator[Table]:
    """One table per group of own runs."""
    for group in groups(results):
        if group.family == OWN:
            yield _own_table(group)


def _own_table(group: Group) -> Table:
    return Table(
        title=group.title("Validation NLL"),
        columns=["Recipe", *map(metric_title, group.metrics), *_COSTS],
        rows=[
            [
                name,
                *(spread(values(runs, metric), group.expected) for metric in group.metrics),
                *_costs(runs),
            ]
            for name, runs in group.by_model.items()
        ],
        note=group.note("Mean ± sample standard deviation over the runs of one recipe."),
    )


_COSTS = ("Nonembedding parameters", "Steps", "MACs of training", "Seconds per run")


def _costs(runs: Sequence[Result]) -> list[str]:
    first, macs = runs[0], run_macs(runs[0])
    seconds = [run["training"]["seconds"] for run in runs if "training" in run]
    return [
        f"{first['model']['nonembedding_params']:,}",
        f"{first['step']:,}",
        "–" if macs is None else f"{macs * first['recipe']['batch'] * first['step'] / 1e12:,.2f}T",
        f"{sum(seconds) / len(seconds):,.0f}" if seconds else "–",
    ]


def choose(results: Sequence[Result], names: Sequence[str]) -> list[Result]:
    """The results of runs or of all runs of recipes, in the order of the names."""
    chosen: list[Result] = []
    for name in names:
        found = [result for result in results if name in (result["run"], result["recipe"]["name"])]
        if not found:
            raise UsageError(
                f"no result of a run or recipe {name!r}",
                kind="result-missing",
                fix=f"tangobench eval {name}, or look for its name in the folder of results",
            )
        chosen += [result for result in found if result not in chosen]
    return chosen


def compared(chosen: Sequence[Result]) -> Table:
    """Recipes beside each other, with their differences to the first, paired by seed pair."""
    roots = require_one_root(chosen)
    by_recipe: dict[str, list[Result]] = {}
    for result in chosen:
        by_recipe.setdefault(digest(result["recipe"]), []).append(result)
    metrics = [m for m in chosen[0]["scores"] if all(m in r["scores"] for r in chosen)]
    if len(roots) > 1 or not metrics:
        raise UsageError(
            f"runs on {' and '.join(roots)} have no score in common",
            kind="dataset-unfit",
            fix="compare runs of one dataset",
        )
    metric = "lean_joint" if "lean_joint" in metrics else metrics[0]
    first = next(iter(by_recipe.values()))
    expected = max(map(len, by_recipe.values()))
    return Table(
        title=f"{metric_title(metric)}: {len(chosen)} runs",
        columns=["Recipe", "NLL", f"Minus {first[0]['recipe']['name']}", "Per seed pair", *_COSTS],
        rows=[
            [
                runs[0]["recipe"]["name"],
                spread(values(runs, metric), expected),
                *_difference(first, runs, metric),
                *_costs(runs),
            ]
            for runs in by_recipe.values()
        ],
        note="Validation NLL in nats, mean ± sample standard deviation over seed pairs; "
        "differences on equal seed pairs with their 95% interval (Student's t). MACs are forward "
        f"ones by the paper's formulas. Data root {next(iter(roots.values()))}",
    )


def _difference(first: Sequence[Result], runs: Sequence[Result], metric: str) -> tuple[str, str]:
    base, other = (
        {seeds_of(run): float(run["scores"][metric]["nll"]) for run in side}
        for side in (first, runs)
    )
    per_seed = [other[pair] - base[pair] for pair in sorted(base.keys() & other.keys())]
    if runs is first or not per_seed:
        return "–", "–"
    shown = ", ".join(f"{value:+.3f}" for value in per_seed)
    interval = paired_t(per_seed)
    if interval is None:
        return f"{per_seed[0]:+.3f}", shown
    return f"{interval[0]:+.3f} ({interval[1]:+.3f} … {interval[2]:+.3f})", shown
