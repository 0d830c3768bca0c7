"""The library's front door: build a dataset, plan it, look one up.

- `build` gives the same root as the command line, a flow or a cluster.
- A folder that already holds the asked-for dataset is verified, not rebuilt.

Usage: `built = build("lean", "sample", out="out"); built.lock.root`.
"""

from __future__ import annotations

import datetime
import importlib
import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tangobench import __version__
from tangobench.errors import TangobenchError, UsageError
from tangobench.pipeline import publish
from tangobench.pipeline.build import Job, Result
from tangobench.pipeline.files import exclusive
from tangobench.pipeline.hashing import sha256_bytes
from tangobench.pipeline.manifest import Lock, read_lock
from tangobench.pipeline.pool import Runner, make_runner
from tangobench.pipeline.progress import Reporter
from tangobench.pipeline.spec import as_dict, load_spec, read_spec
from tangobench.pipeline.store import open_store

DATASETS: Final = {
    "fineweb": "tangobench.pipeline.fineweb",
    "lean": "tangobench.pipeline.lean",
    "dm_math": "tangobench.pipeline.dm_math",
}
"""Dataset names and the modules that build them; a module has `Spec`, `build`, `plan`, …"""


@dataclass(frozen=True, slots=True)
class Built:
    """A finished dataset."""

    folder: Path
    lock: Lock
    reused: bool
    """True if the folder already held it, whole and verified."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What to build and where; the same for every way of running it."""

    name: str
    profile: str = "sample"
    out: str = "out"
    source: str | None = None
    store: str | None = None
    manifest: str | None = None
    overrides: Mapping[str, Any] | None = None
    wait_seconds: float = 0.0

    @property
    def folder(self) -> Path:
        """The dataset folder."""
        return Path(self.out).absolute() / f"{self.name}-{self.profile}"

    def spec(self) -> Any:
        """The effective spec."""
        cls = module_of(self.name).Spec
        if self.manifest is not None:
            return read_spec(cls, Path(self.manifest), self.profile, self.overrides)
        return load_spec(cls, self.name, self.profile, self.overrides)


def module_of(name: str) -> Any:
    """The module that builds a dataset."""
    if name not in DATASETS:
        raise UsageError(
            f"no dataset {name!r}", kind="no-such-dataset", fix=f"choose {', '.join(DATASETS)}"
        )
    return importlib.import_module(DATASETS[name])


def build(name: str, profile: str = "sample", *, workers: int = 1, **options: Any) -> Built:
    """Build a dataset in worker processes on this machine."""
    if workers < 1:
        raise UsageError(f"--workers is {workers}", kind="workers", fix="use 1 or more")
    runner = make_runner(workers, name)
    reporter = options.pop("reporter", None)
    try:
        return run(Request(name=name, profile=profile, **options), runner, reporter)
    finally:
        runner.close()


def plan(request: Request, workers: int = 1) -> dict[str, Any]:
    """Bytes, time and disk that a build would take."""
    planned: dict[str, Any] = module_of(request.name).plan(request.spec(), request.source, workers)
    return planned


def run(request: Request, runner: Runner, reporter: Reporter | None = None) -> Built:
    """Build a dataset with any runner."""
    reporter = reporter or Reporter(quiet=True)
    spec = request.spec()
    folder = request.folder
    lock_file = folder.parent / ".locks" / folder.name
    with exclusive(lock_file, wait_seconds=request.wait_seconds, say=reporter.say):
        publish.refuse_other_spec(folder, as_dict(spec))
        if request.source is None and (lock := _finished(folder)) is not None:
            reporter.say(f"{folder} is already built; every file was checked again")
            return Built(folder, lock, True)
        # The name of the machine keeps two machines with one store out of each other's scratch.
        scratch = sha256_bytes(os.fsencode(f"{platform.node()}:{folder}"))[:12]
        store = open_store(request.store or str(folder.parent / ".units"), scratch=scratch)
        store.clear_scratch()
        try:
            lock = _build(request, spec, Job(store, runner, reporter))
        finally:
            store.clear_scratch()
    return Built(folder, lock, False)


def _build(request: Request, spec: Any, job: Job) -> Lock:
    began = time.time()
    result: Result = module_of(request.name).build(spec, request.source, job)
    return publish.publish(
        request.folder,
        request.name,
        request.profile,
        as_dict(spec),
        result,
        job,
        _run(job, result, began),
    )


def _finished(folder: Path) -> Lock | None:
    try:
        read_lock(folder)
        return publish.verify(folder)
    except TangobenchError:
        return None


def _run(job: Job, result: Result, began: float) -> dict[str, Any]:
    return {
        "tangobench": __version__,
        "command": sys.argv,
        "host": platform.node(),
        "platform": platform.platform(),
        "began": datetime.datetime.fromtimestamp(began, datetime.UTC).isoformat(),
        "seconds": round(time.time() - began, 3),
        "stages": job.stages,
        "origin": result.origin,
    }
