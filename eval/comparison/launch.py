"""Many runs on many devices: one run per device at a time, each in processes of its own.

- A run is `tangobench train`, then `tangobench eval`; the same command later continues both.
- A failed run frees its device for the next one. One that another process holds is tried again when
  a device is free and nothing else is left.
- Children end with a checkpoint when the launcher is stopped, also by SIGKILL (Linux).
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tangobench.errors import TangobenchError, UsageError
from tangobench.eval.comparison.replicate import measured
from tangobench.eval.render import Table, tabled
from tangobench.model.training.plan import chip, chip_name, plan
from tangobench.model.training.recipes import Family, Run, runs
from tangobench.model.training.runs import read_metrics, run_folder
from tangobench.model.training.train import dataset_of
from tangobench.pipeline.core.files import write_untrusted
from tangobench.pipeline.core.progress import Reporter, duration, units

_POLL_SECONDS: Final = 0.2
_BUSY: Final = 6
_RECENT: Final = 50  # steps that the time left is estimated from
# SIGTERM, which saves a checkpoint, when the launcher is gone: PR_SET_PDEATHSIG outlives exec.
_ENDS_WITH_PARENT: Final = [
    sys.executable,
    "-c",
    "import ctypes, os, sys; libc = ctypes.CDLL(None); hasattr(libc, 'prctl') and libc.prctl(1, 15)"
    "; os.execv(sys.argv[1], sys.argv[1:])",
]


@dataclass(slots=True)
class State:
    """What is known of one run."""

    run: Run
    name: str = "waiting"
    device: str = ""
    why: str = ""
    code: int = 0


@dataclass(slots=True)
class _Child:
    state: State
    process: subprocess.Popen[bytes]
    rest: list[list[str]]


def choose(family: Family, dataset: str | None, only: str | None) -> list[Run]:
    chosen = runs(family, dataset)
    found = [run for run in chosen if only is None or fnmatch.fnmatchcase(run.name, only)]
    if not found:
        raise UsageError(
            f"no {family} run fits {only or dataset!r}",
            kind="no-such-recipe",
            fix=f"choose among names such as {chosen[0].name if chosen else runs()[0].name}",
        )
    return found


def estimates(chosen: Sequence[Run], devices: Sequence[str]) -> tuple[Table, dict[str, float]]:
    """What the runs would take: a table by recipe, and seconds of a step by recipe."""
    on = chip(chip_name(devices[0]))
    recipes = {run.recipe.name: run.recipe for run in chosen}
    planned = {name: plan(recipe, on) for name, recipe in recipes.items()}
    times = Counter(run.recipe.name for run in chosen)
    hours = sum(times[name] * found["hours"] for name, found in planned.items()) / len(devices)
    share = next(iter(planned.values()))["assumed_share"]
    table = tabled(
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
    return table, {name: found["step_seconds"] for name, found in planned.items()}


def all_gpus() -> list[str]:
    import torch

    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


def launch(
    chosen: Sequence[Run], out: Path, devices: Sequence[str], extras: Sequence[str], **more: Any
) -> Launcher:
    first = {run.recipe.folder: run for run in reversed(chosen)}
    locks = {folder: dataset_of(run, out).lock for folder, run in first.items()}

    def is_done(run: Run) -> bool:
        return {"scores", *extras} <= measured(run, out, locks[run.recipe.folder])

    return Launcher(chosen, out, devices, is_done, extras=extras, **more)


def commands(run: Run, out: Path, device: str, extras: Sequence[str] = ()) -> list[list[str]]:
    common = ["--out", str(out), "--device", device, "--quiet", "--json"]
    common += ["--threads", "1"] if device == "cpu" else []
    words = [f"--{name.replace('_', '-')}" for name in extras]
    program = [sys.executable, "-m", "tangobench"]
    return [
        [*program, "train", "--recipe", run.name, *common],
        [*program, "eval", run.name, *common, *words],
    ]


@dataclass(slots=True)
class Launcher:
    """Runs that are to be finished, and the devices they may use."""

    runs: Sequence[Run]
    out: Path
    devices: Sequence[str]
    is_done: Callable[[Run], bool]
    step_seconds: dict[str, float] = field(default_factory=dict)
    """Planned seconds of a step by recipe, until some were measured."""
    extras: Sequence[str] = ()
    reporter: Reporter = field(default_factory=lambda: Reporter(quiet=True))
    make: Callable[..., list[list[str]]] = commands
    states: list[State] = field(default_factory=list)

    def finish(self) -> list[State]:
        """Every run once; those that are done stay as they are. Gives the state of each."""
        self.states = [State(run, "done" if self.is_done(run) else "waiting") for run in self.runs]
        self.states.sort(key=lambda state: -self._left(state.run))  # the longest first
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends children too
        try:
            self._work()
        finally:
            signal.signal(signal.SIGTERM, before)
        return self.states

    def _work(self) -> None:
        free, children = list(self.devices), list[_Child]()
        try:
            while children or any(s.name in ("waiting", "busy") for s in self.states):
                changed = self._start(free, children)
                for child in [c for c in children if c.process.poll() is not None]:
                    changed |= self._advance(child, children, free)
                if changed:
                    self.reporter.say(self.summary())
                time.sleep(_POLL_SECONDS)
        finally:
            for child in children:
                child.process.terminate()
            for child in children:
                child.process.wait()

    def _start(self, free: list[str], children: list[_Child]) -> bool:
        waiting = [s for s in self.states if s.name == "waiting"]
        if not waiting and not children:  # nothing else to do: ask again for what others hold
            waiting = [s for s in self.states if s.name == "busy"]
            time.sleep(_POLL_SECONDS * 10 if waiting else 0)
        for state in waiting[: len(free)]:
            state.name, state.device = "running", free.pop(0)
            first, *rest = self.make(state.run, self.out, state.device, self.extras)
            children.append(_Child(state, self._spawn(first, state.run), rest))
        return bool(waiting and children)

    def _spawn(self, words: list[str], run: Run) -> subprocess.Popen[bytes]:
        """Output goes to files: a pipe would fill up, and break when the launcher is killed."""
        printed = self._printed(run)
        printed.parent.mkdir(parents=True, exist_ok=True)
        log = printed.with_suffix(".log")
        with write_untrusted(printed, "wb") as out, write_untrusted(log, "ab") as errors:
            return subprocess.Popen([*_ENDS_WITH_PARENT, *words], stdout=out, stderr=errors)

    def _printed(self, run: Run) -> Path:
        return self.out / "logs" / f"{run.name}.json"

    def _advance(self, child: _Child, children: list[_Child], free: list[str]) -> bool:
        """What follows after a process: the next one of its run, or the end of the run."""
        state, code = child.state, child.process.returncode
        if code == 0 and child.rest:
            child.process = self._spawn(child.rest.pop(0), state.run)
            return False
        children.remove(child)
        free.append(state.device)
        state.code = code
        state.name = {0: "done", _BUSY: "busy"}.get(code, "failed")
        state.why = "" if code == 0 else _reason(self._printed(state.run).read_text(), code)
        return True

    def progress(self, run: Run) -> tuple[int, float | None]:
        with contextlib.suppress(TangobenchError):
            rows = read_metrics(run_folder(self.out, run) / "metrics.jsonl")
            recent = [row["seconds"] for row in rows[-_RECENT:]]
            return len(rows), sum(recent) / len(recent) if recent else None
        return 0, None

    def _left(self, run: Run) -> float:
        """Seconds that a run still takes; 0 if nothing is known."""
        steps, seconds = self.progress(run)
        each = seconds or self.step_seconds.get(run.recipe.name, 0.0)
        return each * max(0, run.recipe.steps - steps)

    def summary(self) -> str:
        counts = Counter(state.name for state in self.states)
        left = sum(self._left(s.run) for s in self.states if s.name not in ("done", "failed"))
        known = f" · about {duration(left / len(self.devices))} left" if left else ""
        words = ("done", "running", "waiting", "busy", "failed")
        return ", ".join(f"{counts[w]} {w}" for w in words if counts[w]) + known

    def table(self) -> Table:
        rows = []
        for state in self.states:
            steps, seconds = self.progress(state.run)
            left = self._left(state.run) if state.name != "done" else 0.0
            done = f"{steps:,} of {state.run.recipe.steps:,}"
            times = [f"{seconds:.2f}" if seconds else "", duration(left) if left else ""]
            rows.append([state.run.name, state.name, state.device, done, *times, state.why])
        columns = ["Run", "State", "Device", "Steps", "Seconds per step", "Left", "Why"]
        return Table(title=f"Runs: {self.summary()}", columns=columns, rows=rows)


def _reason(printed: str, code: int) -> str:
    try:
        error: dict[str, Any] = json.loads(printed)
        return f"{error['error']}: {error['message']}"[:200]
    except (ValueError, KeyError, TypeError):
        return f"killed by signal {-code}" if code < 0 else f"exit {code}"
