"""Intervals against SciPy, and at their edges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tangobench.eval.intervals import paired_t, wilson


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_equals_scipy(counts):
    successes, total = counts
    expected = stats.binomtest(successes, total).proportion_ci(method="wilson")
    assert wilson(successes, total) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_of_nothing_says_nothing():
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("counts", [(-1, 3), (4, 3)])
def test_wilson_refuses_impossible_counts(counts):
    with pytest.raises(ValueError, match="successes"):
        wilson(*counts)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=10))
def test_paired_t_equals_scipy(differences):
    mean, low, high = paired_t(differences)
    error = stats.sem(differences)
    half = stats.t.ppf(0.975, len(differences) - 1) * error
    assert mean == pytest.approx(np.mean(differences), abs=1e-9)
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=1e-6)


def test_one_pair_has_no_interval():
    assert paired_t([0.5]) is None
