"""The library's front door: build a dataset, plan it, look one up.

`build` gives the same root as the command line, a flow or a cluster. A folder that already holds
the asked-for dataset is verified, not rebuilt.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib
import os
import platform
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tangobench import __version__
from tangobench.catalogue import CATALOGUE, TEST_SETS
from tangobench.errors import TangobenchError, UsageError
from tangobench.pipeline.core import publish
from tangobench.pipeline.core.build import Job, Result, Runner, SerialRunner
from tangobench.pipeline.core.cards import stated
from tangobench.pipeline.core.files import exclusive
from tangobench.pipeline.core.hashing import sha256_bytes
from tangobench.pipeline.core.lock import Lock
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.core.remote import PATIENCE
from tangobench.pipeline.core.shard_reader import as_promised, verify
from tangobench.pipeline.core.spec import as_dict, load_spec, read_spec
from tangobench.pipeline.core.store import Bucket, Place, open_store, place_of, require_shared
from tangobench.pipeline.tokenizer import TokenizerKeys

DATASETS: Final = {dataset.name: dataset.package for dataset in CATALOGUE.values()}
"""Dataset names and the packages (or single modules) that build them; `door` opens one."""
OWN: Final = {"documents": f"{CATALOGUE['fineweb'].package}.own"}
"""Kinds of datasets that are always your own."""
_ROOMS: Final = {"Spec": "spec", "record": "why", "resolve": "plan"}
"""Modules of the doors that are not named after their module."""

RunnerKind = Literal["processes", "dask"]
# Two runs of one target are nothing unusual: the second waits and finds the dataset built.
WAIT_SECONDS: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Built:
    """A finished dataset."""

    folder: Place
    lock: Lock
    reused: bool
    """The folder already held it, whole and verified."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What to build and where; the same for every way of running it."""

    name: str
    profile: str = "sample"
    out: str = "out"
    source: str | None = None
    store: str | None = None
    manifest: str | None = None
    kind: str | None = None
    """What builds it, if its name is not that of a dataset of the catalogue."""
    overrides: Mapping[str, Any] | None = None
    wait_seconds: float = 0.0
    title: str = ""
    licence: str = ""
    source_url: str = ""
    """What the card says of the rows, instead of what the input states; outside the root."""
    stream: bool = False
    """Read remote input in ranges instead of downloading it once."""
    patience: float = PATIENCE
    """Seconds without a byte after which a source counts as unreachable."""

    @property
    def folder(self) -> Place:
        out = place_of(self.out)
        parent = out.absolute() if isinstance(out, Path) else out
        return parent / f"{self.name}-{self.profile}"

    def spec(self) -> Any:
        cls = door(self.kind or self.name, "Spec")
        if self.manifest is not None:
            return read_spec(cls, Path(self.manifest), self.profile, self.overrides)
        return load_spec(cls, self.name, self.profile, self.overrides)


def spec_overrides(
    overrides: Mapping[str, Any] | None, *, config: str | None = None, **short: Any
) -> dict[str, Any]:
    """Overrides of a spec's keys, with the options that are short for some of them."""
    found = {**(overrides or {}), **{k: v for k, v in short.items() if v is not None}}
    if config is not None:
        found |= {"source": "hub", "hub": {**found.get("hub", {}), "train": config}}
    return found


def door(name: str, what: str, *default: Any) -> Any:
    """A dataset's `Spec`, `build`, `plan`, `record`, `why` or, where it has one, `resolve`; loads
    no more than it needs.
    """
    known = DATASETS | {test.name: test.package for test in TEST_SETS.values()}
    if name not in known | OWN:
        fix = f"choose {', '.join(known)} or a manifest of your own: tangobench init --help"
        raise UsageError(f"no dataset {name!r}", kind="no-such-dataset", fix=fix)
    package = (known | OWN)[name]
    module = importlib.import_module(package)
    if hasattr(module, "__path__"):  # else one module holds all
        module = importlib.import_module(f"{package}.{_ROOMS.get(what, what)}")
    return getattr(module, what, *default)


def kind_of(lock: Lock) -> str:
    """What built a dataset, for its `record` and `why`."""
    if lock.name in DATASETS:
        return str(lock.name)
    kinds = {data.configs: name for name, data in CATALOGUE.items() if len(data.configs) > 1}
    if tuple(lock.configs) in kinds:
        return kinds[tuple(lock.configs)]
    return "dm_math" if "combinations" in lock.notes else "fineweb"


def record_of(dataset: Any, config: str, row: dict[str, Any]) -> dict[str, Any]:
    """What a row holds, by its dataset's `record`; an id outside the vocabulary is corruption."""
    with as_promised(dataset.folder):
        found: dict[str, Any] = door(kind_of(dataset.lock), "record")(row, config, dataset)
    return found


