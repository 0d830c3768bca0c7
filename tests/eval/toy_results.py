"""Result files in the real format with invented scores: three seeds of six architectures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tangobench.eval.scoring.result_files import FORMAT, write_result
from tangobench.eval.scoring.tally import MatchReport
from tangobench.model.config import ARCHS
from tangobench.model.training.recipes import Run, runs
from tangobench.pipeline.core.lock import read_lock


def make_results(out: Path, dataset: str = "dm_math") -> None:
    """Write OUT/results for the sample family of a dataset."""
    lock = read_lock(out / f"{dataset}-sample")
    names = lock.notes["combinations"]
    made = [_result(run, lock.root, names) for run in runs("sample", dataset)]
    changed = [run for run in runs("ablation", dataset) if run.recipe.profile == "sample"]
    for result in [
        *made,
        *(_result(run, lock.root, names) for run in changed),
    ]:
        write_result(out / "results" / f"{result['run']}.json", result)


def _result(run: Run, root: str, names: list[str]) -> dict[str, Any]:
    base = 2.0 + 0.1 * ARCHS.index(run.recipe.arch) + run.init_seed / 1000
    base += 0.01 * len(run.recipe.name.split("-")[3:])  # an ablation does worse
    config = run.recipe.model_config()
    modules = {
        module: {"nll": base + place / 7, "sum": base, "count": 1}
        for place, module in enumerate(dict.fromkeys(name.split("/")[0] for name in names))
    }
    positions = {
        name: {"nll": base - place / 9, "sum": base, "count": 1}
        for place, name in enumerate(("0", "1", "2", "16-31"))
    }
    return {
        "format": FORMAT,
        "run": run.name,
        "run_sha256": run.sha256,
        "family": run.recipe.family,
        "dataset": run.recipe.dataset,
        "arch": run.recipe.arch,
        "depth": run.recipe.depth,
        "seeds": {"initialisation": run.init_seed, "data_order": run.order_seed},
        "recipe": run.recipe.as_json(),
        "data": {"name": run.recipe.dataset, "profile": run.recipe.profile, "root": root},
        "model": {
            "width": config.width,
            "nonembedding_params": config.nonembedding_params,
            "total_params": config.nonembedding_params + config.vocabulary * config.d_model,
        },
        "step": run.recipe.steps,
        "checkpoint_sha256": "c" * 64,
        "trained_with": {"code_sha256": "d" * 64},
        "scored_with": {"code_sha256": "d" * 64},
        "training": {"seconds": 1.0, "tokens": 10, "tokens_per_second": 10.0},
        "curve": {"default": [[step, base + 3 / step] for step in range(1, 60, 3)]},
        "scores": {run.recipe.dataset: {"nll": base, "sum": base * 10, "count": 10}},
        "breakdowns": {run.recipe.dataset: {"module": modules, "position": positions}},
        "exact_match": _exact_match(run, names),
        "probes": {run.recipe.dataset: {"novelty": _novelty(base)}},
    }


def _exact_match(run: Run, names: list[str]) -> dict[str, Any]:
    report = MatchReport(names)
    for index in range(len(names)):
        report.tried[index] = 20
        report.correct[index] = (run.init_seed + index) % 20
    return report.as_json()


def _novelty(base: float) -> dict[str, Any]:
    groups = {
        "other numbers": {"rows": 4, "nll": base - 0.5, "sum": 4 * base - 2, "count": 4},
        "new form": {"rows": 0, "nll": None, "sum": 0.0, "count": 0},
    }
    return {"definition": "Invented.", "groups": groups}
