"""`build-fineweb`: FineWeb-Edu: temporal split, deduplicated, packed into rows of 8,192 tokens.

- Parameters are validated by Prefect before anything runs.
- The same root as `tangobench build fineweb` with the same profile and source.

Usage: `prefect deployment run build-fineweb -p profile=sample --watch`.
"""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from pydantic import PositiveInt

from tangobench.flows._build import Profile, Where, flow_run_name, in_flow
from tangobench.flows._runner import RunnerKind
from tangobench.pipeline.api import Request


@flow(name="build-fineweb", flow_run_name=flow_run_name("fineweb"), persist_result=False)
def build_fineweb(
    profile: Profile = "sample",
    source: str | None = None,
    out: str = "out",
    store: str | None = None,
    workers: PositiveInt | None = None,
    runner: RunnerKind = "processes",
    address: str | None = None,
) -> State[Any]:
    """Build the fineweb dataset into OUT/fineweb-PROFILE.

    Args:
        profile: sample (embedded input), mini (real sources) or paper (published sizes).
        source: Input instead of the profile's own: a folder, a repository or an address.
        out: Parent folder of the dataset.
        store: Unit store, a folder or an fsspec address; OUT/.units by default.
        workers: Worker processes; one per core by default.
        runner: processes on this machine, or dask.
        address: Dask scheduler, tcp://HOST:PORT.
    """
    request = Request(name="fineweb", profile=profile, source=source, out=out, store=store)
    return in_flow(request, Where(workers=workers, runner=runner, address=address))
