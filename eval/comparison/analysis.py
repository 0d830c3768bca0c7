"""What runs of studies say: differences with verdicts, and the tables of a study.

- Noise is judged by a two-way layout over seed pairs; the paired t of the same contrast is shown
  beside it, and a verdict needs both. Tukey's intervals cover all pairs of arms.
- Runs that come with the package count if recipe, seeds and root are equal.
- A table says how many of the planned runs it rests on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tangobench.eval.comparison import runs as texts
from tangobench.eval.comparison.runs import by_seeds, estimate, metric_title, or_dash, seeds_of
from tangobench.eval.comparison.studies import EVERY, Arm, Pair, Result, Study, Weights
from tangobench.eval.intervals import Layout, paired_t, two_way
from tangobench.eval.published import LABELS
from tangobench.eval.render import Table, tabled
from tangobench.model.config import ARCHS
from tangobench.pipeline.core.lock import shown_root
from tangobench.pipeline.core.progress import units

Scores = Mapping[str, Mapping[Pair, float]]
"""NLL by arm and seed pair."""

_VERDICTS: Final = {1: "above zero", -1: "below zero", 0: "undecided", None: "not enough runs"}
_TOY: Final = " A toy trained for seconds: it says nothing about the models."


def by_arch(results: Sequence[Result], metric: str) -> Scores:
    return {arch: by_seeds((r for r in results if r["arch"] == arch), metric) for arch in ARCHS}


def results_of(study: Study, results: Sequence[Result]) -> dict[str, list[Result]]:
    """The study's results by arm; runs on two roots are never put together."""
    wanted = {run.sha256: arm.name for arm in study.arms for run in arm.runs}
    chosen = [result for result in results if result["run_sha256"] in wanted]
    roots = [result["data"]["root"] for result in chosen]
    root = max(sorted(set(roots)), key=roots.count, default="")
    found: dict[str, list[Result]] = {arm.name: [] for arm in study.arms}
    for result in sorted(chosen, key=seeds_of):
        if result["data"]["root"] == root:
            found[wanted[result["run_sha256"]]].append(result)
    return found


def scores_of(study: Study, results: Sequence[Result]) -> dict[str, dict[Pair, float]]:
    by_arm = results_of(study, results)
    return {name: by_seeds(found, study.metric) for name, found in by_arm.items()}


def studies_in(results: Sequence[Result]) -> Iterator[Study]:
    """Every study of which a run of its own is among some results."""
    for make in EVERY:
        for profile in ("mini", "sample"):
            if (study := make(profile)).has_run(results):
                yield study


def analyse(study: Study, results: Sequence[Result]) -> dict[str, Any]:
    """Scores by arm, the stated contrasts with intervals and verdicts, and all pairs."""
    by_arm, scores = results_of(study, results), scores_of(study, results)
    layout = two_way(scores)
    known = [result for found in by_arm.values() for result in found]
    data = known[0]["data"] if known else {}
    return {
        "study": study.name,
        "question": study.question,
        "metric": study.metric,
        "root": data.get("root"),
        "content_root": data.get("content_root"),
        "runs": len(known),
        "planned": len(study.runs),
        "codes": len({result["trained_with"]["code_sha256"] for result in known}),
        "residual": layout and layout.residual,
        "freedom": layout and layout.freedom,
        "arms": [_arm(arm, by_arm[arm.name], study.metric) for arm in study.arms],
        "contrasts": [
            {"contrast": name, **judged(weights, scores, layout)}
            for name, weights in study.contrasts.items()
        ],
        "pairs": [
            {"first": first, "second": second, "interval": list(interval)}
            for first, second, interval in (layout.all_pairs() if layout else ())
        ],
    }


def _arm(arm: Arm, found: Sequence[Result], metric: str) -> dict[str, Any]:
    config = arm.recipe.model_config()
    bits = [run["scores"][metric].get("bits_per_byte") for run in found]
    return {
        "arm": arm.name,
        "model": arm.model,
        "budget": arm.budget,
        "planned": len(arm.pairs),
        "scores": list(by_seeds(found, metric).values()),
        "bits_per_byte": [value for value in bits if value is not None],
        "nonembedding_params": config.nonembedding_params,
        "deviation": config.deviation,
        "step_macs": arm.recipe.step_macs,
        "steps": arm.recipe.steps,
        "seconds": texts.seconds_of(found),
    }


def judged(weights: Weights, scores: Scores, layout: Layout | None) -> dict[str, Any]:
    """A contrast on the seed pairs that all its arms have, with both intervals and a verdict."""
    arms = [scores[arm] for arm in weights]
    pairs = sorted(set(arms[0]).intersection(*arms[1:]))
    per_seed = [sum(w * scores[a][pair] for a, w in weights.items()) for pair in pairs]
    paired, pooled = paired_t(per_seed), None
    if layout is not None and all(arm in layout.arms for arm in weights):
        pooled = layout.contrast(weights)
    return {
        "per_seed": per_seed,
        "two_way": pooled and list(pooled),
        "paired": paired and list(paired),
        "verdict": _VERDICTS[side(pooled, paired)],
    }


