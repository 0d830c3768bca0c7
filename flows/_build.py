"""The body that the build flows share, and the call of one from a command.

- `in_flow` runs units as Prefect tasks and shows them; `through_flow` calls a build flow from a
  command, with the run's name and tags from the start and the command's own lines on the terminal.
- Both end in `pipeline.api.run`, as `tangobench build` does, so the root is the same.
- An expected error ends the run as failed with its own message and the next step.

Usage: `through_flow(Request(name="lean"), Where(workers=2), Reporter())`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from tangobench.errors import TangobenchError
from tangobench.flows._runner import RunnerKind, check, choose, closing
from tangobench.pipeline import api
from tangobench.pipeline.api import Built, Request, spec_overrides
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.lock import read_lock
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.core.remote import place_of
from tangobench.pipeline.core.spec import as_dict

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

# Two runs of one target are nothing unusual: the second waits and finds the dataset built.
WAIT_SECONDS: Final = 24 * 3600.0
# Parameters that are short for keys of the spec.
_SHORT: Final = ("config", "commit", "root", "holdout")

OWN_DATA: Final = "own"
"""The flow of datasets that the user's own manifests describe."""
Profile = Literal["sample", "mini", "paper"]


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
    parts = {
        f.name: (getattr(part, f.name), f.default)
        for part in (request, where)
        for f in fields(part)
    }
    for name in ("name", "wait_seconds"):
        del parts[name]
    return {name: value for name, (value, default) in parts.items() if value != default}


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


def flow_run_name(dataset: str) -> Callable[[], str]:
    """What Prefect calls to name a run that was created without a name of ours."""

    def name() -> str:
        from prefect.runtime import flow_run

        return run_name(request_of(dataset, flow_run.parameters))

    return name


_terminal: Reporter | None = None  # of the command that called the flow in this process


def through_flow(request: Request, where: Where, reporter: Reporter) -> Built:
    """Build as a flow run of the configured API; progress is shown by `reporter` too."""
    from prefect import get_client
    from prefect.flow_engine import run_flow
    from prefect.states import Pending

    from tangobench.flows.build_flows import BUILDS

    global _terminal  # noqa: PLW0603 - a flow's parameters are JSON, a reporter is not
    check(where.runner, where.address)
    flow = BUILDS[OWN_DATA if request.kind else request.name]
    parameters = parameters_of(request, where)
    with get_client(sync_client=True) as client:
        run = client.create_flow_run(
            flow,
            name=run_name(request),
            parameters=parameters,
            tags=tags_of(request),
            state=Pending(),
        )
    _terminal = reporter
    try:
        state: Any = run_flow(flow, flow_run=run, parameters=parameters, return_type="state")
    finally:
        _terminal = None
    result = state.result(raise_on_failure=False)
    if isinstance(result, BaseException):
        raise result
    folder = place_of(result["folder"])
    return Built(folder, read_lock(folder), result["reused"])


def in_flow(request: Request, where: Where) -> State[Any]:
    """Build inside a flow run; the final state tells the root or the error."""
    from tangobench.flows._report import Both, RunReporter, publish_lock
    from tangobench.flows._runner import PrefectRunner

    def work(logger: Any) -> tuple[str, dict[str, Any]]:
        check(where.runner, where.address)
        reporter: Reporter = RunReporter(logger, request.name, request.profile)
        if _terminal is not None:
            reporter = Both(reporter, _terminal)
        with closing(PrefectRunner(where.count, where.address)) as runner:
            built = api.run(replace(request, wait_seconds=WAIT_SECONDS), runner, reporter)
        publish_lock(built.lock, built.folder, logger)
        root = built.lock.root
        return f"root {root}", {"root": root, "folder": str(built.folder), "reused": built.reused}

    return finish(work, tags_of(request))


def in_flow_verify(folder: Path) -> State[Any]:
    """Verify inside a flow run."""
    from tangobench.flows._report import publish_lock
    from tangobench.flows._tasks import verify_folder
    from tangobench.pipeline.core.lock import Lock

    def work(logger: Any) -> tuple[str, dict[str, Any]]:
        lock = Lock(verify_folder(str(folder)))
        publish_lock(lock, folder, logger)
        return f"root {lock.root}", {"root": lock.root, "folder": str(folder)}

    return finish(work, ["tangobench", "verify"])


def finish(work: Callable[[Any], tuple[str, dict[str, Any]]], tags: list[str]) -> State[Any]:
    """Run the body of a flow and turn its end into a state."""
    from prefect import get_run_logger
    from prefect.states import Completed, Failed

    from tangobench.flows._report import add_tags, attempt, plain, quiet_engine
    from tangobench.flows._watch import end_with_worker

    end_with_worker()
    logger = get_run_logger()
    quiet_engine(logger)
    attempt(lambda: add_tags(tags), logger)
    try:
        message, data = work(logger)
    except TangobenchError as error:
        message = plain(f"{error.message} (try: {error.fix})" if error.fix else error.message)
        logger.error(message)
        return Failed(message=message, data=error)
    logger.info(message)
    return Completed(message=message, data=data)
