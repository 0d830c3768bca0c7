"""The paper's five tables with our figures beside them, and the user's own runs.

- "ours" is the mean ± sample standard deviation over the runs found, each at its final checkpoint;
  fewer than three runs are counted, none is "missing". Nothing is selected. A run whose recipe or
  dataset is not the published one is named and not counted.
- A mean is over seed pairs of one recipe on one root; differences of own runs are paired by seeds.
- Parameters and operations are computed from the models, not copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from tangobench.catalogue import CATALOGUE, METRICS, metrics_of
from tangobench.errors import UsageError
from tangobench.eval import published
from tangobench.eval.comparison.analysis import judged
from tangobench.eval.comparison.replications import beside_paper
from tangobench.eval.comparison.runs import (
    OWN,
    Group,
    by_seeds,
    estimate,
    groups,
    metric_title,
    operations,
    require_one_root,
    run_macs,
    signed,
    spread,
    values,
)
from tangobench.eval.comparison.studies import Result
from tangobench.eval.published import LABELS
from tangobench.eval.render import Table, tabled
from tangobench.model import config
from tangobench.model.config import ARCHS
from tangobench.model.training.recipes import runs
from tangobench.pipeline.core.hashing import digest

_NLL_NOTE: Final = (
    "Validation NLL, mean ± sample standard deviation over seeds, final checkpoint only; lower is "
    "better. Columns marked (paper) are the paper's figures; a cell of ours is "
    "missing until a run of the published size is trained and scored."
)
_COSTS: Final = ("Nonembedding parameters", "Steps", "MACs of training", "Seconds per run")


def paper_tables(results: Sequence[Result]) -> Iterator[Table]:
    """Parameters, main results, Lean, eight blocks, compute."""
    main = [data.metric for data in CATALOGUE.values() if data.metric in published.NLL[4]["tango"]]
    lean = metrics_of("lean")
    yield parameters()
    yield nll_table("Four block applications", results, 4, main)
    yield nll_table("Lean", results, 4, lean)
    yield nll_table("Eight block applications", results, 8, ["fineweb", *lean])
    yield compute()


def parameters() -> Table:
    """Widths and nonembedding parameters at four block applications."""

    def name(arch: str, dataset: str) -> str:
        return LABELS[arch] + (f" ({CATALOGUE[dataset].label})" if arch == "gau" else "")

    rows = [
        (name(arch, dataset), config.published(arch, dataset), width, count)  # type: ignore[arg-type]
        for (arch, dataset), (width, count) in published.PARAMETERS.items()
    ]
    sharing = {True: "1 block reused 4 times", False: "4 independent blocks"}
    return tabled(
        "Parameter matching",
        rows,
        {
            "Architecture": lambda row: row[0],
            "Block sharing": lambda row: sharing[bool(row[1].shared)],
            "F or E": lambda row: f"{row[1].width:,}",
            "F or E (paper)": lambda row: f"{row[2]:,}",
            "Nonembedding parameters": lambda row: f"{row[1].nonembedding_params:,}",
            "Nonembedding parameters (paper)": lambda row: f"{row[3]:,}",
        },
    )


def compute() -> Table:
    """Parameters, operations and scaling on one FineWeb-Edu sequence."""
    models = {arch: config.published(arch, "fineweb") for arch in ARCHS}
    printed = {arch: published.PARAMETERS[arch, "fineweb"][1] for arch in ARCHS}
    return tabled(
        "Computation, one sequence of 8,192 tokens",
        ARCHS,
        {
            "Model": lambda arch: LABELS[arch],
            "Nonembedding parameters": lambda a: f"{models[a].nonembedding_params / 1e6:.3f}M",
            "Nonembedding parameters (paper)": lambda arch: f"{printed[arch] / 1e6:.3f}M",
            "MACs": lambda a: config.printed(operations(models[a], models[a].context)),
            "MACs (paper)": lambda arch: published.MACS[arch],
            "Scaling with sequence length": lambda arch: published.SCALING[arch],
        },
        "One MAC is one multiply–accumulate operation of a forward pass.",
    )


def nll_table(title: str, results: Sequence[Result], depth: int, metrics: Sequence[str]) -> Table:
    """Our NLL and the paper's for some metrics at one depth, from the published runs' results."""
    hashes = {run.sha256 for run in runs("published")}
    asked = [
        result
        for result in results
        if (result["family"], result["depth"]) == ("published", depth)
        and not result["scores"].keys().isdisjoint(metrics)
    ]
    ours = [r for r in asked if r["run_sha256"] in hashes and r["data"]["profile"] == "paper"]
    roots = require_one_root(ours)
    scores: dict[str, dict[str, list[float]]] = {
        arch: {m: values((r for r in ours if r["arch"] == arch), m) for m in metrics}
        for arch in ARCHS
    }
    rows = beside_paper(scores, metrics, depth)
    heads = [head for m in metrics for head in (METRICS[m], f"{METRICS[m]} (paper)")]
    notes = [_NLL_NOTE, *(f"Data root of {name}: {root}" for name, root in roots.items())]
    if strays := [result["run"] for result in asked if result not in ours]:
        notes.append(f"Not counted, recipe or dataset is not the paper's: {', '.join(strays)}.")
    return Table(title=title, columns=["Model", *heads], rows=rows, note=" ".join(notes))


def own_tables(results: Sequence[Result]) -> Iterator[Table]:
    """One table per group of own runs."""
    for group in groups(results):
        if group.family == OWN:
            yield Table(
                title=group.title("Validation NLL"),
                columns=["Recipe", *map(metric_title, group.metrics), *_COSTS],
                rows=[[name, *_own(group, runs)] for name, runs in group.by_model.items()],
                note=group.note("Mean ± sample standard deviation over the runs of one recipe."),
            )


def _own(group: Group, runs: Sequence[Result]) -> list[str]:
    nlls = (spread(values(runs, metric), group.expected) for metric in group.metrics)
    return [*nlls, *_costs(runs)]


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
    metrics = [m for m in chosen[0]["scores"] if all(m in r["scores"] for r in chosen)]
    if len(roots) > 1 or not metrics:
        raise UsageError(
            f"runs on {' and '.join(roots)} have no score in common",
            kind="dataset-unfit",
            fix="compare runs of one dataset",
        )
    metric = "lean_joint" if "lean_joint" in metrics else metrics[0]
    by_recipe: dict[str, list[Result]] = {}
    for result in chosen:
        by_recipe.setdefault(digest(result["recipe"]), []).append(result)
    scores = {name: by_seeds(runs, metric) for name, runs in by_recipe.items()}
    first, expected = next(iter(by_recipe)), max(map(len, by_recipe.values()))
    rows = []
    for name, same in by_recipe.items():
        found: dict[str, Any] = {"per_seed": [], "paired": None}
        if name != first:
            found = judged({name: 1.0, first: -1.0}, scores, None)
        nll = spread(values(same, metric), expected)
        rows.append([same[0]["recipe"]["name"], nll, *_difference(**found), *_costs(same)])
    minus = f"Minus {by_recipe[first][0]['recipe']['name']}"
    return Table(
        title=f"{metric_title(metric)}: {len(chosen)} runs",
        columns=["Recipe", "NLL", minus, "Per seed pair", *_COSTS],
        rows=rows,
        note="Validation NLL in nats, mean ± sample standard deviation over seed pairs; "
        "differences on equal seed pairs with their 95% interval (Student's t). MACs are forward "
        f"ones by the paper's formulas. Data root {next(iter(roots.values()))}",
    )


def _difference(per_seed: Sequence[float], paired: Sequence[float] | None, **_: Any) -> list[str]:
    """One difference has no interval."""
    middle = estimate(paired) if len(per_seed) != 1 else signed(per_seed)
    return [middle, signed(per_seed)]
