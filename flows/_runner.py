"""Runners beyond this machine's processes: Dask alone, and Prefect over processes or Dask.

- Each is one more way to map a function over units; results are ordered and equal.
- A Dask worker that dies loses its batch only; the scheduler gives it to another one.
- Leaving a runner, in peace or by an exception, leaves no process and no queued unit behind.

Usage: `with dask_runner("tcp://10.0.0.1:8786") as runner: api.run(request, runner)`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal

from tangobench.errors import ResourceError, UsageError
from tangobench.flows._batches import Batch, Done, Pace, batch_name, ordered, run_units
from tangobench.pipeline.core.pool import Runner, make_runner

RunnerKind = Literal["processes", "dask"]

_THREADS: Final = 3  # batches in flight on one machine: two share the pool, the next one waits
# CPU seconds of work per batch. A task costs 50 ms of CPU (driver and server) in a thread, 370 ms
# on Dask: under 5% in both cases.
_THREAD_SECONDS: Final = 4.0
_DASK_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 30.0


class DaskRunner:
    """Units on the workers of a Dask scheduler, without Prefect."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client = _connect(address)

    def map(
        self, function: Callable[[Any], Any], items: Sequence[Any], labels: Sequence[str]
    ) -> Iterator[Any]:
        """Results in order; a failure forgets the batches that have not begun."""
        from concurrent.futures import CancelledError

        from distributed import KilledWorker
        from distributed.comm.core import CommClosedError

        pending: list[Any] = []

        def submit(part: Sequence[Any], names: Sequence[str]) -> Any:
            batch = Batch(function, part, names)
            pending.append(self._client.submit(run_units, batch, pure=False))
            return pending[-1]

        def collect(future: Any) -> Done:
            try:
                done: Done = future.result()
            except KilledWorker as error:
                raise ResourceError(
                    f"Dask workers kept dying: {error}",
                    kind="worker-died",
                    fix="give the workers more memory and run the same command again",
                ) from None
            except (CommClosedError, CancelledError):
                pending.clear()  # nobody is left who could be told to forget them
                raise ResourceError(
                    f"the connection to the Dask scheduler {self._address} was lost",
                    kind="scheduler-lost",
                    fix="start it again, then run the same command: finished units are kept",
                ) from None
            pending.remove(future)
            return done

        try:
            yield from ordered(items, labels, submit, collect, _dask_pace(self._client))
        finally:
            if pending:
                self._client.cancel(pending)

    def close(self) -> None:
        """Leave the cluster as it was."""
        self._client.close()


class PrefectRunner:
    """Units as Prefect task runs, a batch each; to be used inside a flow."""

    def __init__(self, workers: int, address: str | None = None) -> None:
        from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

        from tangobench.pipeline.core.pool import start_pool

        self._pool = None
        self._workers = workers
        self._tasks: TaskRunner[Any]
        if address is None:
            self._tasks = ThreadPoolTaskRunner(max_workers=_THREADS)
            self._pool = start_pool(workers)
        else:
            _connect(address).close()  # a clear error instead of a long wait
            from prefect_dask.task_runners import DaskTaskRunner

            self._tasks = DaskTaskRunner(address=address)
        self._tasks.__enter__()

    def map(
        self, function: Callable[[Any], Any], items: Sequence[Any], labels: Sequence[str]
    ) -> Iterator[Any]:
        """Results in order; on any failure this machine's workers are stopped at once."""
        from tangobench.flows._tasks import run_batch

        def submit(part: Sequence[Any], names: Sequence[str]) -> Any:
            batch = Batch(function, part, names, self._pool)
            parameters = {"name": batch_name(names), "batch": batch}
            return self._tasks.submit(run_batch, parameters)

        def collect(future: Any) -> Done:
            done: Done = future.result()
            return done

        try:
            yield from ordered(items, labels, submit, collect, self._pace())
        except BaseException:
            self._stop()
            raise

    def close(self) -> None:
        """End the workers."""
        self._stop()
        with contextlib.suppress(RuntimeError):
            self._tasks.__exit__(None, None, None)

    def _pace(self) -> Pace:
        if self._pool is None:
            return _dask_pace(self._tasks.client)  # type: ignore[attr-defined]
        return Pace(seconds=_THREAD_SECONDS, in_flight=_THREADS, first=self._workers)

    def _stop(self) -> None:
        from tangobench.pipeline.core.pool import stop_pool

        if self._pool is not None:
            stop_pool(self._pool)


@contextlib.contextmanager
def closing(runner: Runner) -> Iterator[Runner]:
    """The runner, closed at the end."""
    try:
        yield runner
    finally:
        runner.close()


def make_flow_runner(kind: str, *, workers: int, address: str | None) -> Runner:
    """The runner behind `tangobench build --runner`."""
    if kind not in ("processes", "dask"):
        raise UsageError(
            f"--runner {kind} needs a flow run",
            kind="runner",
            fix="run `make data-lean` or `python -m tangobench.flows lean`",
        )
    return choose("dask" if kind == "dask" else "processes", workers, address)


def choose(kind: RunnerKind, workers: int, address: str | None) -> Runner:
    """The runner for a command that does not use a Prefect API."""
    check(kind, address)
    return make_runner(workers) if address is None else DaskRunner(address)


def check(kind: RunnerKind, address: str | None) -> None:
    """Refuse half of `--runner dask --address …`."""
    if (kind == "dask") != (address is not None):
        raise UsageError(
            "a Dask run needs both --runner dask and --address",
            kind="dask-address",
            fix="for example --runner dask --address tcp://127.0.0.1:8786",
        )


def _dask_pace(client: Any) -> Pace:
    places = sum(client.nthreads().values())
    return Pace(seconds=_DASK_SECONDS, in_flight=2 * places)


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
