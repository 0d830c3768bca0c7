"""Lets `prefect deployment run build-lean` find its deployment without the flow's name.

An entry point of the group `prefect.plugins`, switched on in pyproject.toml for commands run in the
project folder; it acts in `prefect deployment run` alone. A bare name must fit exactly one
deployment, by its own name or its flow's. If Prefect's internals change, one line says so and the
canonical FLOW/DEPLOYMENT keeps working.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any

from prefect.plugins import HookContext, register_hook

Reader = Callable[[Any, str], Awaitable[Any]]


def is_deployment_run(argv: Sequence[str]) -> bool:
    """Whether the command line is `prefect [options] deployment run …`."""
    return ("deployment", "run") in pairwise(argv[1:5])


def pick(name: str, candidates: Sequence[str]) -> str | None:
    """The one FLOW/DEPLOYMENT among `candidates` that `name` means, or None if there is none."""
    fitting = sorted(full for full in candidates if name in full.split("/", 1))
    exact = [full for full in fitting if full == f"{name}/{name}"]
    if len(fitting) > 1 and not exact:
        raise SystemExit(f"{name!r} fits {len(fitting)} deployments: {', '.join(fitting)}")
    return next(iter(exact or fitting), None)


async def _candidates(client: Any, name: str) -> list[str]:
    from prefect.client.schemas.filters import DeploymentFilter, FlowFilter

    called = {"name": {"any_": [name]}}
    # Asked by name, not listed: a user's own server may hold more than one page of deployments.
    fitting = [
        *await client.read_deployments(deployment_filter=DeploymentFilter.model_validate(called)),
        *await client.read_deployments(flow_filter=FlowFilter.model_validate(called)),
    ]
    flows = {flow_id: await client.read_flow(flow_id) for flow_id in {d.flow_id for d in fitting}}
    return sorted({f"{flows[d.flow_id].name}/{d.name}" for d in fitting})


def wrap(read_by_name: Reader) -> Reader:
    """`read_by_name` that also understands names without a slash."""

    async def read_deployment_by_name(self: Any, name: str) -> Any:
        if "/" not in name:
            # An unknown name becomes NAME/NAME, so that Prefect answers with its own "not found".
            name = pick(name, await _candidates(self, name)) or f"{name}/{name}"
        return await read_by_name(self, name)

    return read_deployment_by_name


@register_hook
def setup_environment(*, ctx: HookContext) -> None:
    """Prefect's start-up hook; returns nothing because the environment stays as it is."""
    if not is_deployment_run(sys.argv):
        return
    from prefect.client.orchestration import PrefectClient

    if not hasattr(PrefectClient, "read_deployment_by_name"):
        ctx.logger_factory("tangobench").warning(
            "Prefect %s has changed: write FLOW/DEPLOYMENT, for example build-lean/build-lean",
            ctx.prefect_version,
        )
        return
    PrefectClient.read_deployment_by_name = wrap(  # type: ignore[method-assign, assignment]
        PrefectClient.read_deployment_by_name
    )
