"""Which penalty is taken, and how tasks are judged."""

import numpy as np
import pytest

from bilevel.estimators.judging import Judge
from bilevel.estimators.rows import Rows

PART = np.array([0, 0, 1, 2, 0, 1, 1, 2])
ROWS = Rows(np.arange(8), np.repeat([0, 1], 4), np.arange(8.0), np.ones(8), PART)


@pytest.fixture
def judge():
    """A head is its factor and the places of its training rows; its loss is far from 3 in task 0, from 10 in task 1."""
    seen = []

    def fit(rows, factor):
        return factor, tuple(rows.place)

    def loss(head, rows):
        seen.append((head[1], tuple(rows.place)))
        return abs(np.log(head[0] / (3.0 if rows.place[0] < 4 else 10.0)))

    return Judge(np.zeros((8, 1)), ROWS, fit, loss), seen


def test_heads_see_training_rows_and_are_judged_on_the_others(judge):
    own, seen = judge
    own.judged(np.array([0.5, 0.5]), (1.0, 3.0))
    assert set(seen) == {((0, 1), (2, 3)), ((4,), (5, 6, 7)), ((0, 1), (3,)), ((4,), (7,))}


@pytest.mark.parametrize(("weights", "factor"), [((1.0, 0.0), 3.0), ((0.0, 1.0), 10.0), ((0.9, 0.1), 3.0)])
def test_the_factor_is_that_of_the_lowest_weighted_loss(judge, weights, factor):
    found = judge[0].judged(np.array(weights), (1.0, 3.0, 10.0, 30.0))
    assert found.factor == factor
    np.testing.assert_allclose(found.losses, np.abs(np.log(factor / np.array([3.0, 10.0]))))
