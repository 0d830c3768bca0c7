"""A build as a flow run, called from a command; loads no Prefect before it is needed.

Both ways end in `pipeline.api.run`, as `tangobench build` does, so the root is the same.
Usage: `through_flow(Request(name="lean"), Where(workers=2), Reporter())`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import fields
from typing import Any, Final

from tangobench.errors import TangobenchError
from tangobench.flows._runner import Where
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


def in_process(request: Request, where: Where, reporter: Reporter | None = None) -> Built:
    """Build without any Prefect API."""
    with closing(where.open(api.preload_of(request.kind or request.name))) as runner:
        return api.run(request, runner, reporter)


def request_of(dataset: str, parameters: Mapping[str, Any]) -> Request:
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
    return ["tangobench", request.name.replace("_", "-"), request.profile]


def through_flow(request: Request, where: Where, reporter: Reporter) -> Built:
    """Build as a flow run of the configured API; progress is shown by `reporter` too."""
    from prefect import tags

    from tangobench.flows.deployments import BUILDS

    global terminal  # noqa: PLW0603 - a flow's parameters are JSON, a reporter is not
    where.check()
    flow = BUILDS[OWN_DATA if request.kind else request.name]
    terminal = reporter
    try:
        with tags(*tags_of(request)):
            state: Any = flow(**parameters_of(request, where), return_state=True)
    finally:
        terminal = None
    result = state.result(raise_on_failure=False)
    if isinstance(result, BaseException):
        raise result
    folder = place_of(result["folder"])
    return Built(folder, read_lock(folder), result["reused"])
