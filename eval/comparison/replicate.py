"""Runs that a comparison lacks, trained and scored: replications, ablations, studies, single runs.

- One run per device at a time, in a process of the device's own; the same command later continues.
  What is finished is kept, if it was made by this recipe on this dataset. A study also counts the
  runs that come with the package.
- On a CPU a run has one thread: two runs side by side are faster than one on two cores, and the
  bits of a run do not depend on what runs beside it.
- A failed run frees its device for the next one. One that another process holds is tried again when
  nothing else is left.
- Workers end with a checkpoint when the launcher is stopped, also by SIGKILL.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import os
import statistics
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from tangobench.catalogue import CATALOGUE
from tangobench.errors import BusyError, TangobenchError, UsageError
from tangobench.eval.comparison.studies import Result, Study, ablations, core_seconds
from tangobench.eval.comparison.tables import summarise
from tangobench.eval.render import Table, tabled
from tangobench.eval.scoring.result_files import read_result, read_results, shipped_results
from tangobench.eval.scoring.results import evaluate, require_questions
from tangobench.model.training.plan import chip, chip_name, plan
from tangobench.model.training.recipes import Family, Run, runs
from tangobench.model.training.runs import read_metrics, run_folder
from tangobench.model.training.train import Options, dataset_of, train
from tangobench.pipeline import api
from tangobench.pipeline.core.files import read_untrusted, write_untrusted
from tangobench.pipeline.core.lock import Lock
from tangobench.pipeline.core.pool import Pool, worker_died
from tangobench.pipeline.core.progress import Reporter, duration, units

_BUSY_SECONDS: Final = 2.0
_WATCH_SECONDS: Final = 2.0
_RECENT: Final = 50  # steps that the time left is estimated from


def replicate(profile: Family, dataset: str, out: Path, **how: Any) -> dict[str, Any]:
    chosen = choose(runs(profile, None), f"{profile} replication", dataset)
    return summarise(profile, dataset, finish(chosen, out, **how))


def ablate(profile: Family, dataset: str, out: Path, **how: Any) -> list[Result]:
    return finish(choose(ablations(profile).runs, f"{profile} ablations", dataset), out, **how)


def run_study(study: Study, out: Path, *, extras: Sequence[str] = (), **how: Any) -> list[Result]:
    """Train and score what is missing of a study; gives all results, those of the package too."""
    lock = provided(study.runs[0], out, **how)
    known = {
        result["run_sha256"]
        for result in read_results([shipped_results()])
        if result["data"]["root"] == lock.root and set(extras) <= set(result)
    }
    if todo := [run for run in study.runs if run.sha256 not in known]:
        finish(todo, out, extras=extras, **how)
    return read_results([out / "results", shipped_results()])


def choose(
    every: Sequence[Run], what: str, dataset: str | None, only: str | None = None
) -> list[Run]:
    """The runs on a dataset whose names fit a pattern."""
    there = [run for run in every if dataset in (None, run.recipe.dataset)]
    found = [run for run in there if only is None or fnmatch.fnmatchcase(run.name, only)]
    if not found:
        known = ", ".join(sorted({run.recipe.dataset for run in every}))
        fix = f"choose one of {known}" if known else "use --profile sample or mini"
        raise UsageError(
            f"there is no {what}{f' on {dataset}' if dataset else ''}{f': {only}' if only else ''}",
            kind="no-such-recipe",
            fix=f"choose among names such as {there[0].name}" if there else fix,
        )
    return found


def finish(
    chosen: Sequence[Run], out: Path, *, workers: int = 2, extras: Sequence[str] = (), **how: Any
) -> list[Result]:
    """The results of some runs on one dataset; what is missing of data, runs and scores is made."""
    out = out.absolute()
    provided(chosen[0], out, workers=workers, **how)
    if "exact_match" in extras:
        require_questions(dataset_of(chosen[0], out))
    launcher = Launcher(chosen, out, ["cpu"] * workers, finished(chosen, out, extras), extras)
    launcher.reporter = how.get("reporter", launcher.reporter)
    launcher.stop_on_failure = True
    launcher.finish()
    return [read_result(result_path(run, out)) for run in chosen]


def provided(run: Run, out: Path, **how: Any) -> Lock:
    """The lock of a run's dataset; if there is no folder of its name, it is built as `how` says."""
    name = run.recipe.dataset
    if not (out / run.recipe.folder).is_dir():
        if name not in CATALOGUE:
            raise UsageError(
                f"{out / run.recipe.folder} is not there",
                kind="dataset-missing",
                fix=f"make its input as manifests/{name}.toml says, then: tangobench build "
                f"manifests/{name}.toml --profile {run.recipe.profile} --out {out}",
            )
        api.build(name, run.recipe.profile, out=str(out), **how)
    return dataset_of(run, out).lock


