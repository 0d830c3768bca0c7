"""The few questions and orders that the local server sends to a Prefect API.

The API is the one of the settings: set `PREFECT_API_URL` before this module is imported.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from typing import Final

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Cancelling, Crashed

_LIVE: Final = {"state": {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}}


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
            flow_run_filter=FlowRunFilter.model_validate(_LIVE),
            work_pool_filter=WorkPoolFilter.model_validate({"name": {"any_": [pool]}}),
        )
    return [r for r in runs if pids is None or r.infrastructure_pid in [str(p) for p in pids]]


def end_lost_runs(before: float) -> None:
    """Mark as crashed what commands started before `before` and could not end themselves."""
    lost = {
        **_LIVE,
        "deployment_id": {"is_null_": True},
        "tags": {"all_": ["tangobench"]},
        "start_time": {"before_": datetime.datetime.fromtimestamp(before, tz=datetime.UTC)},
    }
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(lost)):
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
