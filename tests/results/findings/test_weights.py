"""Weights: at a solution of a min-max the weighted loss is the worst loss."""

import numpy as np
import pytest

import bilevel as bl
from bilevel.weightings import Average, CVaR, Exponentiated, Regret, SimplexAscent
from made_runs import kinds, made

COUNT = 40
LOSSES = np.tile([2.0, 1.0, 0.5], (COUNT, 1)) + np.linspace(1, 0, COUNT)[:, None] ** 40  # which have settled


def wandering(end):
    """Weights that go from uniform to `end`."""
    share = np.minimum(np.linspace(0, 2, COUNT), 1)[:, None]
    return (1 - share) / 3 + share * np.asarray(end)


def minmax(weighting=None):
    return bl.MORBiT(weighting=SimplexAscent() if weighting is None else weighting)


@pytest.mark.parametrize("weighting", [SimplexAscent(), Exponentiated()])
def test_the_gap_is_that_of_the_theorem(weighting):
    result = made(LOSSES, wandering([0.1, 0.1, 0.8]), solver=minmax(weighting))
    (found,) = result.findings
    assert (found.kind, result.verdict) == ("weights off", "weights not settled")
    assert found.numbers["gap"] == pytest.approx(2.0 - (0.1 * 2 + 0.1 * 1 + 0.8 * 0.5))
    assert (found.numbers["task"], found.numbers["weight"]) == ("task 0", pytest.approx(0.1))


def test_all_weight_on_the_worst_is_a_solution():
    assert kinds(made(LOSSES, wandering([1, 0, 0]), solver=minmax())) == []


def test_equal_losses_have_no_gap_whatever_the_weights():
    assert kinds(made(np.ones((COUNT, 3)) + np.linspace(1, 0, COUNT)[:, None] ** 9, wandering([0.2, 0.2, 0.6]))) == []


def test_weights_that_do_not_move():
    weights = wandering([0.334, 0.333, 0.333])
    result = made(LOSSES, weights, solver=minmax())
    (found,) = result.findings
    assert found.kind == "weights do not move"
    assert found.numbers["travel"] < 0.01


@pytest.mark.parametrize("weighting", [Average(), CVaR(0.5), SimplexAscent(pull=1.0)])
def test_weightings_that_mean_to_spread_are_not_blamed(weighting):
    assert kinds(made(LOSSES, wandering([0.4, 0.3, 0.3]), solver=minmax(weighting))) == []


def test_regrets_are_what_weights_are_compared_by():
    """By regret the last task is the worst, and has all the weight; by loss it would be the best."""
    weights = wandering([0, 0, 1])
    assert kinds(made(LOSSES, weights, solver=minmax(Regret([1.9, 0.9, 0.1])))) == []
    assert kinds(made(LOSSES, weights, solver=minmax())) == ["collapsed weights"]
