"""The paper's five tables, our figures beside the paper's.

- "ours" is the mean ± sample standard deviation over the runs found, each at its final checkpoint;
  fewer than three runs are counted, none is "missing". Nothing is selected. A run whose recipe or
  dataset is not the published one is named and not counted.
- Runs on different roots never share a mean: a table names the roots it is about, or refuses.
- Parameters and operations are computed from the models, not copied.

Usage: `render(list(paper_tables(read_results([Path("out/results")]))), "csv")`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tangobench.catalogue import CATALOGUE, METRICS, ONE_DISTRIBUTION, metrics_of
from tangobench.errors import MismatchError
from tangobench.eval import published
from tangobench.eval.intervals import wilson
from tangobench.eval.published import LABELS
from tangobench.eval.render import Table
from tangobench.model import config, macs
from tangobench.model.config import ARCHS
from tangobench.model.training.recipes import SEED_PAIRS, runs
from tangobench.pipeline.core.lock import shown_root

Result = dict[str, Any]

MISSING: Final = "missing"
_NLL_NOTE: Final = (
    "Validation NLL, mean ± sample standard deviation over seeds, final checkpoint only; lower is "
    "better. Columns marked (paper) are the paper's figures; a cell of ours is "
    "missing until a run of the published size is trained and scored."
)
ONE_LEVEL: Final = "* The module's three levels are one distribution."
_SHARING: Final = {True: "1 block reused 4 times", False: "4 independent blocks"}


def paper_tables(results: Sequence[Result]) -> Iterator[Table]:
    """Parameters, main results, Lean, eight blocks, compute."""
    yield parameters()
    main = [data.metric for data in CATALOGUE.values() if data.metric in published.NLL[4]["tango"]]
    yield nll_table("Four block applications", results, 4, main)
    yield nll_table("Lean", results, 4, metrics_of("lean"))
    yield nll_table(
        "Eight block applications",
        results,
        8,
        ["fineweb", *metrics_of("lean")],
    )
    yield compute()


def parameters() -> Table:
    """Widths and nonembedding parameters at four block applications."""
    rows = []
    for (arch, dataset), (width, count) in published.PARAMETERS.items():
        model = config.published(arch, dataset)  # type: ignore[arg-type]
        name = LABELS[arch] + (f" ({CATALOGUE[dataset].label})" if arch == "gau" else "")
        rows.append(
            [
                name,
                _SHARING[bool(model.shared)],
                f"{model.width:,}",
                f"{width:,}",
                f"{model.nonembedding_params:,}",
                f"{count:,}",
            ]
        )
    return Table(
        title="Parameter matching",
        columns=[
            "Architecture",
            "Block sharing",
            "F or E",
            "F or E (paper)",
            "Nonembedding parameters",
            "Nonembedding parameters (paper)",
        ],
        rows=rows,
    )


def compute() -> Table:
    """Parameters, operations and scaling on one FineWeb-Edu sequence."""
    rows = []
    for arch in ARCHS:
        model = config.published(arch, "fineweb")
        count = published.PARAMETERS[arch, "fineweb"][1]
        rows.append(
            [
                LABELS[arch],
                f"{model.nonembedding_params / 1e6:.3f}M",
                f"{count / 1e6:.3f}M",
                macs.printed(sum(macs.formula(model, model.context).values())),
                published.MACS[arch],
                published.SCALING[arch],
            ]
        )
    return Table(
        title="Computation, one sequence of 8,192 tokens",
        columns=[
            "Model",
            "Nonembedding parameters",
            "Nonembedding parameters (paper)",
            "MACs",
            "MACs (paper)",
            "Scaling with sequence length",
        ],
        rows=rows,
        note="One MAC is one multiply–accumulate operation of a forward pass.",
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
    rows = []
    for arch in ARCHS:
        cells = [LABELS[arch]]
        for metric in metrics:
            cells.append(spread(scores(ours, arch, metric)))
            mean, deviation = published.NLL[depth][arch].get(metric, (None, None))
            cells.append(MISSING if mean is None else f"{mean:.3f} ± {deviation:.3f}")
        rows.append(cells)
    heads = [head for m in metrics for head in (METRICS[m], f"{METRICS[m]} (paper)")]
    notes = [_NLL_NOTE, *(f"Data root of {name}: {root}" for name, root in roots.items())]
    if strays := [result["run"] for result in asked if result not in ours]:
        notes.append(f"Not counted, recipe or dataset is not the paper's: {', '.join(strays)}.")
    return Table(title=title, columns=["Model", *heads], rows=rows, note=" ".join(notes))


def scores(results: Sequence[Result], arch: str, metric: str) -> list[float]:
    """The metric of every run of an architecture, in the order of seeds."""
    chosen = [r for r in results if r["arch"] == arch and metric in r["scores"]]
    chosen.sort(key=lambda r: (r["seeds"]["initialisation"], r["seeds"]["data_order"]))
    return [float(result["scores"][metric]["nll"]) for result in chosen]


def spread(values: Sequence[float], expected: int = len(SEED_PAIRS)) -> str:
    """Mean ± sample standard deviation; says so if there are other than the expected runs."""
    if not values:
        return MISSING
    mean = statistics.fmean(values)
    if len(values) == 1:
        return f"{mean:.3f}{_how_many(1, expected)}"
    return f"{mean:.3f} ± {statistics.stdev(values):.3f}{_how_many(len(values), expected)}"


def share_text(
    found: Sequence[dict[str, Any]], digits: int = 1, expected: int = len(SEED_PAIRS)
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


def marked(module: str) -> str:
    """A module's name; a star marks those whose three levels are one distribution."""
    return module + ("*" if module in ONE_DISTRIBUTION else "")


def _how_many(count: int, expected: int) -> str:
    few = f"{count} of {expected}" if count < expected else f"{count}"
    return "" if count == expected else f" ({few} runs)"


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
