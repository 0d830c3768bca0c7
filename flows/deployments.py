"""The flows of prefect.yaml: a build of every dataset, `verify` and `replicate`.

- Parameters are validated by Prefect before anything runs.
- A build gives the same root as `tangobench build` with the same options.
- What is finished is kept, so the same parameters resume.

Usage: `prefect deployment run build-lean -p profile=mini -p 'overrides={"context": 4096}'`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, Literal

from prefect import Flow, flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from pydantic import NonNegativeFloat, PositiveInt

from tangobench.catalogue import CATALOGUE, TEST_SETS
from tangobench.errors import TangobenchError
from tangobench.flows import _run
from tangobench.flows._run import RunReporter, Staged, attempt, finish, publish_lock
from tangobench.flows._runner import WAIT_SECONDS, RunnerKind, Where
from tangobench.pipeline import api
from tangobench.pipeline.api import Request
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.lock import Lock
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.core.remote import PATIENCE
from tangobench.pipeline.core.spec import as_dict

OWN_DATA: Final = "own"
"""The flow of datasets that the user's own manifests describe."""
_SHORT: Final = ("config", "commit", "root", "holdout")  # for keys of the spec

terminal: Reporter | None = None
"""Of the command that called the flow in this process: a flow's parameters are JSON."""


def request_of(dataset: str, parameters: Mapping[str, Any]) -> Request:
    known = {field.name for field in fields(Request)} - {"overrides"}
    given = {key: value for key, value in parameters.items() if key in known and value is not None}
    short = {key: parameters.get(key) for key in _SHORT}
    overrides = api.spec_overrides(parameters.get("overrides"), **short)
    return Request(**{"name": dataset, **given, "overrides": overrides})


def _run_name(request: Request) -> str:
    """`lean-sample-1a2b3c4d`: dataset, profile and the first digits of the spec's hash."""
    name = f"{request.name.replace('_', '-')}-{request.profile}"
    try:
        return f"{name}-{digest(as_dict(request.spec()))[:8]}"
    except TangobenchError:
        return name  # the run itself will say what is wrong with the spec


def tags_of(name: str, profile: str) -> list[str]:
    return ["tangobench", name.replace("_", "-"), profile]


def _flow_of(dataset: str) -> Flow[..., State[Any]]:
    def build(  # noqa: PLR0913, PLR0917 - what a build takes
        profile: Literal["sample", "mini", "paper"] = "sample",
        source: str | None = None,
        out: str = "out",
        store: str | None = None,
        manifest: str | None = None,
        name: str | None = None,
        kind: str | None = None,
        title: str = "",
        licence: str = "",
        source_url: str = "",
        stream: bool = False,
        patience: NonNegativeFloat = PATIENCE,
        overrides: dict[str, Any] | None = None,
        config: str | None = None,
        commit: str | None = None,
        root: str | None = None,
        holdout: list[str] | None = None,
        workers: PositiveInt | None = None,
        runner: RunnerKind = "processes",
        address: str | None = None,
    ) -> State[Any]:
        """Build a dataset into OUT/DATASET-PROFILE.

        Args:
            profile: sample (embedded input), mini (real sources) or paper (published sizes).
            source: Input instead of the profile's own: a folder, a repository or an address.
            out: Parent folder of the dataset.
            store: Unit store, a folder or an fsspec address; OUT/.units by default.
            manifest: A spec of your own, a TOML file.
            name: Name of a dataset of your own.
            kind: What builds a dataset of your own.
            title: Title of the dataset card.
            licence: Licence of your own input, as an SPDX id.
            source_url: Where your own input can be found.
            stream: fineweb: read in ranges instead of downloading once.
            patience: Seconds that a source may send nothing.
            overrides: Keys of the spec and their values, as `--set` on the command line.
            config: fineweb: train on this config of the hub.
            commit: lean: another commit than the spec's.
            root: lean: another folder of the repository.
            holdout: lean: folders that become validation, instead of the hashed share.
            workers: Worker processes; one per core by default.
            runner: processes on this machine, or dask.
            address: Dask scheduler, tcp://HOST:PORT.
        """
        given = locals()
        where = Where(workers=workers, runner=runner, address=address)
        return _built(request_of(dataset, given), where)

    def named() -> str:
        return _run_name(request_of(dataset, flow_run.parameters))

    if dataset == OWN_DATA:
        build.__annotations__["profile"] = str  # whatever the manifest calls them
    title = f"build-{dataset.replace('_', '-')}"
    return flow(name=title, flow_run_name=named, persist_result=False)(build)


def _built(request: Request, where: Where) -> State[Any]:
    """Build with units as Prefect tasks; the final state tells the root or the error."""

    def work(logger: Any) -> tuple[str, dict[str, Any]]:
        reporter = RunReporter(logger, request.name, request.profile, terminal)
        patient = replace(request, wait_seconds=WAIT_SECONDS)
        with closing(where.open(api.preload_of(request.kind or request.name))) as runner:
            built = api.run(patient, Staged(runner), reporter)
        publish_lock(built.lock, built.folder, logger)
        root = built.lock.root
        return f"root {root}", {"root": root, "folder": str(built.folder), "reused": built.reused}

    return finish(work, tags_of(request.name, request.profile))


BUILDS: Final = {name: _flow_of(name) for name in (*CATALOGUE, *TEST_SETS, OWN_DATA)}
build_fineweb = BUILDS["fineweb"]
build_lean = BUILDS["lean"]
build_dm_math = BUILDS["dm_math"]


@flow(name="verify", flow_run_name="verify-{folder}", persist_result=False)
def verify(folder: str = "out/lean-sample") -> State[Any]:
    """Check every byte of a dataset folder against its lock; one fault fails the run.

    Args:
        folder: The dataset folder, with its manifest.lock.json.
    """
    path = Path(folder).absolute()

    def work(logger: Any) -> tuple[str, dict[str, Any]]:
        lock = Lock(_run.verify_folder(str(path)))
        publish_lock(lock, path, logger)
        return f"root {lock.root}", {"root": lock.root, "folder": str(path)}

    return finish(work, ["tangobench", "verify"])


@flow(name="replicate", flow_run_name="replicate-{dataset}-{profile}", persist_result=False)
def replicate(
    profile: Literal["sample", "mini", "published"] = "sample",
    dataset: str = "dm_math",
    out: str = "out",
    source: str | None = None,
    workers: PositiveInt | None = None,
) -> State[Any]:
    """Train and score the six models of the comparison; the tables are an artifact of the run.

    Args:
        profile: sample (minutes), mini (hours) or published (days on an accelerator).
        dataset: What to train on.
        out: Parent folder of datasets, runs and results.
        source: Input of the dataset instead of the profile's own.
        workers: Runs at a time; one per core by default.
    """

    def work(logger: Any) -> tuple[str, dict[str, Any]]:
        from tangobench.eval.comparison import replicate as comparison
        from tangobench.eval.comparison.tables import summary_tables
        from tangobench.eval.render import render

        summary = comparison.replicate(
            profile,
            dataset,
            Path(out),
            workers=workers or os.cpu_count() or 1,
            source=source,
            reporter=RunReporter(logger, dataset, f"{profile}-replicate"),
        )
        text = render(summary_tables(summary), "markdown")
        key = _run.artifact_key(dataset, profile, "tables")
        attempt(lambda: create_markdown_artifact(text, key=key, description="tables"), logger)
        return f"{dataset} {profile}: trained and scored", {"out": str(Path(out).absolute())}

    return finish(work, [*tags_of(dataset, profile), "replicate"])
