"""The comparison at a size that a laptop can train: six architectures, three seed pairs.

- Every run is trained and scored by itself and can be resumed; what is finished is kept, if it was
  made by this recipe on this dataset.
- Judging the paper's claims is `claims`; here are only the runs.

Usage: `replicate("sample", "dm_math", Path("out"), workers=2)`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tangobench.errors import UsageError
from tangobench.eval.comparison.claims import summarise
from tangobench.eval.comparison.studies import Study
from tangobench.eval.scoring.result_files import read_result, read_results, shipped_results
from tangobench.eval.scoring.results import evaluate, require_questions
from tangobench.model.training.recipes import RECIPES, Family, Run, runs
from tangobench.model.training.runs import run_folder
from tangobench.model.training.train import Options, dataset_of, train
from tangobench.pipeline import api
from tangobench.pipeline.core.files import read_untrusted
from tangobench.pipeline.core.lock import Lock
from tangobench.pipeline.core.pool import make_runner
from tangobench.pipeline.core.progress import Reporter

# Seconds of a step relative to the cheapest, for the ETA and to start long runs first.
_COST: Final = {"tango": 4.0, "wango": 4.0, "recurrent_transformer": 3.0}
_WATCH_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Task:
    """One run for a worker process."""

    run: Run
    out: Path
    extras: tuple[str, ...]
    """What the result must hold beyond the scores: `exact_match`, `probes`."""


def replicate(
    profile: Family,
    dataset: str,
    out: Path,
    *,
    workers: int = 2,
    source: str | None = None,
    extras: tuple[str, ...] = (),
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Build the data if it is not there, train and score all runs, and judge the claims."""
    chosen = runs(profile, dataset)
    require_runs(chosen, profile, dataset, "replication", profile)
    results = finish(chosen, out, workers, source, extras, reporter or Reporter(quiet=True))
    return summarise(profile, dataset, results)


def run_study(
    study: Study,
    out: Path,
    *,
    workers: int = 2,
    source: str | None = None,
    extras: tuple[str, ...] = (),
    reporter: Reporter | None = None,
) -> list[dict[str, Any]]:
    """Train and score what is missing of a study; gives all results, those of the package too."""
    reporter = reporter or Reporter(quiet=True)
    shipped = read_results([shipped_results()])
    first = study.runs[0]
    _provide_dataset(first, out, source, workers, reporter)
    root = dataset_of(first, out).lock.root
    known = {
        result["run_sha256"]
        for result in shipped
        if result["data"]["root"] == root and set(extras) <= set(result)
    }
    todo = [run for run in study.runs if run.sha256 not in known]
    if todo:
        finish(todo, out, workers, source, extras, reporter)
    return read_results([out / "results", shipped_results()])


def require_runs(chosen: Sequence[Run], profile: str, dataset: str, what: str, family: str) -> None:
    """Refuse a comparison that no recipe is for, naming those there are."""
    if not chosen:
        fits = [r for r in RECIPES.values() if (r.family, r.profile) == (family, profile)]
        known = sorted({recipe.dataset for recipe in fits})
        raise UsageError(
            f"there is no {profile} {what} on {dataset}",
            kind="no-such-recipe",
            fix=f"choose one of {', '.join(known)}" if known else "use --profile sample or mini",
        )


def finish(
    chosen: Sequence[Run],
    out: Path,
    workers: int,
    source: str | None,
    extras: tuple[str, ...],
    reporter: Reporter,
) -> list[dict[str, Any]]:
    """The results of some runs on one dataset; what is missing of data, runs and scores is made."""
    _provide_dataset(chosen[0], out, source, workers, reporter)
    if "exact_match" in extras:
        require_questions(dataset_of(chosen[0], out))
    _train_all(chosen, out, workers, extras, reporter)
    return [read_result(result_path(run, out)) for run in chosen]


def _provide_dataset(
    run: Run, out: Path, source: str | None, workers: int, reporter: Reporter
) -> None:
    if (out / run.recipe.folder).is_dir():
        dataset_of(run, out)  # a folder that is no whole dataset is an error, not a reason to build
        return
    api.build(
        run.recipe.dataset,
        run.recipe.profile,
        out=str(out),
        source=source,
        workers=workers,
        reporter=reporter,
    )


def result_path(run: Run, out: Path) -> Path:
    """Where a run's result is written."""
    return out / "results" / f"{run.name}.json"


def measured(run: Run, out: Path, lock: Lock) -> set[str]:
    """What a run's result holds; nothing if there is none of this recipe on this dataset."""
    path = result_path(run, out)
    found = read_result(path) if path.exists() else {}
    if not found:
        return set()
    data = found["data"]
    same = (data["root"], data.get("content_root")) == (lock.root, lock.content_root)
    return set(found) if same and found["run_sha256"] == run.sha256 else set()


def _train_all(
    chosen: Sequence[Run], out: Path, workers: int, extras: tuple[str, ...], reporter: Reporter
) -> None:
    lock = dataset_of(chosen[0], out).lock
    todo = [run for run in chosen if not {"scores", *extras} <= measured(run, out, lock)]
    todo.sort(key=_weight, reverse=True)
    if kept := len(chosen) - len(todo):
        reporter.say(f"{kept} of {len(chosen)} runs are finished already")
    if not todo:
        return
    stop = threading.Event()
    watcher = threading.Thread(target=_watch, args=(todo, out, reporter, stop), daemon=True)
    watcher.start()
    runner = make_runner(workers)
    try:
        tasks = [Task(run, out.absolute(), extras) for run in todo]
        for _ in runner.map(train_and_score, tasks, [run.name for run in todo]):
            pass
    finally:
        stop.set()
        watcher.join()
        runner.close()
    reporter.finish()


def _weight(run: Run) -> float:
    return run.recipe.steps * _COST.get(run.recipe.arch, 1.0)


def train_and_score(task: Task) -> str:
    """One run from wherever it is to its result; runs in a worker process."""
    import torch

    # One thread per run: two runs side by side are faster than one on two cores, and the bits of a
    # run then do not depend on the number of workers.
    torch.set_num_threads(1)
    folder = train(task.run, Options(out=task.out))
    match, probe = "exact_match" in task.extras, "probes" in task.extras
    return str(evaluate(folder, match_answers=match, probe=probe))


def _watch(todo: Sequence[Run], out: Path, reporter: Reporter, stop: threading.Event) -> None:
    """Show the steps that the worker processes have taken, from their metrics files."""
    steps = sum(run.recipe.steps for run in todo)
    reporter.start("replicate", steps, sum(map(_weight, todo)))
    seen = dict.fromkeys(todo, 0)
    first = True
    while True:
        last = stop.is_set()
        for run in todo:
            path = run_folder(out, run) / "metrics.jsonl"
            lines = read_untrusted(path).splitlines() if path.is_file() else []
            for number in range(seen[run], len(lines)):
                label = f"{run.name} step {number + 1:,}"
                reporter.advance(_weight(run) / run.recipe.steps, reused=first, label=label)
            seen[run] = max(seen[run], len(lines))
        first = False
        if last:
            return
        stop.wait(_WATCH_SECONDS)
