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
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, Final, Literal, get_type_hints

from prefect import Flow, flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from pydantic import NonNegativeFloat, PositiveInt

from tangobench.catalogue import CATALOGUE, TEST_SETS
from tangobench.cli import options
from tangobench.commands import data
from tangobench.errors import TangobenchError
from tangobench.flows import _run
from tangobench.flows._run import RunReporter, Staged, attempt, finish, publish_lock
from tangobench.pipeline import api
from tangobench.pipeline.api import WAIT_SECONDS, Request, Where
from tangobench.pipeline.core import shard_reader
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.core.spec import as_dict

OWN_DATA: Final = "own"
"""The flow of datasets that the user's own manifests describe."""
_SHORT: Final = ("config", "commit", "root", "holdout")  # for keys of the spec
_TYPES: Final[dict[str, Any]] = {
    **get_type_hints(Request),
    **dict.fromkeys(_SHORT, str | None),
    **get_type_hints(Where),
    **{"holdout": list[str] | None, "name": str | None},
    **{"patience": NonNegativeFloat, "workers": PositiveInt | None},
}
_HELP: Final = {
    **{flag[2:].replace("-", "_"): given["help"] for flag, given in options(data.BUILD, {})},
    "overrides": "keys of the spec and their values, as --set",
    "workers": "processes; one per core by default",
    "name": "of a dataset of your own",
    "kind": "what builds a dataset of your own",
}
"""What a build takes, in order: the options of `tangobench build` that have a type above."""

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
    def build(**given: Any) -> State[Any]:
        where = Where(**{field.name: given[field.name] for field in fields(Where)})
        return _built(request_of(dataset, given), where)

    def named() -> str:
        return _run_name(request_of(dataset, flow_run.parameters))

    default = {f.name: f.default for part in (Request, Where) for f in fields(part)}
    default |= {"name": None}
    types = _TYPES
    if dataset != OWN_DATA:  # whose profiles are what its manifest calls them
        types = {**types, "profile": Literal["sample", "mini", "paper"]}
    names = [name for name in _HELP if name in types]
    taken = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default.get(name), annotation=types[name])
        for name in names
    ]
    build.__signature__ = Signature(taken)  # type: ignore[attr-defined]
    lines = [f"    {name}: {_HELP[name]}" for name in names]
    build.__doc__ = "\n".join(["Build a dataset into OUT/DATASET-PROFILE.\n", "Args:", *lines])
    title = f"build-{dataset.replace('_', '-')}"
    return flow(name=title, flow_run_name=named, persist_result=False)(build)


def _built(request: Request, where: Where) -> State[Any]:
    """Build with units as Prefect tasks; the final state tells the root or the error."""

    def work(logger: Any) -> tuple[str, dict[str, Any]]:
        reporter = RunReporter(logger, request.name, request.profile, terminal)
        patient = replace(request, wait_seconds=WAIT_SECONDS)
        with closing(where.open(request.kind or request.name)) as runner:
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
        lock = shard_reader.verify(path)
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
