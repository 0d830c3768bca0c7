"""Runners: the same units one after another or in worker processes, results in order.

A worker that dies (killed, out of memory) fails the run within a second and names what it did.
Workers end by themselves when the main process is gone, so nothing is left behind.
"""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from typing import Any, Final, Literal, Protocol, Self, TypeVar

from tangobench.errors import ResourceError

Item = TypeVar("Item")
Value = TypeVar("Value")
StartMethod = Literal["forkserver", "spawn", "fork"]

_IN_FLIGHT: Final = 4  # per worker: enough to hide a slow unit, few enough to bound memory
_LOOK_SECONDS: Final = 0.2


class Runner(Protocol):
    """Anything that can map a function over items: processes here, Prefect or Dask in `flows`."""

    def map(
        self, function: Callable[[Item], Value], items: Sequence[Item], labels: Sequence[str]
    ) -> Iterator[Value]:
        """Results in the order of `items`; `labels` name them in errors and logs."""
        ...

    def close(self) -> None:
        """Release workers."""
        ...


class SerialRunner:
    """Runs everything in this process."""

    def map(
        self, function: Callable[[Item], Value], items: Sequence[Item], labels: Sequence[str]
    ) -> Iterator[Value]:
        """Results in order, computed one by one."""
        for item in items:
            yield function(item)

    def close(self) -> None:
        """Nothing to release."""


class ProcessRunner:
    """Runs items in worker processes that are kept between calls."""

    def __init__(
        self, workers: int, start_method: StartMethod = "forkserver", preload: Sequence[str] = ()
    ) -> None:
        self._workers = workers
        self._start_method = start_method
        self._pool: ProcessPoolExecutor | None = None
        if start_method == "forkserver":
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
        pool = self._pool = self._pool or start_pool(self._workers, self._start_method)
        try:
            while waiting or running:
                while waiting and len(running) < self._workers * _IN_FLIGHT:
                    item, label = waiting.popleft()
                    running.append((pool.submit(function, item), label))
                value = running[0][0].result()
                running.popleft()
                yield value
        except BaseException as error:
            stop_pool(pool)
            self._pool = None
            if not isinstance(error, BrokenProcessPool):
                raise
            raise worker_died([label for future, label in running if _lost(future)]) from None

    def close(self) -> None:
        """Let idle workers end."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


class _Pool(ProcessPoolExecutor):
    """Workers that do not run the caller's main script again.

    Without this a script that lacks a guard of `__main__`, or one read from standard input, would
    fail in every worker; units are functions of importable modules.
    """

    def _spawn_process(self) -> None:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            with _explain_no_workers():
                super()._spawn_process()  # type: ignore[misc]
        finally:
            sys.modules["__main__"] = main


def start_pool(workers: int, start_method: StartMethod = "forkserver") -> ProcessPoolExecutor:
    """Worker processes that ignore Ctrl-C and end with the process that started them."""
    context = multiprocessing.get_context(start_method)
    if start_method == "forkserver":
        _start_server(())
    with _explain_no_workers():
        return _Pool(workers, mp_context=context, initializer=_prepare_worker)


def _start_server(preload: Sequence[str]) -> None:
    """Start the process that workers are forked from, unless it runs; they inherit its modules."""
    multiprocessing.set_forkserver_preload(["tangobench.pipeline.core.build", *preload])
    with _explain_no_workers():
        forkserver.ensure_running()


@contextlib.contextmanager
def _explain_no_workers() -> Iterator[None]:
    """Semaphores, sockets and processes are resources too: no /dev/shm, no /tmp, a limit."""
    try:
        yield
    except OSError as error:
        raise ResourceError(
            f"cannot start worker processes: {error}",
            kind="no-workers",
            fix="use --workers 1, or lift the system's limit",
        ) from error


def stop_pool(pool: ProcessPoolExecutor) -> None:
    """End the workers at once, whatever they do."""
    for process in list((pool._processes or {}).values()):
        with contextlib.suppress(Exception):
            process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)


def make_runner(workers: int, *, preload: Sequence[str] = ()) -> Runner:
    """The runner for a worker count; workers inherit the modules that `preload` names."""
    return SerialRunner() if workers == 1 else ProcessRunner(workers, preload=preload)


def _prepare_worker() -> None:
    """Leave Ctrl-C to the main process, and end when that process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()


def _exit_with_parent(parent: int) -> None:
    """Wait on the pipe that the main process holds, and on its id.

    Under forkserver the parent id is the server's, which lives as long as its workers do; under
    fork every later worker inherits the pipe. Each covers for the other.
    """
    main = multiprocessing.parent_process()
    while os.getppid() == parent and (main is None or main.is_alive()):
        if main is None:
            time.sleep(_LOOK_SECONDS)
        else:
            main.join(_LOOK_SECONDS)  # returns at once when the pipe closes
    os._exit(1)


def _lost(future: Future[Any]) -> bool:
    return not future.done() or future.cancelled() or future.exception() is not None


def worker_died(labels: Sequence[str]) -> ResourceError:
    """The error for a worker that was killed while the labelled items were under way."""
    shown = "; ".join(labels[:4]) + (" …" if len(labels) > 4 else "")
    return ResourceError(
        f"a worker process died (killed, or out of memory) while these were under way: {shown}",
        kind="worker-died",
        fix="run the same command again (finished units are kept), with fewer --workers if memory "
        "is short",
        units=list(labels),
    )
