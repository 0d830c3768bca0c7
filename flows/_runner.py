"""Where units run: processes of this machine, or the workers of a Dask cluster.

Results come in the order of the items. A Dask worker that dies loses only the units it held.
Leaving a runner, normally or by an exception, leaves no process and no queued unit behind.
Usage: `Where(workers=2).build(Request(name="lean"))`.
"""

from __future__ import annotations

import collections
import functools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Literal

from tangobench.errors import ResourceError, UsageError
from tangobench.pipeline import api
from tangobench.pipeline.core.pool import Runner, make_runner
from tangobench.pipeline.core.progress import Reporter

RunnerKind = Literal["processes", "dask"]
# Two runs of one target are nothing unusual: the second waits and finds the dataset built.
WAIT_SECONDS: Final = 24 * 3600.0
_CONNECT_SECONDS: Final = 30.0
_IN_FLIGHT: Final = 4  # units per thread of the cluster: enough to hide the way to the scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """Which workers do the work; without a number, one per core."""

    workers: int | None = None
    runner: RunnerKind = "processes"
    address: str | None = None

    def check(self) -> None:
        """Refuse half of `--runner dask --address …`."""
        if (self.runner == "dask") != (self.address is not None):
            raise UsageError(
                "a Dask run needs both --runner dask and --address",
                kind="dask-address",
                fix="for example --runner dask --address tcp://127.0.0.1:8786",
            )

    def open(self, *kinds: str) -> Runner:
        """The runner; worker processes start with the modules that datasets of `kinds` need."""
        self.check()
        if self.address is not None:
            return DaskRunner(self.address)
        light = "tangobench.pipeline.core.no_pandas"
        preload = [light, *(module for kind in kinds for module in api.preload_of(kind))]
        return make_runner(self.workers or os.cpu_count() or 1, preload=preload)

    def build(self, request: api.Request, reporter: Reporter | None = None) -> api.Built:
        """Build without any Prefect API."""
        with closing(self.open(request.kind or request.name)) as runner:
            return api.run(request, runner, reporter)


class DaskRunner:
    """Units on the workers of a Dask scheduler."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client = _connect(address)

    def map(
        self, function: Callable[[Any], Any], items: Sequence[Any], labels: Sequence[str]
    ) -> Iterator[Any]:
        """Results in order; a failure forgets the units that have not begun."""
        from distributed import KilledWorker
        from distributed.comm.core import CommClosedError

        running: collections.deque[Any] = collections.deque()
        waiting = collections.deque(items)
        window = _IN_FLIGHT * sum(self._client.nthreads().values())
        try:
            while waiting or running:
                while waiting and len(running) < window:
                    # Dask searches a call's arguments for futures, but not a partial.
                    unit = functools.partial(function, waiting.popleft())
                    running.append(self._client.submit(unit, pure=False))
                yield running[0].result()
                running.popleft()
        except KilledWorker as error:
            raise ResourceError(
                f"Dask workers kept dying: {error}",
                kind="worker-died",
                fix="give the workers more memory and run the same command again",
            ) from None
        except (CommClosedError, CancelledError):
            running.clear()  # nobody is left who could be told to forget them
            raise ResourceError(
                f"the connection to the Dask scheduler {self._address} was lost",
                kind="scheduler-lost",
                fix="start it again, then run the same command: finished units are kept",
            ) from None
        finally:
            if running:
                self._client.cancel(list(running))

    def close(self) -> None:
        self._client.close()


def _connect(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError:
        raise UsageError(
            "Dask is not installed", kind="no-dask", fix="pip install 'tangobench[dask]'"
        ) from None
    # Its client logs tracebacks of lost connections, which reach the user as typed errors.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no Dask scheduler answers at {address}: {error}",
            kind="dask-unreachable",
            fix="start one with `dask scheduler`, and give its address",
        ) from None
    try:
        client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
    except OSError:
        client.close()
        raise ResourceError(
            f"the Dask scheduler at {address} has no workers",
            kind="dask-no-workers",
            fix=f"start one: dask worker {address} --nthreads 1",
        ) from None
    return client
