"""What a machine does with this code, as one JSON to send back: kernels, steps, speed, a root.

- The kernel's self-check against the reference, and which kernel `auto` chose.
- Some steps of a recipe: first and last loss, planned and measured seconds of a step.
- The root of a dataset that is built (or found) here, beside the committed one.
- Names the device, versions and commit; no host name and no path.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, Final

import torch

from tangobench.model.kernels import select
from tangobench.model.training.metrics import read_metrics
from tangobench.model.training.plan import chip, chip_name, plan
from tangobench.model.training.recipes import Run
from tangobench.model.training.runs import provenance
from tangobench.model.training.train import Options, dataset_of, train
from tangobench.pipeline import api
from tangobench.pipeline.core.lock import committed_lock
from tangobench.pipeline.core.progress import Reporter

FORMAT: Final = "tangobench-attest/1"
_WARM_UP: Final = 5  # steps whose time does not count


def attest(run: Run, out: Path, *, device: str, steps: int, reporter: Reporter) -> dict[str, Any]:
    """Build what is missing, take the steps and describe it all."""
    recipe = run.recipe
    if not (out / recipe.folder).is_dir():
        api.build(recipe.dataset, recipe.profile, out=str(out), reporter=reporter)
    root, committed = dataset_of(run, out).lock.root, committed_lock(recipe.dataset, recipe.profile)
    kernel = select.chosen(torch.empty(0, device=device))
    place = out / "attest"
    options = Options(
        out=place, device=device, stop_at=steps, validate_every=0, data=str(out / recipe.folder)
    )
    rows = read_metrics(train(run, options, reporter) / "metrics.jsonl")[:steps]
    seconds = [row["seconds"] for row in rows[_WARM_UP:] or rows]
    planned = plan(recipe, chip(chip_name(device)))
    return {
        "format": FORMAT,
        "machine": provenance(device),
        "kernel": {"chosen": kernel, "refused": None if device == "cpu" else _refused(device)},
        "training": {
            "run": run.name,
            "steps": len(rows),
            "first_loss": rows[0]["loss"],
            "last_loss": rows[-1]["loss"],
            "step_seconds": statistics.median(seconds),
            "planned_step_seconds": planned["step_seconds"],
            "planned_for": planned["device"],
        },
        "data": {
            "dataset": recipe.folder,
            "root": root,
            "as_committed": committed is not None and committed.root == root,
        },
    }


def _refused(device: str) -> str | None:
    """Why the Triton kernels are not used on a device; None if they agree with the reference."""
    try:
        from tangobench.model.kernels.triton.check import disagreement
    except ImportError:
        return "triton is not installed"
    return disagreement(device)
