"""Weights: every step is the projection that it claims to be, and no step leaves the set."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bilevel.weightings import Average, CVaR, Exponentiated, Fixed, SimplexAscent
from bilevel.weightings.cvar import project_capped

assert_close = functools.partial(np.testing.assert_allclose, rtol=0)
theorem = settings(derandomize=True, deadline=None, max_examples=60)


def vectors(size):
    number = st.one_of(st.floats(-100, 100), st.sampled_from([0.0, 0.25, 1.0, -1.0]))  # the latter make ties
    return st.lists(number, min_size=size, max_size=size).map(np.array)


# A member w of a convex set is the projection of v if and only if <v - w, u - w> <= 0 for all members u.
# The largest <r, u> over each of these sets is known.


def largest_on_floored_simplex(r, floor):
    return floor * r.mean() + (1 - floor) * r.max()


def largest_on_capped_simplex(r, cap):
    """Fills the largest entries up to the cap, until the sum is 1."""
    filled = np.clip(1 - cap * np.arange(len(r)), 0, cap)
    return np.sort(r)[::-1] @ filled


def assert_nearest(w, v, largest):
    r = v - w
    assert largest(r) - r @ w <= 1e-11 * (1 + np.abs(v).max())


@jax.jit
def ascend(weighting, weights, losses, rate):
    return weighting.update(weights, losses, (), rate)[0]


@pytest.mark.parametrize("floor", [0.0, 0.3])
@pytest.mark.parametrize("n", [1, 2, 5])
@theorem
@given(st.data())
def test_an_ascent_step_is_the_nearest_point_of_the_floored_simplex(n, floor, data):
    weights, losses = data.draw(vectors(n)), data.draw(vectors(n))
    w = np.asarray(ascend(SimplexAscent(floor=floor), jnp.array(weights), jnp.array(losses), 0.7))
    assert w.sum() == pytest.approx(1, abs=1e-13)
    assert w.min() >= floor / n
    assert_nearest(w, weights + 0.7 * losses, lambda r: largest_on_floored_simplex(r, floor))


@pytest.mark.parametrize("cap", [1 / 5, 0.3, 1 / 2, 1.0])
@theorem
@given(vectors(5))
def test_the_capped_projection_is_the_nearest_point_of_the_capped_simplex(cap, values):
    w = np.asarray(jax.jit(project_capped)(jnp.array(values), cap))
    assert w.sum() == pytest.approx(1, abs=1e-13)
    assert w.min() >= 0
    assert w.max() <= cap
    assert_nearest(w, values, lambda r: largest_on_capped_simplex(r, cap))


MOVING = [
    SimplexAscent(),
    SimplexAscent(floor=0.2),
    SimplexAscent(pull=0.5, floor=0.2),
    CVaR(0.5),
    CVaR(1 / 3),
    Exponentiated(),
    Exponentiated(floor=0.2),
]


def bounds(weighting, n):
    """The smallest and the largest weight that are allowed."""
    if isinstance(weighting, CVaR):
        return 0, 1 / (weighting.fraction * n)
    return weighting.floor / n, 1


@jax.jit
def follow(weighting, losses, rate):
    """The weights after each row of losses."""

    def step(carry, row):
        weights, state = weighting.update(carry[0], row, carry[1], rate)
        return (weights, state), weights

    return jax.lax.scan(step, weighting.init(losses.shape[1], losses.dtype), losses)[1]


@pytest.mark.parametrize("rate", [1e-3, 0.3, 100.0])
@pytest.mark.parametrize("weighting", MOVING, ids=repr)
def test_weights_stay_on_their_set(weighting, rate):
    losses = jnp.array(np.random.default_rng(0).normal(size=(100, 6)) * [0.01, 1, 1, 1, 10, 1000])
    path = np.asarray(follow(weighting, losses, rate))
    low, high = bounds(weighting, 6)
    assert_close(path.sum(axis=1), 1, atol=1e-13)
    assert path.min() >= low
    assert path.max() <= high + 1e-15
    assert np.ptp(path) > 1e-3  # they do move


@pytest.mark.parametrize("weighting", MOVING, ids=repr)
def test_what_all_losses_share_does_not_move_the_weights(weighting):
    losses = jnp.array(np.random.default_rng(1).integers(-8, 8, size=(50, 6)) / 4)
    path, shifted = follow(weighting, losses, 0.1), follow(weighting, losses + 2.0**20, 0.1)
    assert_close(shifted, path, atol=1e-13)


@pytest.mark.parametrize("weighting", MOVING, ids=repr)
def test_a_single_task_has_weight_one_exactly(weighting):
    assert np.all(follow(weighting, jnp.array([[3.7], [-2.1], [1e6]]), 0.3) == 1)


@pytest.mark.parametrize("weighting", [w for w in MOVING if getattr(w, "pull", 0) == 0], ids=repr)
def test_equal_losses_leave_the_weights_where_they_are(weighting):
    """Projections are idempotent: a point of the set, not pushed, stays."""
    losses = np.random.default_rng(2).normal(size=(20, 6))
    path = follow(weighting, jnp.array(np.concatenate([losses, np.full((5, 6), 2.5)])), 0.1)
    assert_close(path[20:], np.broadcast_to(path[19], (5, 6)), atol=1e-14)
    assert np.ptp(path[19]) > 0.05


def test_the_cap_of_the_worst_task_alone_is_the_simplex_and_that_of_all_tasks_is_the_average():
    losses = jnp.array(np.random.default_rng(3).normal(size=(50, 6)))
    simplex = follow(SimplexAscent(), losses, 0.3)
    assert_close(follow(CVaR(1 / 6), losses, 0.3), simplex, atol=1e-13)
    assert_close(follow(CVaR(1.0), losses, 0.3), np.full((50, 6), 1 / 6), atol=1e-15)


def test_multiplicative_weights_are_the_softmax_of_the_summed_losses():
    losses = np.random.default_rng(4).normal(size=(50, 6))
    summed = 0.3 * losses.cumsum(axis=0)
    expected = np.exp(summed) / np.exp(summed).sum(axis=1, keepdims=True)
    assert_close(follow(Exponentiated(), jnp.array(losses), 0.3), expected, atol=1e-13)
    floored = follow(Exponentiated(floor=0.2), jnp.array(losses), 0.3)
    assert_close(floored, 0.8 * expected + 0.2 / 6, atol=1e-13)


def test_a_multiplicative_weight_returns_from_underflow():
    there_and_back = jnp.array([[2000.0, 0.0], [0.0, 1999.0], [0.0, 2.0]])
    path = np.asarray(follow(Exponentiated(), there_and_back, 1.0))
    np.testing.assert_array_equal(path[0], [1, 0])  # exp(-2000) is no float
    assert_close(path[1:, 1], [1 / (1 + np.e), 1 / (1 + 1 / np.e)], atol=1e-9)


@pytest.mark.parametrize("weighting", [Average(), Fixed(np.full(6, 1 / 6))], ids=["Average", "Fixed"])
def test_weights_that_do_not_move(weighting):
    losses = jnp.array(np.random.default_rng(5).normal(size=(10, 6)))
    assert np.all(follow(weighting, losses, 0.3) == 1 / 6)
