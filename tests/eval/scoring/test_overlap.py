"""Runs of tokens that occur in training: counted by hand, and as a set of tuples would."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangobench.eval.scoring.probes import runs_of, shares


def rows(*lists):
    return [np.array(tokens, np.uint16) for tokens in lists]


def test_a_share_worked_out_by_hand():
    # 20 tokens have 17 runs of 4; training has tokens 1 to 10, so the 7 runs that begin at 1 to 7.
    found = shares(rows(range(1, 21)), rows([99] * 6, range(1, 11)), size=4)
    assert found.tolist() == [pytest.approx(7 / 17)]


def test_a_row_in_two_training_rows_is_not_one_run():
    assert shares(rows([1, 2, 3, 4]), rows([1, 2], [3, 4]), size=4).tolist() == [0.0]
    assert shares(rows([1, 2, 3, 4]), rows([0, 1, 2, 3, 4]), size=4).tolist() == [1.0]


@pytest.mark.parametrize("other", [[1], [1, 2, 0], [1, 2, 0, 0], [0, 1, 2], []], ids=str)
def test_a_short_row_equals_only_itself(other):
    assert shares(rows([1, 2]), rows(other), size=4).tolist() == [0.0]
    assert shares(rows([1, 2]), rows(other, [1, 2]), size=4).tolist() == [1.0]


def test_nothing_is_compared_with_nothing():
    assert shares([], rows([1, 2, 3]), size=4).tolist() == []
    assert shares(rows([1, 2, 3, 4, 5]), [], size=4).tolist() == [0.0]
    assert shares(rows([]), rows([]), size=4).tolist() == [1.0]


def test_order_and_highest_token_matter():
    assert len(set(runs_of(np.array([65535, 0, 0, 65535], np.uint16), 2).tolist())) == 3


small = st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=5)


@given(small, small)
def test_as_a_set_of_tuples_would(validation, training):
    def tuples(row):
        row = [token + 1 for token in row] + [0] * (4 - len(row))
        return [tuple(row[i : i + 4]) for i in range(len(row) - 3)]

    known = {run for row in training for run in tuples(row)}
    expected = [np.mean([run in known for run in tuples(row)]) for row in validation]
    assert shares(rows(*validation), rows(*training), size=4).tolist() == pytest.approx(expected)
