"""Runners: units in worker processes, or on the workers of a Dask cluster; results in order.

A worker that dies (killed, out of memory) fails the run within a second and names what it did; one
that was stopped (SIGSTOP, a debugger) is named after ten seconds.
Workers end by themselves when the main process is gone, so nothing is left behind. A Dask worker
that dies loses only the units it held, and an exception leaves no queued unit behind.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import logging
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from typing import Any, Final, Self

from tangobench.errors import ResourceError, UsageError, printable
from tangobench.pipeline.core.build import Item, Runner, SerialRunner, Value

_IN_FLIGHT: Final = 4  # per worker: enough to hide a slow unit, few enough to bound memory
_LOOK_SECONDS: Final = 0.2
_SILENT_SECONDS: Final = 10.0
_ALONE: Final = threading.Event()  # in a worker whose main process is gone


class ProcessRunner:
    """Runs items in worker processes that are kept between calls."""

    def __init__(self, workers: int, preload: Sequence[str] = ()) -> None:
        self._workers = workers
        self._pool: Pool | None = None
        _start_server(preload)  # it loads its modules while this process loads its own

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def map(
        self, function: Callable[[Item], Value], items: Sequence[Item], labels: Sequence[str]
    ) -> Iterator[Value]:
        """Results in order; on any failure the workers are stopped at once."""
        waiting = collections.deque(zip(items, labels, strict=True))
        running: collections.deque[tuple[Future[Value], str]] = collections.deque()
        pool = self._pool = self._pool or Pool(self._workers)
        try:
            while waiting or running:
                while waiting and len(running) < self._workers * _IN_FLIGHT:
                    item, label = waiting.popleft()
                    running.append((pool.start(function, item), label))
                value = pool.result(*running[0])
                running.popleft()
                yield value
        except BaseException as error:
            pool.stop()
            self._pool = None
            if not isinstance(error, BrokenProcessPool):
                raise
            raise worker_died([label for future, label in running if _lost(future)]) from None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


class Pool(ProcessPoolExecutor):
    """Workers that ignore Ctrl-C, end with this process and do not run its main script again.

    Without the last a script that lacks a guard of `__main__`, or one read from standard input,
    would fail in every worker; units are functions of importable modules.
    """

    def __init__(self, workers: int, preload: Sequence[str] = ()) -> None:
        _start_server(preload)
        context = multiprocessing.get_context("forkserver")
        with _explain_no_workers():
            super().__init__(workers, mp_context=context, initializer=_prepare_worker)

    def _spawn_process(self) -> None:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            with _explain_no_workers():
                super()._spawn_process()  # type: ignore[misc]
        finally:
            sys.modules["__main__"] = main

    def start(self, function: Callable[[Item], Value], item: Item) -> Future[Value]:
        return self.submit(_work, function, item)

    def result(self, future: Future[Value], label: str) -> Value:
        """Wait for a result, and say if it is a stopped worker that one waits for."""
        told: set[int] = set()
        while not concurrent.futures.wait([future], timeout=_SILENT_SECONDS).done:
            for pid in {*(self._processes or ())} - told:
                if _is_stopped(pid):
                    told.add(pid)
                    why = f"worker {pid} is stopped, `kill -CONT {pid}` lets it continue"
                    print(f"waiting for {printable(label)}: {why}", file=sys.stderr, flush=True)
        return future.result()

    def terminate(self) -> None:
        """Ask the workers to end, without waiting: one that trains saves a checkpoint first."""
        for process in list((self._processes or {}).values()):
            with contextlib.suppress(Exception):
                process.terminate()

    def stop(self) -> None:
        self.terminate()
        self.shutdown(wait=True, cancel_futures=True)


def _is_stopped(pid: int) -> bool:
    import psutil  # 15 ms that builds seldom need

    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    return False


def _start_server(preload: Sequence[str]) -> None:
    """Start the process that workers are forked from, unless it runs; they inherit its modules."""
    multiprocessing.set_forkserver_preload(["tangobench.pipeline.core.build", *preload])
    with _explain_no_workers():
        forkserver.ensure_running()


@contextlib.contextmanager
def _explain_no_workers() -> Iterator[None]:
    """Report an OSError of starting workers (no /dev/shm or /tmp, a limit) as `no-workers`."""
    try:
        yield
    except OSError as error:
        why = f"cannot start worker processes: {error}"
        fix = "use --workers 1, or lift the system's limit"
        raise ResourceError(why, kind="no-workers", fix=fix) from error


def make_runner(workers: int, *, preload: Sequence[str] = ()) -> Runner:
    """The runner for a worker count; workers inherit the modules that `preload` names."""
    return SerialRunner() if workers == 1 else ProcessRunner(workers, preload)


def _work(function: Callable[[Item], Value], item: Item) -> Value:
    """Run an item in a worker, which ends with it if the item took the SIGTERM of `stop`.

    Training does, to save a checkpoint. Asking for work again would block for ever: an idle worker
    dies of its SIGTERM while it holds the lock of the queue.
    """
    try:
        return function(item)
    except KeyboardInterrupt:
        os._exit(1)
    finally:
        if _ALONE.is_set():
            os._exit(1)


def _prepare_worker() -> None:
    """Leave Ctrl-C to the main process, and end when that process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent, main = os.getppid(), multiprocessing.parent_process()
    assert main is not None  # this is a worker

    def watch() -> None:
        # The parent is the fork server, which may outlive the main process.
        while os.getppid() == parent and main.is_alive():
            main.join(_LOOK_SECONDS)  # returns at once when the pipe closes
        _ALONE.set()
        os.kill(os.getpid(), signal.SIGTERM)  # one that trains saves a checkpoint

    threading.Thread(target=watch, daemon=True).start()


def _lost(future: Future[Any]) -> bool:
    return not future.done() or future.cancelled() or future.exception() is not None


def worker_died(labels: list[str]) -> ResourceError:
    """The error for a worker that was killed while the labelled items were under way."""
    shown = "; ".join(labels[:4]) + (" …" if len(labels) > 4 else "")
    why = f"a worker process died (killed, or out of memory) while these were under way: {shown}"
    fix = "run the same command again, with fewer --workers if memory is short"
    return ResourceError(why, kind="worker-died", fix=fix, units=labels)


_CONNECT_SECONDS: Final = 30.0


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
            fix = "give the workers more memory and run the same command again"
            why = f"Dask workers kept dying: {error}"
            raise ResourceError(why, kind="worker-died", fix=fix) from None
        except (CommClosedError, CancelledError):
            running.clear()  # nobody is left who could be told to forget them
            why = f"the connection to the Dask scheduler {self._address} was lost"
            fix = "start it again, then run the same command: finished units are kept"
            raise ResourceError(why, kind="scheduler-lost", fix=fix) from None
        finally:
            if running:
                self._client.cancel(list(running))

    def close(self) -> None:
        self._client.close()


def _connect(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError:
        why, fix = "Dask is not installed", "pip install 'tangobench[dask]'"
        raise UsageError(why, kind="no-dask", fix=fix) from None
    # Its client logs tracebacks of lost connections, which reach the user as typed errors.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        why = f"no Dask scheduler answers at {address}: {error}"
        fix = "start one with `dask scheduler`, and give its address"
        raise UsageError(why, kind="dask-unreachable", fix=fix) from None
    try:
        client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
    except OSError:
        client.close()
        why = f"the Dask scheduler at {address} has no workers"
        fix = f"start one: dask worker {address} --nthreads 1"
        raise ResourceError(why, kind="dask-no-workers", fix=fix) from None
    return client
