"""A build as a flow run, called from a command; loads no Prefect before it is needed.

Both ways end in `pipeline.api.run`, as `tangobench build` does, so the root is the same.
Usage: `through_flow(Request(name="lean"), Where(workers=2), Reporter())`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, fields
from typing import Any, Final

from tangobench.errors import TangobenchError
from tangobench.flows._runner import RunnerKind, check, choose
from tangobench.pipeline import api
from tangobench.pipeline.api import Built, Request, spec_overrides
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.lock import read_lock
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.core.remote import place_of
from tangobench.pipeline.core.spec import as_dict

# Two runs of one target are nothing unusual: the second waits and finds the dataset built.
WAIT_SECONDS: Final = 24 * 3600.0
# Parameters that are short for keys of the spec.
_SHORT: Final = ("config", "commit", "root", "holdout")
OWN_DATA: Final = "own"
"""The flow of datasets that the user's own manifests describe."""

terminal: Reporter | None = None
"""Of the command that called the flow in this process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """Which workers do the work."""

    workers: int | None = None
    runner: RunnerKind = "processes"
    address: str | None = None

    @property
    def count(self) -> int:
        """Worker processes: as asked, or one per core."""
        return self.workers or os.cpu_count() or 1


def in_process(request: Request, where: Where, reporter: Reporter | None = None) -> Built:
    """Build without any Prefect API."""
    with closing(choose(where.runner, where.count, where.address)) as runner:
        return api.run(request, runner, reporter)


def request_of(dataset: str, parameters: Mapping[str, Any]) -> Request:
    """The request that a run's parameters ask for."""
    known = {field.name for field in fields(Request)} - {"overrides"}
    given = {key: value for key, value in parameters.items() if key in known and value is not None}
    short = {key: parameters.get(key) for key in _SHORT}
    overrides = spec_overrides(parameters.get("overrides"), **short)
    return Request(**{"name": dataset, **given, "overrides": overrides})


def parameters_of(request: Request, where: Where) -> dict[str, Any]:
    """The parameters by which a flow builds this request there; what is default is left out."""
    return {
        field.name: value
        for part in (request, where)
        for field in fields(part)
        if (value := getattr(part, field.name)) != field.default
        and field.name not in ("name", "wait_seconds")
    }


def run_name(request: Request) -> str:
    """`lean-sample-1a2b3c4d`: dataset, profile and the first digits of the spec's hash."""
    name = f"{request.name.replace('_', '-')}-{request.profile}"
    try:
        return f"{name}-{digest(as_dict(request.spec()))[:8]}"
    except TangobenchError:
        return name  # the run itself will say what is wrong with the spec


def tags_of(request: Request) -> list[str]:
    """The tags of a build's run."""
    return ["tangobench", request.name.replace("_", "-"), request.profile]


def through_flow(request: Request, where: Where, reporter: Reporter) -> Built:
    """Build as a flow run of the configured API; progress is shown by `reporter` too."""
    from prefect import get_client
    from prefect.flow_engine import run_flow
    from prefect.states import Pending

    from tangobench.flows.deployments import BUILDS

    global terminal  # noqa: PLW0603 - a flow's parameters are JSON, a reporter is not
    check(where.runner, where.address)
    flow = BUILDS[OWN_DATA if request.kind else request.name]
    given: dict[str, Any] = {"parameters": parameters_of(request, where)}
    with get_client(sync_client=True) as client:
        names: dict[str, Any] = {"name": run_name(request), "tags": tags_of(request)}
        run = client.create_flow_run(flow, **names, **given, state=Pending())
    terminal = reporter
    try:
        state: Any = run_flow(flow, flow_run=run, **given, return_type="state")
    finally:
        terminal = None
    result = state.result(raise_on_failure=False)
    if isinstance(result, BaseException):
        raise result
    folder = place_of(result["folder"])
    return Built(folder, read_lock(folder), result["reused"])
