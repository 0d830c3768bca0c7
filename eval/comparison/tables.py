"""The paper's tables with our figures beside them, small replications, and the user's own runs.

- "ours" is the mean ± sample deviation over the runs found of one recipe on one root; fewer
  than three are counted, none is "missing". A run whose recipe or dataset is not the published one
  is named and not counted.
- A claim of the paper "holds" only if both intervals (paired t, two-way layout) are on its side.
  Claims are judged once all runs of a replication are there; a `sample` judges none.
- Parameters and operations are computed from the models, not copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tangobench.catalogue import CATALOGUE, METRICS, metrics_of
from tangobench.errors import UsageError
from tangobench.eval import published
from tangobench.eval.comparison import runs as texts
from tangobench.eval.comparison.analysis import Scores, by_arch, judged, side
from tangobench.eval.comparison.runs import OWN, operations, or_dash, spread, values
from tangobench.eval.comparison.studies import Result, minus
from tangobench.eval.intervals import Interval, two_way
from tangobench.eval.published import CLAIMS, LABELS, NLL
from tangobench.eval.render import Table, tabled
from tangobench.model import config
from tangobench.model.config import ARCHS
from tangobench.model.training.recipes import SEED_PAIRS, runs
from tangobench.pipeline.core.lock import shown_root
from tangobench.pipeline.core.progress import units

_NLL_NOTE: Final = (
    "Validation NLL, mean ± sample standard deviation over seeds, final checkpoint only; lower is "
    "better. Columns marked (paper) are the paper's figures; a cell of ours is "
    "missing until a run of the published size is trained and scored."
)
_COSTS: Final = ("Nonembedding parameters", "Steps", "MACs of training", "Seconds per run")
_SCALE: Final = {
    "sample": "A toy trained for seconds: it shows that everything runs and says nothing about "
    "the models.",
    "mini": "Models and budgets are smaller than the paper's: compare orders, not values.",
}


Scored = Mapping[str, Mapping[str, Sequence[float]]]
"""NLLs of the runs of a model, by model and metric."""


def paper_tables(results: Sequence[Result]) -> Iterator[Table]:
    main = [data.metric for data in CATALOGUE.values() if data.metric in NLL[4]["tango"]]
    lean = metrics_of("lean")
    yield parameters()
    yield nll_table("Four block applications", results, 4, main)
    yield nll_table("Lean", results, 4, lean)
    yield nll_table("Eight block applications", results, 8, ["fineweb", *lean])
    yield compute()


def parameters() -> Table:
    def name(arch: str, dataset: str) -> str:
        return LABELS[arch] + (f" ({CATALOGUE[dataset].label})" if arch == "gau" else "")

    rows = [
        (name(arch, dataset), config.published(arch, dataset), width, count)
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
            "Scaling with sequence length": lambda arch: config.SCALING[arch],
        },
        "One MAC is one multiply–accumulate operation of a forward pass.",
    )


def nll_table(title: str, results: Sequence[Result], depth: int, metrics: Sequence[str]) -> Table:
    """Our NLL and the paper's for some metrics at one depth, from the published runs' results."""
    asked = [
        result
        for result in results
        if (result["family"], result["depth"]) == ("published", depth)
        and not result["scores"].keys().isdisjoint(metrics)
    ]
    ours = [
        result
        for result in asked
        if (texts.family_of(result), result["data"]["profile"]) == ("published", "paper")
    ]
    roots = texts.require_one_root(ours)
    rows = beside_paper(_nlls(ours, metrics), depth)
    heads = [head for m in metrics for head in (METRICS[m], f"{METRICS[m]} (paper)")]
    notes = [_NLL_NOTE, *(f"Data root of {name}: {root}" for name, root in roots.items())]
    if strays := [result["run"] for result in asked if result not in ours]:
        notes.append(f"Not counted, recipe or dataset is not the paper's: {', '.join(strays)}.")
    return Table(title=title, columns=["Model", *heads], rows=rows, note=" ".join(notes))


def _nlls(results: Sequence[Result], metrics: Sequence[str]) -> Scored:
    return nlls({a: [run for run in results if run["arch"] == a] for a in ARCHS}, metrics)


def nlls(models: Mapping[str, Sequence[Result]], metrics: Sequence[str]) -> Scored:
    return {model: {m: values(runs, m) for m in metrics} for model, runs in models.items()}


def summarise(profile: str, dataset: str, results: Sequence[Result]) -> dict[str, Any]:
    texts.require_one_root(results)
    metrics = metrics_of(dataset)
    whole = len(results) == len(runs(profile, dataset))  # type: ignore[arg-type]
    scores, data = by_arch(results, metrics[0]), results[0]["data"]
    return {
        "profile": profile,
        "dataset": dataset,
        "root": data["root"],
        "content_root": data.get("content_root"),
        "runs": sorted(result["run"] for result in results),
        "metrics": metrics,
        "scores": _nlls(results, metrics),
        "claims": [
            judge(scores, *claim, metrics[0])
            for claim in (CLAIMS if whole and profile != "sample" else ())
        ],
    }


def judge(scores: Scores, lower: str, higher: str, metric: str) -> dict[str, Any]:
    found = judged(minus(higher, lower), scores, two_way(scores))
    paired, pooled, paper = found["paired"], found["two_way"], NLL[4]
    return {
        "lower": lower,
        "higher": higher,
        "metric": metric,
        "differences": found["per_seed"],
        "mean": paired and paired[0],
        "interval": paired and paired[1:],
        "two_way": pooled and pooled[1:],
        "paper": round(paper[higher][metric][0] - paper[lower][metric][0], 3),
        "verdict": verdict(paired, pooled),
    }


def verdict(paired: Interval | None, pooled: Interval | None) -> str:
    """What both intervals of (higher − lower) say about the claim; the stricter reading wins."""
    where = side(pooled, paired)
    if where is None or paired is None:
        return "not enough seeds"
    if where:
        return "holds" if where > 0 else "reversed"
    return f"undecided, mean {'agrees' if paired[0] > 0 else 'disagrees'}"


def replications(results: Sequence[Result]) -> Iterator[dict[str, Any]]:
    for group in texts.groups(results):
        if group.family in _SCALE:
            yield summarise(group.family, group.dataset, group.every)


def replication_tables(results: Sequence[Result]) -> Iterator[Table]:
    for summary in replications(results):
        yield from summary_tables(summary)


def paper_cell(depth: int, model: str, metric: str) -> str:
    printed = NLL.get(depth, {}).get(model, {}).get(metric)
    return "{:.3f} ± {:.3f}".format(*printed) if printed else "–"


def beside_paper(scores: Scored, depth: int, expected: int = len(SEED_PAIRS)) -> list[list[str]]:
    """A row per model: our mean and the paper's, metric by metric."""
    rows = []
    for model, found in scores.items():
        cells = ((spread(v, expected), paper_cell(depth, model, m)) for m, v in found.items())
        rows.append([texts.label_of(model), *(cell for pair in cells for cell in pair)])
    return rows