def estimates(chosen: Sequence[Run], devices: Sequence[str]) -> Table:
    """What the runs would take, by recipe."""
    on = chip(chip_name(devices[0]))
    recipes = {run.recipe.name: run.recipe for run in chosen}
    planned = {name: plan(recipe, on) for name, recipe in recipes.items()}
    times = Counter(run.recipe.name for run in chosen)
    hours = sum(times[name] * found["hours"] for name, found in planned.items()) / len(devices)
    share = next(iter(planned.values()))["assumed_share"]
    return tabled(
        f"{units(len(chosen), 'run')}: {hours:,.1f} hours on {len(devices)} × {on.name} (planned)",
        [{"name": name, **found} for name, found in planned.items()],
        {
            "Recipe": lambda found: found["name"],
            "Runs": lambda found: str(times[found["name"]]),
            "Memory": lambda found: (
                f"{found['peak_bytes'] / 1e9:.1f} GB" + ("" if found["fits"] else " (does not fit)")
            ),
            "Microbatch": lambda found: str(found["microbatch"]),
            "Hours each": lambda found: f"{found['hours']:,.2f}",
            "Arithmetic alone": lambda found: f"{found['hours_arithmetic']:,.2f}",
        },
        f"Assumes {share['products']:.0%} of the peak rate of products and "
        f"{share['bytes']:.0%} of the bandwidth: {on.source}. See docs/gpu.md.",
    )


def result_path(run: Run, out: Path) -> Path:
    return out / "results" / f"{run.name}.json"


def finished(chosen: Sequence[Run], out: Path, extras: Sequence[str]) -> set[str]:
    """Names of the runs that have a result of their recipe on their dataset, with all extras."""
    first = {run.recipe.folder: run for run in reversed(chosen)}
    locks = {folder: dataset_of(run, out).lock for folder, run in first.items()}
    found = set()
    for run in chosen:
        if (path := result_path(run, out)).exists():
            result, lock = read_result(path), locks[run.recipe.folder]
            data = (result["data"]["root"], result["data"].get("content_root"))
            same = (*data, result["run_sha256"]) == (lock.root, lock.content_root, run.sha256)
            found |= {run.name} if same and {"scores", *extras} <= result.keys() else set()
    return found


def train_and_score(run: Run, out: Path, device: str, extras: Sequence[str]) -> None:
    """One run from wherever it is to its result."""
    if device == "cpu":
        torch.set_num_threads(1)
    elif ":" in device:
        torch.cuda.set_device(device)
    folder = train(run, Options(out=out, device=device))
    wanted = {"match_answers": "exact_match" in extras, "probe": "probes" in extras}
    evaluate(folder, device=device, **wanted)


@dataclass(slots=True)
class State:
    """What is known of one run."""

    run: Run
    name: str = "waiting"
    device: str = ""
    why: str = ""
    code: int = 0


