"""Runners beyond this machine's processes: Dask alone, and Prefect over processes or Dask.

A Prefect task costs about 50 ms of CPU (driver and server), and 370 ms of time on Dask; a unit may
take a millisecond. So units run in batches, which cannot change a result: a unit sees no batch.

- The size of a batch follows the measured pace, so that the share of orchestration is the same on a
  busy machine; the first ones are small, so that errors come soon, and so are the last ones.
- Results come in the order of the items. A Dask worker that dies loses its batch only.
- Leaving a runner, in peace or by an exception, leaves no process and no queued unit behind.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from tangobench.errors import ResourceError, UsageError
from tangobench.pipeline.core.pool import Runner, make_runner, start_pool, stop_pool

RunnerKind = Literal["processes", "dask"]
Pending = TypeVar("Pending")
Function = Callable[[Any], Any]

_THREADS: Final = 3  # batches in flight on one machine: two share the pool, the next one waits
# CPU seconds of work per batch: orchestration stays under 5% in both cases.
_THREAD_SECONDS: Final = 4.0
_DASK_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 30.0
_GROWTH: Final = 8  # at most, from one batch to the next: one lucky batch must not starve workers
_SHRINK: Final = 4  # at most, at the end of a stage: many tiny batches would cost more than idling
_LONGEST: Final = 60.0  # seconds between two signs of life


@dataclass(frozen=True, slots=True)
class Done:
    """What a batch returns: its values, the CPU seconds of its units and the time it took."""

    values: list[Any]
    work: float
    wall: float


class Batch:
    """Units to run together; without a pool they run where the task runs, one by one.

    A plain class on purpose: Prefect and Dask search dataclasses, lists and tuples for futures,
    item by item, and would take this one apart.
    """

    def __init__(
        self,
        function: Function,
        items: Sequence[Any],
        labels: Sequence[str],
        pool: ProcessPoolExecutor | None = None,
    ) -> None:
        self.function, self.items, self.labels, self.pool = function, items, labels, pool


def timed(function: Function, item: Any) -> tuple[Any, float]:
    """One unit's value and the CPU seconds it took."""
    began = time.process_time()
    value = function(item)
    return value, time.process_time() - began


def run_units(batch: Batch) -> Done:
    """Run a batch here, one unit after another."""
    began = time.monotonic()
    return finished([timed(batch.function, item) for item in batch.items], began)


def finished(pairs: Sequence[tuple[Any, float]], began: float) -> Done:
    """The result of a batch that began at `began` from what `timed` gave for its units."""
    values = [value for value, _ in pairs]
    return Done(values, sum(work for _, work in pairs), time.monotonic() - began)


class Pace:
    """Decides how many units the next batch holds: about `seconds` of CPU work."""

    def __init__(self, *, seconds: float, in_flight: int, first: int = 1) -> None:
        self.in_flight = max(1, in_flight)
        self._seconds = seconds
        self._size = max(1, first)

    def size(self, remaining: int) -> int:
        """Units of the next batch; near the end they are spread over all places."""
        least = math.ceil(self._size / _SHRINK)
        return min(remaining, self._size, max(least, math.ceil(remaining / self.in_flight)))

    def learn(self, done: Done) -> None:
        """Take the pace of a finished batch into account."""
        by_work = self._seconds / max(done.work, 1e-6)
        by_wall = _LONGEST / max(done.wall, 1e-6)
        wanted = math.floor(len(done.values) * min(by_work, by_wall))
        self._size = max(1, min(wanted, self._size * _GROWTH))


def ordered(
    items: Sequence[Any],
    labels: Sequence[str],
    submit: Callable[[Sequence[Any], Sequence[str]], Pending],
    collect: Callable[[Pending], Done],
    pace: Pace,
) -> Iterator[Any]:
    """Values in the order of `items`, computed in batches through `submit` and `collect`."""
    running: collections.deque[Pending] = collections.deque()
    begun = 0
    while begun < len(items) or running:
        while begun < len(items) and len(running) < pace.in_flight:
            end = begun + pace.size(len(items) - begun)
            running.append(submit(items[begun:end], labels[begun:end]))
            begun = end
        done = collect(running.popleft())
        pace.learn(done)
        yield from done.values


def batch_name(labels: Sequence[str]) -> str:
    """What a person reads for a batch: its first label, and how many more there are."""
    more = f" and {len(labels) - 1:,} more" if len(labels) > 1 else ""
    return f"{labels[0]}{more}"


class DaskRunner:
    """Units on the workers of a Dask scheduler, without Prefect."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client = _connect(address)

    def map(self, function: Function, items: Sequence[Any], labels: Sequence[str]) -> Iterator[Any]:
        """Results in order; a failure forgets the batches that have not begun."""
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

    def map(self, function: Function, items: Sequence[Any], labels: Sequence[str]) -> Iterator[Any]:
        """Results in order; on any failure this machine's workers are stopped at once."""
        from tangobench.flows._run import run_batch

        def submit(part: Sequence[Any], names: Sequence[str]) -> Any:
            batch = Batch(function, part, names, self._pool)
            return self._tasks.submit(run_batch, {"name": batch_name(names), "batch": batch})

        def collect(future: Any) -> Done:
            done: Done = future.result()
            return done

        pace = Pace(seconds=_THREAD_SECONDS, in_flight=_THREADS, first=self._workers)
        if self._pool is None:
            pace = _dask_pace(self._tasks.client)  # type: ignore[attr-defined]
        try:
            yield from ordered(items, labels, submit, collect, pace)
        except BaseException:
            self._stop()
            raise

    def close(self) -> None:
        """End the workers."""
        self._stop()
        with contextlib.suppress(RuntimeError):
            self._tasks.__exit__(None, None, None)

    def _stop(self) -> None:
        if self._pool is not None:
            stop_pool(self._pool)


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
    return Pace(seconds=_DASK_SECONDS, in_flight=2 * sum(client.nthreads().values()))


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
