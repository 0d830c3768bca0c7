"""Ablations: TANGO and WANGO with one part changed, against the whole models of the same seeds.

- The comparison is paired: an ablated run saw the rows of the whole one in the same order. The
  interval is Student's, over seeds; a run without its partner has a score but no difference.
- Only runs on one root are compared with each other.
- The paper has no such table: everything here is ours, at the size of its recipes.

Usage: `ablate("sample", "dm_math", Path("out"), workers=2)["ablations"]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tangobench.catalogue import METRICS, metrics_of
from tangobench.eval.comparison.tables import spread
from tangobench.eval.intervals import paired_t
from tangobench.eval.published import LABELS
from tangobench.eval.render import Table
from tangobench.model.training.recipes import RECIPES, Family, Recipe, runs
from tangobench.pipeline.core.lock import shown_root
from tangobench.pipeline.core.progress import Reporter

Result = dict[str, Any]


def ablate(
    profile: Family,
    dataset: str,
    out: Path,
    *,
    workers: int = 2,
    source: str | None = None,
    extras: tuple[str, ...] = (),
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Train and score all ablations and the whole models they belong to; run again to resume."""
    from tangobench.eval.comparison.replicate import finish, require_runs  # with torch

    chosen = [run for run in runs("ablation", dataset) if run.recipe.profile == profile]
    require_runs(chosen, profile, dataset, "ablations", "ablation")
    whole = {run.recipe.unablated for run in chosen}
    partners = [run for run in runs(profile, dataset) if run.recipe.name in whole]
    reporter = reporter or Reporter(quiet=True)
    results = finish([*partners, *chosen], out, workers, source, extras, reporter)
    return {
        "profile": profile,
        "dataset": dataset,
        "root": results[0]["data"]["root"],
        "runs": sorted(result["run"] for result in results),
        "ablations": differences(results),
    }


def differences(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Every ablation among some results with its paired differences, in the recipes' order."""
    whole = {_key(r, r["recipe"]["name"]): r for r in results if r["family"] != "ablation"}
    found: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if result["family"] == "ablation":
            key = (result["data"]["root"], result["recipe"]["name"])
            found.setdefault(key, []).append(result)
    order = list(RECIPES)
    ranked = sorted(found, key=lambda key: (key[0], order.index(key[1])))
    return [_compared(found[key], whole) for key in ranked]


def _key(result: Result, recipe: str) -> tuple[str, str, int, int]:
    seeds = result["seeds"]
    return result["data"]["root"], recipe, seeds["initialisation"], seeds["data_order"]


def _compared(ablated: Sequence[Result], whole: dict[Any, Result]) -> dict[str, Any]:
    recipe = Recipe(**ablated[0]["recipe"])
    metric = metrics_of(recipe.dataset)[0]
    ordered = sorted(ablated, key=lambda result: _key(result, recipe.name))
    partners = [whole.get(_key(result, recipe.unablated)) for result in ordered]
    scores = [float(result["scores"][metric]["nll"]) for result in ordered]
    partner_scores = [float(p["scores"][metric]["nll"]) for p in partners if p is not None]
    paired = [score for score, p in zip(scores, partners, strict=True) if p is not None]
    per_seed = [a - b for a, b in zip(paired, partner_scores, strict=True)]
    mean, low, high = paired_t(per_seed) or (None, None, None)
    return {
        "recipe": recipe.name,
        "label": label(recipe),
        "profile": recipe.profile,
        "metric": metric,
        "root": ablated[0]["data"]["root"],
        "content_root": ablated[0]["data"].get("content_root"),
        "nonembedding_params": recipe.model_config().nonembedding_params,
        "scores": scores,
        "unablated": partner_scores,
        "differences": per_seed,
        "mean": mean,
        "interval": None if mean is None else [low, high],
    }


def label(recipe: Recipe) -> str:
    """What an ablation changes, in words."""
    whole, name = RECIPES[recipe.unablated], LABELS[recipe.arch]
    if not recipe.null_gate:
        return f"{name} without the null gate"
    if not recipe.temperature:
        return f"{name} without the temperature"
    if recipe.window != whole.window:
        return f"{name}, window {recipe.window} instead of {whole.window}"
    return f"{name}, heads {recipe.heads} instead of {whole.heads}"


def ablation_tables(found: Sequence[dict[str, Any]]) -> Iterator[Table]:
    """One table per profile, metric and root."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for item in found:
        groups.setdefault((item["profile"], item["metric"], item["root"]), []).append(item)
    for (profile, metric, _), items in groups.items():
        trial = (
            " A toy trained for seconds: it says nothing about the models."
            if profile == "sample"
            else ""
        )
        yield Table(
            title=f"Ablations: {METRICS[metric]}, {profile} runs",
            columns=[
                *("Changed", "Nonembedding parameters", "NLL", "NLL of the whole model"),
                *("Difference", "95% interval", "Per seed"),
            ],
            rows=[_row(item) for item in items],
            note="Ours; the paper has none. NLL of the changed model minus the whole one on equal "
            "seeds and rows: positive if the change hurts. Student's t over seeds. "
            f"Data root {shown_root(items[0])}{trial}",
        )


def _row(item: dict[str, Any]) -> list[str]:
    interval = item["interval"]
    return [
        item["label"],
        f"{item['nonembedding_params']:,}",
        spread(item["scores"]),
        spread(item["unablated"]),
        "–" if item["mean"] is None else f"{item['mean']:+.3f}",
        "–" if interval is None else f"{interval[0]:+.3f} … {interval[1]:+.3f}",
        ", ".join(f"{difference:+.3f}" for difference in item["differences"]) or "–",
    ]