def summary_tables(summary: dict[str, Any]) -> list[Table]:
    metrics, name = summary["metrics"], f"{summary['profile']} replication"
    what, root = f"{METRICS[metrics[0]]}, {name}", f"Data root {shown_root(summary)}"
    heads = [h for m in metrics for h in (f"{METRICS[m]} ({name})", f"{METRICS[m]} (paper, 44M)")]
    scores = Table(
        title=f"Validation NLL, {what}",
        columns=["Model", *heads],
        rows=beside_paper(summary["scores"], 4),
        note=f"{_SCALE.get(summary['profile'], '')} {root}",
    )
    claims = tabled(
        f"The paper's orderings, {what}",
        summary["claims"],
        {
            "Claim": lambda claim: f"{LABELS[claim['lower']]} < {LABELS[claim['higher']]}",
            "Verdict": lambda claim: claim["verdict"],
            "Difference": lambda claim: or_dash(claim["mean"], "+.3f"),
            "Paper": lambda claim: f"{claim['paper']:+.3f}",
            "95% interval, paired t": lambda claim: texts.ends(claim["interval"]),
            "95% interval, two-way layout": lambda claim: texts.ends(claim["two_way"]),
            "Per seed": lambda claim: texts.signed(claim["differences"]),
        },
        "NLL of the second model minus the first on equal seeds and rows; positive agrees "
        "with the paper. A verdict needs both intervals: from the pair's own differences, and from "
        f"the residual of all models and seeds. {root}",
    )
    return [scores, claims] if summary["claims"] else [scores]


