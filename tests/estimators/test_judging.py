"""Which penalty is taken, and how tasks are judged."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest

from bilevel.estimators.heads import Head, Judge, criterion
from bilevel.estimators.rows import WeightedRows

PART = np.array([0, 0, 1, 2, 0, 1, 1, 2])
ROWS = WeightedRows(np.arange(8), np.repeat([0, 1], 4), np.arange(8.0), np.ones(8), PART)


WORST, MEAN = 0.0, 1.0  # the share of the tasks that count


class Fake(NamedTuple):
    """A head that is a factor, a confidence, and the places of the rows that it saw."""

    factor: float
    places: tuple[int, ...]
    confidence: float = 1.0

    def scaled(self, confidence):
        return self._replace(confidence=confidence)


@pytest.fixture
def judge():
    """The loss is far from factor 3 in task 0, from 10 in task 1, twice as far there; and least at confidence 0.5."""
    seen = []

    def fit(rows, factor):
        return Fake(factor, tuple(rows.place))

    def losses(head, places, _):
        seen.append((head.places, tuple(places)))
        first = places[0] < 4
        far = abs(np.log(head.factor / 3.0)) if first else 2 * abs(np.log(head.factor / 10.0))
        return np.full(len(places), far + abs(np.log(head.confidence / 0.5)))

    return Judge(np.zeros((8, 1)), ROWS, fit, lambda rows: rows.place, losses), seen


def test_heads_see_training_rows_and_are_judged_on_the_others(judge):
    own, seen = judge
    own.judged(np.array([0.5, 0.5]), (1.0, 3.0), MEAN, np.zeros(2))
    assert set(seen) == {((0, 1), (2, 3)), ((4,), (5, 6, 7)), ((0, 1), (3,)), ((4,), (7,))}


@pytest.mark.parametrize(
    ("share", "baseline", "factor"),
    [(MEAN, (0.0, 0.0), 10.0), (WORST, (0.0, 0.0), 10.0), (WORST, (0.0, 9.0), 3.0), (WORST, (9.0, 0.0), 10.0)],
)
def test_the_pair_is_that_of_the_lowest_loss_above_the_baseline(judge, share, baseline, factor):
    found = judge[0].judged(np.full(2, 0.5), (1.0, 3.0, 10.0, 30.0), share, np.array(baseline))
    assert (found.factor, found.confidence) == (factor, 0.5)
    np.testing.assert_allclose(found.losses, np.abs(np.log(factor / np.array([3.0, 10.0]))) * np.array([1, 2]))


def test_the_worst_third_counts_as_far_as_differences_are_more_than_noise():
    losses = np.array([[0.0, 1.0], [0.2, 1.0], [7.0, 4.0]])
    spread = np.var(losses[:, 1], ddof=1)  # where the mean is lowest
    for noise in (0.0, 0.3, 1.0, 2.0):
        found = criterion(losses, np.full((3, 2), (noise * spread) ** 0.5), WORST, least=0.0)
        known = max(0.0, 1 - noise)
        np.testing.assert_allclose(found, losses.mean(axis=0) * (1 - known) + known * losses.max(axis=0))
    np.testing.assert_allclose(criterion(losses, np.zeros((3, 2)), MEAN, least=0.5), losses.mean(axis=0))


def test_a_head_with_less_confidence_says_less_and_shares_stay_shares():
    rng = np.random.default_rng(0)
    features, classes = rng.normal(size=(20, 3)), np.arange(4)
    head = Head(rng.normal(size=(3, 4)), rng.normal(size=4), classes)
    sharpest = [head.scaled(c).probabilities(features).max(axis=1) for c in (1.0, 0.5, 0.1, 0.0)]
    assert all(np.all(a > b) for a, b in itertools.pairwise(sharpest))
    np.testing.assert_allclose(sharpest[-1], 0.25)
    shares = Head(np.zeros((3, 4)), np.log([0.1, 0.2, 0.3, 0.4]), classes)
    np.testing.assert_array_equal(shares.scaled(0.1).intercept, shares.intercept)
    number = Head(rng.normal(size=(3, 1)), np.array([2.0]), np.empty(0))
    np.testing.assert_allclose(number.scaled(0.5).outputs(features) - 2.0, (number.outputs(features) - 2.0) / 2)
