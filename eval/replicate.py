"""The comparison at a size that a laptop can train: six architectures, three seed pairs.

- Every run is trained and scored by itself and can be resumed; what is finished is kept, if it was
  made by this recipe on this dataset.
- Claims are judged by paired differences: runs of one seed pair saw the same rows in the same
  order, so their difference has less noise than either. The interval is Student's, over seeds.
- The verdict is mechanical: "holds" needs the whole interval on the paper's side. The `sample`
  profile shows that everything runs; thirty steps of a toy make no claims.

Usage: `replicate("sample", "dm_math", Path("out"), workers=2)`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tangobench.errors import UsageError
from tangobench.eval.intervals import paired_t
from tangobench.eval.published import NLL
from tangobench.eval.results import evaluate, read_result, require_questions, write_result
from tangobench.eval.tables import require_one_root, scores
from tangobench.model.config import ARCHS
from tangobench.model.recipes import RECIPES, Family, Run, runs
from tangobench.model.train import Options, dataset_of, run_folder, train
from tangobench.pipeline import api
from tangobench.pipeline.pool import make_runner
from tangobench.pipeline.progress import Reporter

FORMAT: Final = "tangobench-replication/1"
# Seconds of a step relative to the cheapest, for the ETA and to start long runs first.
_COST: Final = {"tango": 4.0, "wango": 4.0, "recurrent_transformer": 3.0}
_WATCH_SECONDS: Final = 2.0
METRICS_OF: Final = {
    "fineweb": ["fineweb"],
    "lean": ["lean_joint", "lean_source", "lean_proof"],
    "dm_math": ["dm_math"],
}
# The paper's orderings: (lower, higher).
CLAIMS: Final = (
    *(("tango", other) for other in ARCHS if other != "tango"),
    ("wango", "recurrent_transformer"),
    ("wango", "flash"),
)


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
    summary = summarise(profile, dataset, results)
    write_result(out / "results" / f"replication-{profile}-{dataset}.json", summary)
    return summary


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


def _measured(run: Run, out: Path, root: str) -> set[str]:
    """What a run's result holds; nothing if there is none of this recipe on this dataset."""
    path = result_path(run, out)
    found = read_result(path) if path.exists() else {}
    same = found and (found["run_sha256"], found["data"]["root"]) == (run.sha256, root)
    return set(found) if same else set()


def _train_all(
    chosen: Sequence[Run], out: Path, workers: int, extras: tuple[str, ...], reporter: Reporter
) -> None:
    root = dataset_of(chosen[0], out).lock.root
    todo = [run for run in chosen if not {"scores", *extras} <= _measured(run, out, root)]
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
            lines = path.read_bytes().splitlines() if path.is_file() else []
            for number in range(seen[run], len(lines)):
                label = f"{run.name} step {number + 1:,}"
                reporter.advance(_weight(run) / run.recipe.steps, reused=first, label=label)
            seen[run] = max(seen[run], len(lines))
        first = False
        if last:
            return
        stop.wait(_WATCH_SECONDS)


def summarise(profile: Family, dataset: str, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Scores by architecture and, once all runs are there, the paper's orderings, judged."""
    require_one_root(results)
    metrics = METRICS_OF[dataset]
    whole = len(results) == len(runs(profile, dataset))
    claims = CLAIMS if whole and profile != "sample" else ()
    return {
        "format": FORMAT,
        "profile": profile,
        "dataset": dataset,
        "root": results[0]["data"]["root"],
        "runs": sorted(result["run"] for result in results),
        "metrics": metrics,
        "scores": {
            arch: {metric: scores(results, arch, metric) for metric in metrics} for arch in ARCHS
        },
        "claims": [judge(results, *claim, metrics[0], depth=4) for claim in claims],
    }


def judge(
    results: Sequence[dict[str, Any]], lower: str, higher: str, metric: str, *, depth: int
) -> dict[str, Any]:
    """Whether `lower` has the lower NLL: paired differences per seed, their mean and interval."""
    below, above = scores(results, lower, metric), scores(results, higher, metric)
    differences = [b - a for a, b in zip(below, above, strict=True)]
    interval = paired_t(differences)
    mean, low, high = interval or (None, None, None)
    paper = NLL[depth]
    return {
        "lower": lower,
        "higher": higher,
        "metric": metric,
        "differences": differences,
        "mean": mean,
        "interval": None if interval is None else [low, high],
        "paper": round(paper[higher][metric][0] - paper[lower][metric][0], 3),
        "verdict": verdict(interval),
    }


def verdict(interval: tuple[float, float, float] | None) -> str:
    """What the interval of (higher − lower) says about the claim."""
    if interval is None:
        return "not enough seeds"
    mean, low, high = interval
    if low > 0:
        return "holds"
    if high < 0:
        return "reversed"
    return "undecided, mean agrees" if mean > 0 else "undecided, mean disagrees"
