"""The Prefect tasks: one batch of units, here through worker processes or on a cluster's worker.

- A task returns small records, never data; nothing is cached or persisted by Prefect, because the
  unit store resumes by content.
- Only a passing I/O fault is tried again; a full disk, a missing file or bad input is not.

Usage: `run_batch.submit(name="tokens: a.parquet", batch=batch)`.
"""

from __future__ import annotations

import errno
import time
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Final

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State

from tangobench.errors import TangobenchError
from tangobench.flows._batches import Batch, Done, finished, run_units, timed
from tangobench.pipeline.pool import worker_died

# Trying again cannot help with these.
_LASTING: Final = {
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
}
_PASSING: Final = {"store-unreachable", "disk-error"}


def is_passing(error: object) -> bool:
    """Whether an error is an I/O fault that may be gone a moment later."""
    if isinstance(error, TangobenchError):
        return error.kind in _PASSING
    return isinstance(error, OSError) and error.errno not in _LASTING


def _retry(_task: Any, _run: Any, state: State[Any]) -> bool:
    return is_passing(state.result(raise_on_failure=False))


def _through_pool(batch: Batch, pool: ProcessPoolExecutor) -> Done:
    began = time.monotonic()
    futures: list[Future[Any]] = [pool.submit(timed, batch.function, item) for item in batch.items]
    try:
        return finished([future.result() for future in futures], began)
    except (BrokenProcessPool, CancelledError):
        lost = [
            label
            for future, label in zip(futures, batch.labels, strict=True)
            if not future.done() or future.cancelled() or future.exception() is not None
        ]
        raise worker_died(lost) from None
    finally:
        for future in futures:
            future.cancel()


@task(
    name="units",
    task_run_name="{name}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=2,
    retry_delay_seconds=[1, 5],
    retry_condition_fn=_retry,
)
def run_batch(name: str, batch: Batch) -> Done:
    """Run one batch of units; `name` is what the UI shows."""
    if batch.pool is None:
        return run_units(batch)
    return _through_pool(batch, batch.pool)


@task(name="verify", task_run_name="verify {folder}", cache_policy=NO_CACHE, persist_result=False)
def verify_folder(folder: str) -> dict[str, Any]:
    """Check every byte of a dataset folder; returns its lock."""
    from tangobench.pipeline.publish import verify

    return verify(Path(folder)).data