@dataclass(slots=True)
class Launcher:
    """Runs that are to be finished, and the devices they may use."""

    runs: Sequence[Run]
    out: Path
    devices: Sequence[str]
    done: Collection[str] = ()
    """Names of runs that stay as they are."""
    extras: Sequence[str] = ()
    reporter: Reporter = field(default_factory=lambda: Reporter(quiet=True))
    stop_on_failure: bool = False
    """Whether the first failure ends everything, and is raised."""
    work: Callable[..., None] = train_and_score
    states: list[State] = field(default_factory=list)

    def finish(self) -> list[State]:
        """Take every run that is not done to its result, the longest first."""
        order = sorted(self.runs, key=lambda run: core_seconds(run.recipe), reverse=True)
        self.states = [State(r, "done" if r.name in self.done else "waiting") for r in order]
        todo = [state.run for state in self.states if state.name == "waiting"]
        if kept := len(order) - len(todo):
            self.reporter.say(f"{kept} of {len(order)} runs are finished already")
        if todo:
            stop = threading.Event()
            watcher = threading.Thread(target=self._watch, args=(todo, stop), daemon=True)
            watcher.start()
            try:
                self._work()
            finally:
                stop.set()
                watcher.join()
            self.reporter.finish()
        return self.states

    def _work(self) -> None:
        free, pools = list(range(len(self.devices))), dict[int, Pool]()
        running: dict[Future[None], tuple[State, int]] = {}
        try:
            while (waiting := self._waiting(bool(running))) or running:
                for state in waiting[: len(free)]:
                    place = free.pop(0)
                    state.name, state.device = "running", self.devices[place]
                    running[self._start(state, place, pools)] = state, place
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    state, place = running.pop(future)
                    free.append(place)
                    error = future.exception()
                    if place in pools and (error is not None or state.device != "cpu"):
                        pools.pop(place).stop()  # with all that it holds of a GPU
                    self._end(state, error)
        finally:
            for pool in pools.values():
                pool.terminate()
            for pool in pools.values():
                pool.stop()

    def _waiting(self, others: bool) -> list[State]:
        """Runs to start; if nothing else is left, those that other processes held a while ago."""
        found = [state for state in self.states if state.name == "waiting"]
        if not found and not others and any(state.name == "busy" for state in self.states):
            time.sleep(_BUSY_SECONDS)
            found = [state for state in self.states if state.name == "busy"]
        return found

    def _start(self, state: State, place: int, pools: dict[int, Pool]) -> Future[None]:
        work = functools.partial(self.work, out=self.out, device=state.device, extras=self.extras)
        if self.stop_on_failure and len(self.devices) == 1:  # nothing else to keep alive
            return _here(work, state.run)
        pool = pools[place] = pools.get(place) or Pool(1, preload=[__name__])  # torch, once
        return pool.start(functools.partial(_logged, work, self.out), state.run)

    def _end(self, state: State, error: BaseException | None) -> None:
        if isinstance(error, BrokenProcessPool):
            error = worker_died([state.run.name])
        if error is not None and self.stop_on_failure:
            raise error
        state.name = "busy" if isinstance(error, BusyError) else "failed" if error else "done"
        state.code = getattr(error, "exit_code", 1) if error else 0
        kind = getattr(error, "kind", "unexpected")
        state.why = f"{kind}: {error}"[:200] if error else ""
        if state.name == "failed":
            self.reporter.say(f"{state.run.name} failed: {state.why}")

    def _watch(self, todo: Sequence[Run], stop: threading.Event) -> None:
        """Show the steps that are taken, by the metrics files."""
        weights = {run: core_seconds(run.recipe) for run in todo}
        steps = sum(run.recipe.steps for run in todo)
        self.reporter.start("replicate", steps, sum(weights.values()), noun="step")
        seen, first, last = dict.fromkeys(todo, 0), True, False
        while not last:
            last = not first and stop.wait(_WATCH_SECONDS)
            for run, weight in weights.items():
                path = run_folder(self.out, run) / "metrics.jsonl"
                lines = read_untrusted(path).count(b"\n") if path.is_file() else 0
                if (new := lines - seen[run]) > 0:
                    share, label = new * weight / run.recipe.steps, f"{run.name} step {lines:,}"
                    self.reporter.advance(share, reused=first, label=label, count=new)
                    seen[run] = lines
            first = False

    def table(self) -> Table:
        counts = Counter(state.name for state in self.states)
        named = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        rows = []
        for state in self.states:
            steps, seconds = self._progress(state.run)
            left = seconds * (state.run.recipe.steps - steps) if state.name != "done" else 0.0
            done = f"{steps:,} of {state.run.recipe.steps:,}"
            times = [f"{seconds:.2f}" if seconds else "", duration(left) if left else ""]
            rows.append([state.run.name, state.name, state.device, done, *times, state.why])
        columns = ["Run", "State", "Device", "Steps", "Seconds per step", "Left", "Why"]
        return Table(title=f"Runs: {named}", columns=columns, rows=rows)

    def _progress(self, run: Run) -> tuple[int, float]:
        """Steps taken, and seconds of a recent one; 0 if nothing is known."""
        with contextlib.suppress(TangobenchError):
            rows = read_metrics(run_folder(self.out, run) / "metrics.jsonl")
            recent = [row["seconds"] for row in rows[-_RECENT:]] or [0.0]
            return len(rows), statistics.fmean(recent)
        return 0, 0.0


def _here(work: Callable[[Run], None], run: Run) -> Future[None]:
    """A run in this process: one worker needs no other."""
    done = Future[None]()
    try:
        work(run)
        done.set_result(None)
    except Exception as error:
        done.set_exception(error)
    return done


def _logged(work: Callable[[Run], None], out: Path, run: Run) -> None:
    """A run in a worker process: what it prints goes to OUT/logs, and bugs with their traceback."""
    log = out / "logs" / f"{run.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with write_untrusted(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        work(run)
    except TangobenchError:
        raise
    except Exception:
        traceback.print_exc()
        raise
