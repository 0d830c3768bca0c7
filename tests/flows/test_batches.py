"""Batching: order, completeness, bounds, pace."""

from __future__ import annotations

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangobench.flows._runner import Batch, Done, Pace, batch_name, ordered, run_units


class Clockwork:
    """Runs batches when collected, and counts what is in flight."""

    def __init__(self, seconds_per_unit: float, slowed: float = 1.0) -> None:
        self.sizes: list[int] = []
        self.in_flight = self.most = 0
        self._seconds = seconds_per_unit
        self._slowed = slowed  # by neighbours: time passes, work does not get more

    def submit(self, items, labels):
        self.sizes.append(len(items))
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        return Batch(lambda item: item * item, items, labels)

    def collect(self, batch):
        self.in_flight -= 1
        work = self._seconds * len(batch.items)
        return Done(run_units(batch).values, work, work * self._slowed)


@given(
    count=st.integers(0, 400),
    in_flight=st.integers(1, 9),
    first=st.integers(1, 20),
    seconds=st.floats(1e-6, 100.0),
)
def test_every_item_once_in_order_whatever_the_pace(count, in_flight, first, seconds):
    work = Clockwork(seconds)
    pace = Pace(seconds=4.0, in_flight=in_flight, first=first)
    found = list(
        ordered(range(count), [str(i) for i in range(count)], work.submit, work.collect, pace)
    )
    assert found == [i * i for i in range(count)]
    assert work.most <= in_flight
    assert sum(work.sizes) == count


@pytest.mark.parametrize(
    ("seconds_per_unit", "longest"),
    [pytest.param(0.001, 4.0, id="tiny units"), pytest.param(1.0, 4.0, id="seconds each")],
)
def test_batches_grow_to_the_wanted_time_and_not_beyond(seconds_per_unit, longest):
    work = Clockwork(seconds_per_unit)
    pace = Pace(seconds=4.0, in_flight=2)
    collections.deque(ordered(range(40_000), ["x"] * 40_000, work.submit, work.collect, pace), 0)
    assert max(work.sizes) * seconds_per_unit <= longest
    assert max(work.sizes) * seconds_per_unit >= longest / 2
    assert work.sizes[0] == 1


@pytest.mark.parametrize("slowed", [1.0, 10.0], ids=["idle machine", "ten neighbours"])
@pytest.mark.parametrize("unit", [0.001, 0.05, 0.5], ids=["1 ms", "50 ms", "500 ms"])
def test_orchestration_stays_under_five_percent(unit, slowed):
    """A core-minute of work at 50 ms of CPU per task, whatever the units and the neighbours."""
    work, count = Clockwork(unit, slowed), int(60 / unit)
    pace = Pace(seconds=4.0, in_flight=3, first=2)
    collections.deque(ordered(range(count), ["x"] * count, work.submit, work.collect, pace), 0)
    assert len(work.sizes) * 0.05 < 0.05 * 60


def test_a_batch_that_waits_more_than_it_works_stays_under_a_minute():
    work = Clockwork(0.01, slowed=500.0)
    pace = Pace(seconds=4.0, in_flight=3)
    collections.deque(ordered(range(300), ["x"] * 300, work.submit, work.collect, pace), 0)
    assert max(work.sizes) * 0.01 * 500 <= 60


def test_the_end_of_a_stage_is_spread_over_all_places():
    work = Clockwork(0.001)
    pace = Pace(seconds=100.0, in_flight=4, first=30)
    list(ordered(range(40), ["x"] * 40, work.submit, work.collect, pace))
    assert work.sizes[0] == 10


def test_names_tell_the_first_unit_and_how_many_more():
    assert batch_name(["tokens: a"]) == "tokens: a"
    assert batch_name(["tokens: a", "tokens: b", "tokens: c"]) == "tokens: a and 2 more"
