"""Runs that a comparison lacks, trained and scored: replications, ablations, studies.

- Every run is trained and scored by itself and can be resumed; what is finished is kept, if it was
  made by this recipe on this dataset. A study also counts the runs that come with the package.
- `attest` says what a machine does with this code: kernels, some steps beside their plan, a root.
  It names the device, versions and commit; no host name and no path.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import statistics
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from tangobench.catalogue import CATALOGUE
from tangobench.errors import UsageError
from tangobench.eval.comparison.studies import Result, Study, ablations, core_seconds
from tangobench.eval.comparison.tables import summarise
from tangobench.eval.scoring.result_files import read_result, read_results, shipped_results
from tangobench.eval.scoring.results import evaluate, require_questions
from tangobench.model.kernels import crossgate
from tangobench.model.training.plan import chip, chip_name, plan
from tangobench.model.training.recipes import RECIPES, Family, Run, runs
from tangobench.model.training.runs import provenance, read_metrics, run_folder
from tangobench.model.training.train import Options, dataset_of, train
from tangobench.pipeline import api
from tangobench.pipeline.core.files import read_untrusted
from tangobench.pipeline.core.lock import Lock, committed_lock
from tangobench.pipeline.core.pool import make_runner
from tangobench.pipeline.core.progress import Reporter

_WATCH_SECONDS: Final = 2.0
_ATTEST: Final = "tangobench-attest/1"
_WARM_UP: Final = 5  # steps whose time does not count


@dataclass(frozen=True, kw_only=True, slots=True)
class How:
    """How runs are made: where, by how many workers, from which input if data must be built."""

    out: Path
    workers: int = 2
    source: str | None = None
    extras: tuple[str, ...] = ()
    """What results must hold beyond the scores: `exact_match`, `probes`."""
    reporter: Reporter = field(default_factory=lambda: Reporter(quiet=True))


def replicate(profile: Family, dataset: str, out: Path, **how: Any) -> dict[str, Any]:
    chosen = runs(profile, dataset)
    _require_runs(chosen, profile, dataset, "replication", profile)
    return summarise(profile, dataset, finish(chosen, How(out=out, **how)))


def ablate(profile: Family, dataset: str, out: Path, **how: Any) -> list[Result]:
    chosen = [run for run in ablations(profile).runs if run.recipe.dataset == dataset]
    _require_runs(chosen, profile, dataset, "ablations", "ablation")
    return finish(chosen, How(out=out, **how))


def run_study(study: Study, out: Path, **how: Any) -> list[Result]:
    """Train and score what is missing of a study; gives all results, those of the package too."""
    made = How(out=out, **how)
    lock = _provided(study.runs[0], made)
    known = {
        result["run_sha256"]
        for result in read_results([shipped_results()])
        if result["data"]["root"] == lock.root and set(made.extras) <= set(result)
    }
    if todo := [run for run in study.runs if run.sha256 not in known]:
        finish(todo, made)
    return read_results([out / "results", shipped_results()])


def _require_runs(
    chosen: Sequence[Run], profile: str, dataset: str, what: str, family: str
) -> None:
    if not chosen:
        fits = [r for r in RECIPES.values() if (r.family, r.profile) == (family, profile)]
        known = sorted({recipe.dataset for recipe in fits})
        raise UsageError(
            f"there is no {profile} {what} on {dataset}",
            kind="no-such-recipe",
            fix=f"choose one of {', '.join(known)}" if known else "use --profile sample or mini",
        )


def finish(chosen: Sequence[Run], how: How) -> list[Result]:
    """The results of some runs on one dataset; what is missing of data, runs and scores is made."""
    lock = _provided(chosen[0], how)
    if "exact_match" in how.extras:
        require_questions(dataset_of(chosen[0], how.out))
    wanted = {"scores", *how.extras}
    todo = [run for run in chosen if not wanted <= measured(run, how.out, lock)]
    todo.sort(key=lambda run: core_seconds(run.recipe), reverse=True)
    if kept := len(chosen) - len(todo):
        how.reporter.say(f"{kept} of {len(chosen)} runs are finished already")
    if todo:
        _train_all(todo, how)
    return [read_result(result_path(run, how.out)) for run in chosen]


def _provided(run: Run, how: How) -> Lock:
    """The lock of a run's dataset, which is built if there is no folder of its name."""
    out, name = how.out, run.recipe.dataset
    if not (out / run.recipe.folder).is_dir():
        if name not in CATALOGUE:
            raise UsageError(
                f"{out / run.recipe.folder} is not there",
                kind="dataset-missing",
                fix=f"make its input as manifests/{name}.toml says, then: tangobench build "
                f"manifests/{name}.toml --profile {run.recipe.profile} --out {out}",
            )
        options: Any = {"source": how.source, "workers": how.workers, "reporter": how.reporter}
        api.build(name, run.recipe.profile, out=str(out), **options)
    return dataset_of(run, out).lock


