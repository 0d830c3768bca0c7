"""Batches: many small units per task, so that orchestration stays a small part of the work.

A Prefect task costs about 50 ms of CPU (driver and server), and 370 ms of time on Dask; a unit may
take a millisecond.

- The size of a batch follows the measured pace: about `seconds` of CPU work each, so that the share
  of orchestration is the same on a busy machine, but at most a minute, so that progress is seen.
- The first batches are small, so that the first results and errors come soon; the last ones shrink,
  so that all workers end together.
- Results come in the order of the items, whatever order batches end in; a few are in flight.
- Batching cannot change a result: a unit neither knows nor sees its batch.

Usage: `ordered(items, labels, submit, collect, Pace(seconds=4.0, in_flight=3, first=2))`.
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

Pending = TypeVar("Pending")

_GROWTH: Final = 8  # at most, from one batch to the next: one lucky batch must not starve workers
_SHRINK: Final = (
    4  # at most, at the end of a stage: many tiny last batches would cost more than idling
)
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
        function: Callable[[Any], Any],
        items: Sequence[Any],
        labels: Sequence[str],
        pool: ProcessPoolExecutor | None = None,
    ) -> None:
        self.function = function
        self.items = items
        self.labels = labels
        self.pool = pool


def timed(function: Callable[[Any], Any], item: Any) -> tuple[Any, float]:
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
    """Decides how many units the next batch holds."""

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
        units = len(done.values)
        by_work = units * self._seconds / max(done.work, 1e-6)
        by_wall = units * _LONGEST / max(done.wall, 1e-6)
        wanted = math.floor(min(by_work, by_wall))
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