def own_tables(results: Sequence[Result]) -> Iterator[Table]:
    for group in texts.groups(results):
        if group.family == OWN:
            nlls = {metric: texts.metric_title(metric) for metric in group.metrics}
            yield Table(
                title=group.title("Validation NLL"),
                columns=["Recipe", *nlls.values(), *_COSTS],
                rows=[
                    [name, *(spread(values(r, m), group.expected) for m in nlls), *_costs(r)]
                    for name, r in group.by_model.items()
                ],
                note=group.note("Mean ± sample standard deviation over the runs of one recipe."),
            )


def _costs(runs: Sequence[Result]) -> list[str]:
    first, macs = runs[0], texts.run_macs(runs[0])
    return [
        f"{first['model']['nonembedding_params']:,}",
        f"{first['step']:,}",
        "–" if macs is None else config.printed(macs * first["recipe"]["batch"] * first["step"]),
        or_dash(texts.seconds_of(runs), ",.0f"),
    ]


def choose(results: Sequence[Result], names: Sequence[str]) -> list[Result]:
    """The results of runs or of all runs of recipes, in the order of the names."""
    chosen: dict[str, Result] = {}
    for name in names:
        found = [result for result in results if name in (result["run"], result["recipe"]["name"])]
        if not found:
            why = f"no result of a run or recipe {name!r}"
            fix = f"tangobench eval {name}, or look for its name in the folder of results"
            raise UsageError(why, kind="result-missing", fix=fix)
        chosen |= {result["run"]: result for result in found}
    return list(chosen.values())


def compared(chosen: Sequence[Result]) -> Table:
    roots = texts.require_one_root(chosen)
    metrics = [m for m in chosen[0]["scores"] if all(m in r["scores"] for r in chosen)]
    if len(roots) > 1 or not metrics:
        why = f"runs on {' and '.join(roots)} have no score in common"
        raise UsageError(why, kind="dataset-unfit", fix="compare runs of one dataset")
    metric = "lean_joint" if "lean_joint" in metrics else metrics[0]
    recipes = texts.by_recipe(chosen)
    scores = {name: texts.by_seeds(runs, metric) for name, runs in recipes.items()}
    first, expected = next(iter(recipes)), max(map(len, recipes.values()))
    rows = []
    for name, same in recipes.items():
        found = judged(minus(name, first), scores, None) if name != first else {"per_seed": []}
        differences = texts.signed(found["per_seed"])
        # One difference has no interval.
        middle = texts.estimate(found["paired"]) if len(found["per_seed"]) > 1 else differences
        nll = spread(values(same, metric), expected)
        rows.append([name, nll, middle, differences, *_costs(same)])
    return Table(
        title=f"{texts.metric_title(metric)}: {units(len(chosen), 'run')}",
        columns=["Recipe", "NLL", f"Minus {first}", "Per seed pair", *_COSTS],
        rows=rows,
        note="Validation NLL in nats, mean ± sample standard deviation over seed pairs; "
        "differences on equal seed pairs with their 95% interval (Student's t). MACs are forward "
        f"ones by the paper's formulas. Data root {next(iter(roots.values()))}",
    )
