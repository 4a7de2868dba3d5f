"""Other objectives than the worst loss: every solver reaches the point that an independent convex solve finds."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import bilevel as bl
from bilevel.hypergradients import Exact
from bilevel.problems import adapted_ball, reduced_ball
from bilevel.trackers import Storm
from bilevel.weightings import Average, Exponentiated, Ratio, Regret, Shrunk, SimplexAscent, UpperBound
from closed_form_solvers import SERIES, SETTINGS

assert_close = functools.partial(np.testing.assert_allclose, rtol=0)

POINTS = np.array([[0, 0], [4, 0], [1, 3], [2, 2.0]])
UNITS = np.array([1.0, 2.0, 0.8, 1.25])  # c
BASELINE = np.array([1.3, 0.0, 0.4, 0.2])  # b


def solved(units=1.0, baseline=0.0, scale=1.0):
    """x and the weights at which max_i (scale |x - p_i|^2 / (2 c_i) - b_i) is least: the smallest t above all of them."""
    units, baseline = np.broadcast_to(units, 4), np.broadcast_to(baseline, 4)
    height = lambda z: scale * np.sum((z[:2] - POINTS) ** 2, axis=1) / (2 * units) - baseline  # noqa: E731
    slope = lambda z: np.c_[-scale * (z[:2] - POINTS) / units[:, None], np.ones(4)]  # noqa: E731
    room = {"type": "ineq", "fun": lambda z: z[2] - height(z), "jac": slope}
    start = np.array([2.0, 1.0, 20.0])
    last = minimize(
        lambda z: z[2], start, jac=lambda z: np.array([0, 0, 1.0]), constraints=[room], method="SLSQP", tol=1e-15
    )
    active = np.flatnonzero(height(last.x) > last.x[2] - 1e-7)
    rows = np.r_[((last.x[:2] - POINTS) / units[:, None])[active].T, np.ones((1, len(active)))]
    weights = np.zeros(4)
    weights[active] = np.linalg.lstsq(rows, np.array([0, 0, 1.0]), rcond=None)[0]
    return last.x[:2], weights


def around(weighting):
    """The weighting that compares tasks by f_i / c_i - b_i: both the scale and the shift of every task."""
    return Ratio(UNITS, Regret(BASELINE, weighting))


def test_the_reference_is_the_closed_form_where_there_is_one():
    x, weights = solved()
    assert_close(x, [2, 1], atol=1e-7)
    assert_close(weights, [1 / 4, 5 / 12, 1 / 3, 0], atol=1e-7)
    x, weights = solved(UNITS, BASELINE)
    assert np.abs(x - [2, 1]).max() > 0.3  # another point
    assert np.sum(weights > 0.05) == 3


@pytest.mark.parametrize("name", SETTINGS)
def test_every_bilevel_solver_reaches_the_scaled_and_shifted_solution(run, padded_ball, name):
    solver, steps = SETTINGS[name]
    state = run(solver.replace(weighting=around(solver.weighting)), padded_ball(), 2 * steps)
    x, weights = solved(UNITS, BASELINE)
    assert_close(state.x, x, atol=1e-6)
    assert_close(state.weights, weights, atol=1e-6)