def resolved(request: Request, reporter: Reporter | None = None) -> Any:
    """The effective spec: names such as `HEAD` replaced by what they mean, tokenizers pinned."""
    spec = request.spec()
    resolve = door(request.kind or request.name, "resolve", None)
    known = spec if resolve is None else resolve(spec, request.source)
    if isinstance(known, TokenizerKeys):
        from tangobench.pipeline.tokenizer import use  # dm_math needs none

        known = use.resolve(known)
    before = as_dict(spec)
    for key, value in as_dict(known).items():
        if value != before.get(key) and reporter is not None:
            reporter.say(f"{key} {before[key]} is {value}" if key in before else f"{key} {value}")
    return known


def preload_of(name: str) -> tuple[str, ...]:
    """The modules that workers for a dataset should start with."""
    name = "fineweb" if name in OWN else name
    known = CATALOGUE | TEST_SETS
    return known[name].preload if name in known else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """Which workers do the work: processes (without a number, one per core) or a Dask cluster's."""

    workers: int | None = None
    runner: RunnerKind = "processes"
    address: str | None = None

    def check(self) -> None:
        """Refuse half of `--runner dask --address …`."""
        if (self.runner == "dask") != (self.address is not None):
            why = "a Dask run needs both --runner dask and --address"
            fix = "for example --runner dask --address tcp://127.0.0.1:8786"
            raise UsageError(why, kind="dask-address", fix=fix)

    def open(self, *kinds: str) -> Runner:
        """The runner; worker processes start with the modules that datasets of `kinds` need."""
        self.check()
        if self.workers == 1 and self.address is None:
            return SerialRunner()
        from tangobench.pipeline.core.pool import DaskRunner, make_runner

        if self.address is not None:
            return DaskRunner(self.address)
        light = "tangobench.pipeline.core.no_pandas"
        preload = [light, *(module for kind in kinds for module in preload_of(kind))]
        return make_runner(self.workers or os.cpu_count() or 1, preload=preload)

    def build(self, request: Request, reporter: Reporter | None = None) -> Built:
        """Build without any Prefect API."""
        with closing(self.open(request.kind or request.name)) as runner:
            return run(request, runner, reporter)


def build(name: str, profile: str = "sample", *, workers: int = 1, **options: Any) -> Built:
    if workers < 1:
        raise UsageError(f"--workers is {workers}", kind="workers", fix="use 1 or more")
    reporter = options.pop("reporter", None)
    return Where(workers=workers).build(Request(name=name, profile=profile, **options), reporter)


def plan(request: Request, workers: int = 1) -> dict[str, Any]:
    make = door(request.kind or request.name, "plan")
    return dict(make(resolved(request), request.source, workers))


def run(request: Request, runner: Runner, reporter: Reporter | None = None) -> Built:
    reporter = reporter or Reporter(quiet=True)
    spec = resolved(request, reporter)
    folder = request.folder
    # One builder of a folder on a file system; object stores decide at the last PUT.
    alone: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if not isinstance(folder, Bucket):
        lock_file = folder.parent / ".locks" / folder.name
        alone = exclusive(lock_file, wait_seconds=request.wait_seconds, say=reporter.say)
    with alone:
        publish.refuse_other_spec(folder, as_dict(spec), request.source)
        with contextlib.suppress(TangobenchError):  # not there, or damaged: it is built
            if request.source is None:
                lock = verify(folder)
                reporter.say(f"{folder} is already built; every file was checked again")
                return Built(folder, lock, True)
        # The name of the machine keeps two machines with one store out of each other's scratch.
        scratch = sha256_bytes(os.fsencode(f"{platform.node()}:{folder}"))[:12]
        store = open_store(request.store or str(folder.parent / ".units"), scratch=scratch)
        if not isinstance(runner, SerialRunner):
            require_shared(store)
        store.clear_scratch()
        try:
            how = (request.name, request.stream, request.patience)
            lock = _build(request, spec, Job(store, runner, reporter, *how))
        finally:
            store.clear_scratch()
    return Built(folder, lock, False)


def _build(request: Request, spec: Any, job: Job) -> Lock:
    began = time.time()
    result: Result = door(request.kind or request.name, "build")(spec, request.source, job)
    card = stated(result.card, request.title, request.licence, request.source_url)
    result = dataclasses.replace(result, card=card)
    run = {
        "tangobench": __version__,
        "command": sys.argv,
        "host": platform.node(),
        "platform": platform.platform(),
        "began": datetime.datetime.fromtimestamp(began, datetime.UTC).isoformat(),
        "seconds": round(time.time() - began, 3),
        "stages": job.stages,
        "origin": result.origin,
    }
    return publish.publish(
        request.folder, request.name, request.profile, as_dict(spec), result, job, run
    )
