"""The body that the build flows share, and its twin without Prefect.

- `in_flow` runs units as Prefect tasks and shows them; `in_process` runs the same request with no
  API. Both call `pipeline.api.run`, so the root is the same.
- An expected error ends the run as failed with its own message and the next step.

Usage: `in_process(Request(name="lean"), Where(workers=2))`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tangobench.errors import TangobenchError
from tangobench.flows._runner import RunnerKind, check, choose, closing
from tangobench.pipeline import api
from tangobench.pipeline.api import Built, Request
from tangobench.pipeline.hashing import digest
from tangobench.pipeline.progress import Reporter
from tangobench.pipeline.spec import as_dict

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

# Two runs of one deployment are nothing unusual: the second waits and finds the dataset built.
WAIT_SECONDS = 24 * 3600.0

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


def run_name(request: Request) -> str:
    """`lean-sample-1a2b3c4d`: dataset, profile and the first digits of the spec's hash."""
    name = f"{request.name.replace('_', '-')}-{request.profile}"
    try:
        return f"{name}-{digest(as_dict(request.spec()))[:8]}"
    except TangobenchError:
        return name  # the run itself will say what is wrong with the spec


def flow_run_name(dataset: str) -> Callable[[], str]:
    """What Prefect calls to name a run, from the run's parameters."""

    def name() -> str:
        from prefect.runtime import flow_run

        return run_name(Request(name=dataset, profile=flow_run.parameters["profile"]))

    return name


def in_flow(request: Request, where: Where) -> State[Any]:
    """Build inside a flow run; the final state tells the root or the error."""
    from tangobench.flows._report import RunReporter, publish_lock
    from tangobench.flows._runner import PrefectRunner

    def work(logger: Any) -> tuple[str, dict[str, Any]]:
        check(where.runner, where.address)
        reporter = RunReporter(logger, request.name, request.profile)
        with closing(PrefectRunner(where.count, where.address)) as runner:
            built = api.run(replace(request, wait_seconds=WAIT_SECONDS), runner, reporter)
        publish_lock(built.lock, built.folder, logger)
        return built.lock.root, {"root": built.lock.root, "folder": str(built.folder)}

    return finish(work, [request.name.replace("_", "-"), request.profile])


def in_flow_verify(folder: Path) -> State[Any]:
    """Verify inside a flow run."""
    from tangobench.flows._report import publish_lock
    from tangobench.flows._tasks import verify_folder
    from tangobench.pipeline.manifest import Lock

    def work(logger: Any) -> tuple[str, dict[str, Any]]:
        lock = Lock(verify_folder(str(folder)))
        publish_lock(lock, folder, logger)
        return lock.root, {"root": lock.root, "folder": str(folder)}

    return finish(work, ["verify"])


def finish(work: Callable[[Any], tuple[str, dict[str, Any]]], tags: list[str]) -> State[Any]:
    """Run the body of a flow and turn its end into a state."""
    from prefect import get_run_logger
    from prefect.states import Completed, Failed

    from tangobench.flows._report import add_tags, attempt, plain, without_tracebacks
    from tangobench.flows._watch import end_with_worker

    end_with_worker()
    logger = get_run_logger()
    without_tracebacks(logger)
    attempt(lambda: add_tags(["tangobench", *tags]), logger)
    try:
        root, data = work(logger)
    except TangobenchError as error:
        message = plain(f"{error.message} (try: {error.fix})" if error.fix else error.message)
        logger.error(message)
        return Failed(message=message, data=error)
    logger.info("root %s", root)
    return Completed(message=f"root {root}", data=data)