def result_path(run: Run, out: Path) -> Path:
    return out / "results" / f"{run.name}.json"


def measured(run: Run, out: Path, lock: Lock) -> set[str]:
    """What a run's result holds; nothing if there is none of this recipe on this dataset."""
    path = result_path(run, out)
    if not path.exists():
        return set()
    found = read_result(path)
    data = found["data"]
    same = (data["root"], data.get("content_root")) == (lock.root, lock.content_root)
    return set(found) if same and found["run_sha256"] == run.sha256 else set()


def _train_all(todo: Sequence[Run], how: How) -> None:
    stop = threading.Event()
    watcher = threading.Thread(target=_watch, args=(todo, how, stop), daemon=True)
    watcher.start()
    work = functools.partial(train_and_score, out=how.out.absolute(), extras=how.extras)
    try:
        with contextlib.closing(make_runner(how.workers)) as runner:
            collections.deque(runner.map(work, todo, [run.name for run in todo]), maxlen=0)
    finally:
        stop.set()
        watcher.join()
    how.reporter.finish()


def train_and_score(run: Run, out: Path, extras: Sequence[str]) -> None:
    """One run from wherever it is to its result; runs in a worker process."""
    # One thread per run: two runs side by side are faster than one on two cores, and the bits of a
    # run then do not depend on the number of workers.
    torch.set_num_threads(1)
    folder = train(run, Options(out=out))
    evaluate(folder, match_answers="exact_match" in extras, probe="probes" in extras)


def _watch(todo: Sequence[Run], how: How, stop: threading.Event) -> None:
    """Show the steps that the worker processes have taken, from their metrics files."""
    weights = {run: core_seconds(run.recipe) for run in todo}
    steps = sum(run.recipe.steps for run in todo)
    how.reporter.start("replicate", steps, sum(weights.values()), noun="step")
    seen = dict.fromkeys(todo, 0)
    first, last = True, False
    while not last:
        last = not first and stop.wait(_WATCH_SECONDS)
        for run, weight in weights.items():
            path = run_folder(how.out, run) / "metrics.jsonl"
            lines = read_untrusted(path).count(b"\n") if path.is_file() else 0
            for number in range(seen[run], lines):
                label = f"{run.name} step {number + 1:,}"
                how.reporter.advance(weight / run.recipe.steps, reused=first, label=label)
            seen[run] = max(seen[run], lines)
        first = False


def attest(run: Run, out: Path, *, device: str, steps: int, reporter: Reporter) -> dict[str, Any]:
    recipe, root = run.recipe, _provided(run, How(out=out, reporter=reporter)).root
    committed = committed_lock(recipe.dataset, recipe.profile)
    kernel = crossgate.chosen(torch.empty(0, device=device))
    refused = None if device == "cpu" else crossgate.refusal(device)
    place, data = out / "attest", str(out / recipe.folder)
    options = Options(out=place, device=device, stop_at=steps, validate_every=0, data=data)
    rows = read_metrics(train(run, options, reporter) / "metrics.jsonl")[:steps]
    seconds = [row["seconds"] for row in rows[_WARM_UP:] or rows]
    planned = plan(recipe, chip(chip_name(device)))
    return {
        "format": _ATTEST,
        "machine": provenance(device),
        "kernel": {"chosen": kernel, "refused": refused},
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
