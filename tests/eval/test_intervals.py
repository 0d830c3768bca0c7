"""Intervals against SciPy, and at their edges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tangobench.eval.intervals import (
    _student,
    _studentized_range,
    detectable,
    paired_t,
    two_way,
    wilson,
)


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


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=30))
def test_paired_t_equals_scipy(differences):
    mean, low, high = paired_t(differences)
    error = stats.sem(differences)
    half = stats.t.ppf(0.975, len(differences) - 1) * error
    assert mean == pytest.approx(np.mean(differences), abs=1e-9)
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=1e-6)


def test_one_pair_has_no_interval():
    assert paired_t([0.5]) is None


SCORES = st.lists(
    st.lists(st.floats(-3, 3), min_size=3, max_size=3), min_size=2, max_size=6
).filter(lambda rows: np.ptp(rows) > 1e-3)


def layout(rows):
    return two_way({f"arm{i}": dict(enumerate(row)) for i, row in enumerate(rows)})


@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=2, max_size=12))
def test_two_arms_are_a_paired_comparison(pairs):
    found = two_way(
        {"a": {i: p[0] for i, p in enumerate(pairs)}, "b": dict(enumerate(p[1] for p in pairs))}
    )
    expected = paired_t([b - a for a, b in pairs])
    assert found.contrast({"b": 1, "a": -1}) == pytest.approx(expected, abs=1e-6)


@given(SCORES)
def test_a_whole_layout_has_the_textbook_residual(rows):
    """Sum of squares of y − arm mean − block mean + mean over (a − 1)(b − 1)."""
    y = np.array(rows)
    left = y - y.mean(1, keepdims=True) - y.mean(0) + y.mean()
    freedom = (y.shape[0] - 1) * (y.shape[1] - 1)
    found = layout(rows)
    assert found.freedom == freedom
    assert found.residual == pytest.approx(np.sqrt((left**2).sum() / freedom), abs=1e-9)
    weights = {"arm0": -1.0, "arm1": 1.0}
    middle, low, high = found.contrast(weights)
    half = stats.t.ppf(0.975, freedom) * found.residual * np.sqrt(2 / 3)
    assert (middle, high - low) == pytest.approx((y[1].mean() - y[0].mean(), 2 * half), abs=1e-6)


@pytest.mark.parametrize("freedom", [1, 2, 10, 52])
def test_quantiles_equal_scipy(freedom):
    assert _student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)
    for arms in (2, 3, 8, 24):
        expected = stats.studentized_range.ppf(0.95, arms, freedom)
        assert _studentized_range(arms, freedom) == pytest.approx(expected, rel=1e-7)


def test_tukey_uses_the_studentized_range():
    """q(0.95; 3 arms, 4 degrees of freedom) = 5.040 in every textbook's table."""
    found = layout([[1.0, 2.0, 3.5], [1.5, 2.0, 4.0], [0.5, 2.5, 3.0]])
    pairs = {(a, b): interval for a, b, interval in found.all_pairs()}
    assert len(pairs) == 3
    middle, low, high = pairs["arm0", "arm1"]
    assert middle == pytest.approx(1 / 3)
    assert (high - low) / 2 == pytest.approx(5.040 * found.residual / np.sqrt(3), rel=1e-3)


def test_a_missing_run_does_not_move_the_others():
    """Additive scores are fitted exactly, whichever runs are there."""
    scores = {
        a: {b: x + y for b, y in enumerate((0.0, 0.3, 0.7))}
        for a, x in zip("abc", (1.0, 2.0, 4.0), strict=True)
    }
    del scores["b"][1]
    assert two_way(scores).contrast({"c": 1, "b": -1}) == pytest.approx((2.0, 2.0, 2.0))


@pytest.mark.parametrize(
    "scores",
    [
        {},
        {"a": {0: 1.0}},
        {"a": {0: 1.0}, "b": {0: 2.0}},
        {"a": {0: 1.0, 1: 2.0}, "b": {2: 1.0, 3: 3.0}},
    ],
    ids=["nothing", "one", "one block", "no shared block"],
)
def test_no_noise_no_layout(scores):
    assert two_way(scores) is None


def test_the_detectable_difference_is_found_in_four_of_five_simulations():
    size = detectable(0.1, {"arm1": 1, "arm0": -1}, arms=4, blocks=3)
    random = np.random.default_rng(5)
    found = 0
    for _ in range(400):
        y = random.normal(0, 0.1, (4, 3)) + random.normal(0, 1, 3)
        y[1] += size
        found += layout(y.tolist()).contrast({"arm1": 1, "arm0": -1})[1] > 0
    assert 0.74 < found / 400 < 0.86
    assert detectable(0.1, {}, arms=2, blocks=1) is None