def side(pooled: Sequence[float] | None, paired: Sequence[float] | None) -> int | None:
    """On which side of zero both intervals are: the stricter wins; 0 if one of them holds it."""
    if pooled is None or paired is None:
        return None
    return int(pooled[1] > 0 and paired[1] > 0) - int(pooled[2] < 0 and paired[2] < 0)


def study_tables(study: Study, results: Sequence[Result], *, brief: bool = False) -> list[Table]:
    """All tables of a study; in brief, without what has no runs, all pairs and single scores."""
    found = analyse(study, results)
    codes = "" if found["codes"] < 2 else f" {found['codes']} versions of the code trained them."
    root = "" if found["root"] is None else f" Data root {shown_root(found)}"
    toy = _TOY if study.profile == "sample" else ""
    note = f"{found['runs']} of {units(found['planned'], 'planned run')}.{codes}{root}{toy}"
    if brief:
        found["arms"] = [arm for arm in found["arms"] if arm["scores"]]
        found["contrasts"] = [one for one in found["contrasts"] if one["two_way"]]
        found["question"] = ""
    tables = [(_grid if brief and study.arms[0].model else _arms)(study, found, note)]
    if found["contrasts"]:
        title = f"Study {study.name}: comparisons stated before the runs"
        noise = f"NLL in nats. {_residual(found)}{'' if brief else note}"
        tables.append(difference_table(title, found["contrasts"], noise, seeds=not brief))
    if study.contrasts and (needed := multipliers(study, results)):
        tables.append(_multipliers(study, needed))
    if study.by_position and found["runs"]:
        tables.append(_positions(study, results, note))
    if found["pairs"] and len(found["arms"]) <= 8 and not brief:
        tables.append(_pairs(found, note))
    return tables


def _residual(found: Mapping[str, Any]) -> str:
    if found["residual"] is None:
        return ""
    freedom = units(found["freedom"], "degree")
    return f"Residual {found['residual']:.4f} with {freedom} of freedom. "


def _grid(study: Study, found: Mapping[str, Any], note: str) -> Table:
    """NLL of each model by what else varies; what the best of it gains over the common value."""
    cells: dict[str, dict[str, Any]] = {}
    for arm in found["arms"]:
        cells.setdefault(arm["model"], {})[arm["arm"].rpartition(" at ")[2]] = arm
    heads = list(dict.fromkeys(head for row in cells.values() for head in row))
    rows = []
    for model, row in cells.items():
        known = [texts.spread(a["scores"], a["planned"]) if a else "–" for a in map(row.get, heads)]
        if study.common in heads:
            means = {head: statistics.fmean(arm["scores"]) for head, arm in row.items()}
            gain = means[study.common] - min(means.values()) if study.common in means else None
            known.append(or_dash(gain, ".3f"))
        rows.append([model, *known])
    gains = [f"Best against {study.common}"] if study.common in heads else []
    return Table(
        title=f"Study {study.name}: {metric_title(study.metric)}, NLL",
        columns=["Model", *(f"at {head}" for head in heads), *gains],
        rows=rows,
        note=f"Mean ± sample standard deviation over seed pairs. {note}",
    )


def _arms(study: Study, found: Mapping[str, Any], note: str) -> Table:
    bits: dict[str, Callable[[Any], str]] = {
        "Bits per byte": lambda arm: texts.spread(arm["bits_per_byte"], arm["planned"])
    }
    return tabled(
        f"Study {study.name}: {metric_title(study.metric)}",
        found["arms"],
        {
            "Model": lambda arm: arm["arm"],
            "Nonembedding parameters": lambda arm: f"{arm['nonembedding_params']:,}",
            "Off the target": lambda arm: or_dash(arm["deviation"], "+.2%"),
            "Steps": lambda arm: f"{arm['steps']:,}",
            "MACs of training": lambda arm: f"{arm['steps'] * arm['step_macs'] / 1e12:.2f}T",
            "NLL": lambda arm: texts.spread(arm["scores"], arm["planned"]),
            **(bits if any(arm["bits_per_byte"] for arm in found["arms"]) else {}),
            "Seconds per run": lambda arm: or_dash(arm["seconds"], ",.0f"),
        },
        f"{found['question']} Mean ± sample standard deviation over seed pairs; forward MACs "
        f"by the paper's formulas. {note}".lstrip(),
    )


def difference_table(
    title: str,
    found: Iterable[Mapping[str, Any]],
    note: str,
    *,
    seeds: bool = True,
    digits: int = 3,
) -> Table:
    """Judged differences by name (`contrast`), with both intervals, verdict and single scores."""
    single = {"Per seed pair": lambda one: texts.signed(one["per_seed"], digits)}
    return tabled(
        title,
        found,
        {
            "Comparison": lambda one: one["contrast"],
            "Two-way layout": lambda one: estimate(one["two_way"], digits),
            "Paired t": lambda one: estimate(one["paired"], digits),
            "Verdict": explained,
            **(single if seeds else {}),
        },
        f"95% intervals; a verdict needs both on one side of zero. {note}".rstrip(),
    )


