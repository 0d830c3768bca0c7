"""Runs that a comparison lacks, trained and scored: replications, ablations, studies.

- Every run is trained and scored by itself and can be resumed; what is finished is kept, if it was
  made by this recipe on this dataset. A study also counts the runs that come with the package.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict, Unpack

from tangobench.errors import UsageError
from tangobench.eval.comparison.replications import differences, summarise
from tangobench.eval.comparison.studies import Result, Study
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


class How(TypedDict, total=False):
    """How runs are made: by how many workers, with which input if the dataset must be built."""

    workers: int
    source: str | None
    extras: tuple[str, ...]
    """What results must hold beyond the scores: `exact_match`, `probes`."""
    reporter: Reporter | None


class Task(NamedTuple):
    """One run for a worker process."""

    run: Run
    out: Path
    extras: tuple[str, ...]


def replicate(profile: Family, dataset: str, out: Path, **how: Unpack[How]) -> dict[str, Any]:
    """Train and score the six models, and judge the paper's claims."""
    chosen = runs(profile, dataset)
    _require_runs(chosen, profile, dataset, "replication", profile)
    return summarise(profile, dataset, finish(chosen, out, **how))


def ablate(profile: Family, dataset: str, out: Path, **how: Unpack[How]) -> dict[str, Any]:
    """Train and score all ablations and the whole models they belong to."""
    chosen = [run for run in runs("ablation", dataset) if run.recipe.profile == profile]
    _require_runs(chosen, profile, dataset, "ablations", "ablation")
    whole = {run.recipe.unablated for run in chosen}
    partners = [run for run in runs(profile, dataset) if run.recipe.name in whole]
    results = finish([*partners, *chosen], out, **how)
    return {
        "profile": profile,
        "dataset": dataset,
        "root": results[0]["data"]["root"],
        "runs": sorted(result["run"] for result in results),
        "ablations": differences(results),
    }


def run_study(study: Study, out: Path, **how: Unpack[How]) -> list[Result]:
    """Train and score what is missing of a study; gives all results, those of the package too."""
    lock, extras = _provided(study.runs[0], out, **how), set(how.get("extras", ()))
    known = {
        result["run_sha256"]
        for result in read_results([shipped_results()])
        if result["data"]["root"] == lock.root and extras <= set(result)
    }
    if todo := [run for run in study.runs if run.sha256 not in known]:
        finish(todo, out, **how)
    return read_results([out / "results", shipped_results()])


def _require_runs(
    chosen: Sequence[Run], profile: str, dataset: str, what: str, family: str
) -> None:
    """Refuse a comparison that no recipe is for, naming those there are."""
    if not chosen:
        fits = [r for r in RECIPES.values() if (r.family, r.profile) == (family, profile)]
        known = sorted({recipe.dataset for recipe in fits})
        raise UsageError(
            f"there is no {profile} {what} on {dataset}",
            kind="no-such-recipe",
            fix=f"choose one of {', '.join(known)}" if known else "use --profile sample or mini",
        )


def finish(chosen: Sequence[Run], out: Path, **how: Unpack[How]) -> list[Result]:
    """The results of some runs on one dataset; what is missing of data, runs and scores is made."""
    lock, extras = _provided(chosen[0], out, **how), how.get("extras", ())
    if "exact_match" in extras:
        require_questions(dataset_of(chosen[0], out))
    reporter = how.get("reporter") or Reporter(quiet=True)
    todo = [run for run in chosen if not {"scores", *extras} <= measured(run, out, lock)]
    todo.sort(key=_weight, reverse=True)
    if kept := len(chosen) - len(todo):
        reporter.say(f"{kept} of {len(chosen)} runs are finished already")
    if todo:
        tasks = [Task(run, out.absolute(), extras) for run in todo]
        _train_all(tasks, how.get("workers", 2), reporter)
    return [read_result(result_path(run, out)) for run in chosen]


def _provided(run: Run, out: Path, **how: Unpack[How]) -> Lock:
    """The lock of a run's dataset, which is built if there is no folder of its name."""
    if not (out / run.recipe.folder).is_dir():
        api.build(
            run.recipe.dataset,
            run.recipe.profile,
            out=str(out),
            source=how.get("source"),
            workers=how.get("workers", 2),
            reporter=how.get("reporter") or Reporter(quiet=True),
        )
    return dataset_of(run, out).lock


def result_path(run: Run, out: Path) -> Path:
    """Where a run's result is written."""
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


def _train_all(tasks: Sequence[Task], workers: int, reporter: Reporter) -> None:
    stop = threading.Event()
    watcher = threading.Thread(target=_watch, args=(tasks, reporter, stop), daemon=True)
    watcher.start()
    runner = make_runner(workers)
    try:
        for _ in runner.map(train_and_score, tasks, [task.run.name for task in tasks]):
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


def _watch(tasks: Sequence[Task], reporter: Reporter, stop: threading.Event) -> None:
    """Show the steps that the worker processes have taken, from their metrics files."""
    weights = {task.run: _weight(task.run) for task in tasks}
    reporter.start("replicate", sum(r.recipe.steps for r in weights), sum(weights.values()))
    seen = dict.fromkeys(weights, 0)
    first, last = True, False
    while not last:
        last = not first and stop.wait(_WATCH_SECONDS)
        for run, weight in weights.items():
            path = run_folder(tasks[0].out, run) / "metrics.jsonl"
            lines = read_untrusted(path).splitlines() if path.is_file() else []
            for number in range(seen[run], len(lines)):
                label = f"{run.name} step {number + 1:,}"
                reporter.advance(weight / run.recipe.steps, reused=first, label=label)
            seen[run] = max(seen[run], len(lines))
        first = False
