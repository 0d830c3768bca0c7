"""The Prefect tasks: one batch of units, here through worker processes or on a cluster's worker.

- A task returns small records, never data; nothing is cached or persisted by Prefect, because the
  unit store resumes by content.
- No retries here: a unit tries again by itself after a passing I/O fault, in every runner.

Usage: `run_batch.submit(name="tokens: a.parquet", batch=batch)`.
"""

from __future__ import annotations

import time
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from tangobench.flows._batches import Batch, Done, finished, run_units, timed
from tangobench.pipeline.core.pool import worker_died


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
)
def run_batch(name: str, batch: Batch) -> Done:
    """Run one batch of units; `name` is what the UI shows."""
    if batch.pool is None:
        return run_units(batch)
    return _through_pool(batch, batch.pool)


@task(name="verify", task_run_name="verify {folder}", cache_policy=NO_CACHE, persist_result=False)
def verify_folder(folder: str) -> dict[str, Any]:
    """Check every byte of a dataset folder; returns its lock."""
    from tangobench.pipeline.core.verify import verify

    return verify(Path(folder)).data