def explained(contrast: Mapping[str, Any]) -> str:
    """The verdict; where the intervals disagree, which of them includes zero."""
    pooled, paired = contrast["two_way"], contrast["paired"]
    if contrast["verdict"] != _VERDICTS[0] or (pooled[1] * pooled[2] > 0) == (
        paired[1] * paired[2] > 0
    ):
        return str(contrast["verdict"])
    wide = "the paired t" if pooled[1] * pooled[2] > 0 else "the two-way layout"
    return f"{contrast['verdict']}: {wide} includes zero"


def _pairs(found: Mapping[str, Any], note: str) -> Table:
    def verdict(pair: Any) -> str:
        _, low, high = pair["interval"]
        return "told apart" if low * high > 0 else "undecided"

    return tabled(
        f"Study {found['study']}: all pairs",
        found["pairs"],
        {
            "Models": lambda pair: f"{pair['second']} minus {pair['first']}",
            "Difference": lambda pair: estimate(pair["interval"]),
            "Verdict": verdict,
        },
        f"Tukey: the 95% holds for all pairs of the two-way layout together. {note}",
    )


def by_budget(study: Study, results: Sequence[Result]) -> dict[str, dict[float, dict[Pair, float]]]:
    """NLL by model, budget and seed pair, of what ran."""
    scores, found = scores_of(study, results), dict[str, dict[float, dict[Pair, float]]]()
    for arm in study.arms:
        if arm.model and scores[arm.name]:
            found.setdefault(arm.model, {})[arm.budget] = scores[arm.name]
    return found


def multipliers(study: Study, results: Sequence[Result]) -> dict[str, list[float]]:
    """By model and seed pair: operations for the NLL of TANGO's largest budget (at most 1) over it.

    A line through NLL against the logarithm of operations is fitted to each model and seed pair.
    """
    models, found = by_budget(study, results), dict[str, list[float]]()
    tango = models.get(LABELS["tango"], {})
    largest = max((budget for budget in tango if budget <= 1), default=0.0)
    for model, budgets in models.items():
        for pair, aim in tango.get(largest, {}).items():
            known = {budget: nlls[pair] for budget, nlls in budgets.items() if pair in nlls}
            if len(known) > 1:
                slope, start = np.polyfit(np.log2(list(known)), list(known.values()), 1)
                if slope < 0:
                    needed = 2 ** ((aim - start) / slope) / largest
                    found.setdefault(model, []).append(float(needed))
    return found


def _multipliers(study: Study, needed: Mapping[str, Sequence[float]]) -> Table:
    rows = []
    for model, values in needed.items():
        logs = [math.log(value) for value in values]
        middle, interval = math.exp(statistics.fmean(logs)), paired_t(logs)
        ends = [f"{math.exp(end):.2f}" for end in interval[1:]] if interval else ["–"]
        per_seed = ", ".join(f"{value:.2f}" for value in values)
        rows.append([model, f"{middle:.2f}", " … ".join(ends), per_seed])
    budgets = [arm.budget for arm in study.arms]
    return Table(
        title=f"Study {study.name}: operations for the NLL of TANGO at its largest budget",
        columns=["Model", "Times the operations", "95% interval", "Per seed pair"],
        rows=rows,
        note="A line through NLL against the logarithm of operations, per model and seed pair; "
        "geometric mean and Student's t on logarithms. Runs had "
        f"{min(budgets):g} to {max(budgets):g} times TANGO's operations; beyond that it is an "
        "extrapolation.",
    )


def _positions(study: Study, results: Sequence[Result], note: str) -> Table:
    """NLL by the place of the predicted token: what a model gains from more context."""
    by_arm: dict[str, list[dict[str, tuple[float, int]]]] = {}
    for name, found in results_of(study, results).items():
        for run in found:
            bins: dict[str, tuple[float, int]] = {}
            for place, tally in run["breakdowns"][study.metric]["position"].items():
                label = place.replace("-", "–") if "-" in place else "1–15"
                total, count = bins.get(label, (0.0, 0))
                bins[label] = (total + tally["sum"], count + tally["count"])
            by_arm.setdefault(name, []).append(bins)
    labels = sorted(next(iter(by_arm.values()))[0], key=lambda label: int(label.split("–")[0]))
    rows = []
    for name, seeds in by_arm.items():
        means = [statistics.fmean(s[b][0] / s[b][1] for s in seeds) for b in labels]
        far = means[-1] - means[labels.index("64–127")] if "64–127" in labels else None
        rows.append([name, *(f"{mean:.3f}" for mean in means), or_dash(far, "+.3f")])
    return Table(
        title=f"Study {study.name}: NLL by place in the row",
        columns=["Model", *labels, "Last minus 64–127"],
        rows=rows,
        note="Mean over seed pairs. A model that uses distant tokens has a lower NLL late in the "
        f"row than after a hundred tokens. {note}",
    )
