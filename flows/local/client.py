"""The few questions and orders the local server needs to send to a Prefect API.

- The API is the one of the settings: set `PREFECT_API_URL` before this module is imported.
- A run is asked to cancel first; one that cannot answer any more is marked crashed.

Usage: `worker_names("tangobench")`.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence

from prefect.client.orchestration import get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Cancelling, Crashed
from prefect.types import DateTime

LIVE = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]


def worker_names(pool: str) -> set[str]:
    """Names of the workers of `pool` that answer."""
    with get_client(sync_client=True) as client:
        try:
            workers = client.read_workers_for_work_pool(pool)
        except PrefectHTTPStatusError as error:
            if error.response.status_code != 404:
                raise
            return set()  # the first worker makes the pool
    return {worker.name for worker in workers if worker.status == "ONLINE"}


def _live_runs(pool: str, pids: Sequence[int] | None) -> list[FlowRun]:
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(
            flow_run_filter=filters.FlowRunFilter(
                state=filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(any_=LIVE))
            ),
            work_pool_filter=filters.WorkPoolFilter(name=filters.WorkPoolFilterName(any_=[pool])),
        )
    return [r for r in runs if pids is None or r.infrastructure_pid in [str(p) for p in pids]]


def end_lost_runs(before: float) -> None:
    """Mark as crashed what commands started before `before` and could not end themselves."""
    with get_client(sync_client=True) as client:
        lost = client.read_flow_runs(
            flow_run_filter=filters.FlowRunFilter(
                state=filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(any_=LIVE)),
                deployment_id=filters.FlowRunFilterDeploymentId(is_null_=True),
                tags=filters.FlowRunFilterTags(all_=["tangobench"]),
                start_time=filters.FlowRunFilterStartTime(
                    before_=DateTime.fromtimestamp(before, tz=datetime.UTC)
                ),
            )
        )
        for run in lost:
            client.set_flow_run_state(run.id, Crashed(message="its command is gone"), force=True)


def end_runs(pool: str, pids: Sequence[int] | None, why: str, seconds: float = 0.0) -> None:
    """Cancel the live runs of `pool` (of the processes `pids`, when given), then force the rest."""
    with get_client(sync_client=True) as client:
        if seconds:
            for run in _live_runs(pool, pids):
                client.set_flow_run_state(run.id, Cancelling(message=why))
        deadline = time.monotonic() + seconds
        while (left := _live_runs(pool, pids)) and time.monotonic() < deadline:
            time.sleep(0.3)
        for run in left:
            client.set_flow_run_state(run.id, Crashed(message=why), force=True)
