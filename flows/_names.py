"""Lets `prefect deployment run build-lean` find its deployment without the flow's name.

An entry point of the group `prefect.plugins`, switched on in pyproject.toml for commands run in the
project folder; it acts in `prefect deployment run` alone. NAME means NAME/NAME, which is what every
deployment of prefect.yaml is called. If Prefect's internals change, one line says so and the
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


def wrap(read_by_name: Reader) -> Reader:
    """`read_by_name` that also understands names without a slash."""

    async def read_deployment_by_name(self: Any, name: str) -> Any:
        return await read_by_name(self, name if "/" in name else f"{name}/{name}")

    return read_deployment_by_name


@register_hook
def setup_environment(*, ctx: HookContext) -> None:
    """Prefect's start-up hook; returns nothing because the environment stays as it is."""
    if not is_deployment_run(sys.argv):
        return
    from prefect.client import orchestration

    client: Any = orchestration.PrefectClient
    if hasattr(client, "read_deployment_by_name"):
        client.read_deployment_by_name = wrap(client.read_deployment_by_name)
    else:
        ctx.logger_factory("tangobench").warning(
            "Prefect %s has changed: write FLOW/DEPLOYMENT, for example build-lean/build-lean",
            ctx.prefect_version,
        )
