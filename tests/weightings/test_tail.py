"""The level above which tasks count: where it goes, and what it does not depend on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bilevel.results.history import tail_mean
from bilevel.weightings.cvar import EARLY, MEMORY, Tail, shares


def follow(draws, fraction):
    """The weights of draws one after the other, and what is known after each."""

    def one(tail, losses):
        weights, after = tail.weigh(losses, fraction)
        return after, (weights, after)

    return jax.lax.scan(one, Tail.start(jnp.float64), jnp.asarray(draws))[1]


def exponential(count, tasks, seed=0):
    return np.random.default_rng(seed).exponential(size=(count, tasks))


@pytest.mark.parametrize(("fraction", "tasks"), [(0.1, 16), (0.5, 4), (0.02, 64)])
def test_the_level_goes_to_the_quantile(fraction, tasks):
    """Of the exponential distribution, -log(fraction); from another scale, as early losses of a run are."""
    draws = exponential(20_000, tasks)
    draws[:50] *= 100
    weights, tail = follow(draws, fraction)
    assert float(tail.level[-1]) == pytest.approx(-np.log(fraction), abs=0.05)
    assert np.asarray(weights[1000:]).sum(axis=1).mean() == pytest.approx(1, abs=0.02)


def test_units_and_origin_of_losses_do_not_matter():
    draws = exponential(200, 8)
    weights, tail = follow(draws, 0.25)
    same, scaled = follow(1024 * draws, 0.25)  # a power of 2, so that nothing is rounded
    np.testing.assert_array_equal(weights, same)
    np.testing.assert_array_equal(1024 * tail.level, scaled.level)
    _, moved = follow(draws + 3, 0.25)
    np.testing.assert_allclose(moved.level, tail.level + 3, rtol=1e-9)


def test_a_level_moves_by_what_the_weights_sum_to_beyond_one():
    """So the weights sum to 1 on average, in units of share and spread, but for how far the level has come."""
    weights, tail = follow(exponential(300, 32), 0.3)
    gains = MEMORY / (EARLY + np.arange(1, 300))
    rise = np.clip(gains * (np.asarray(weights[1:]).sum(axis=1) - 1), -1, 1)
    np.testing.assert_allclose(np.diff(tail.level), np.asarray(tail.spread[:-1]) * rise, atol=1e-12)


def test_tasks_that_are_all_alike_count_nonetheless():
    """Losses without any spread: no level lies between them. Where they fall, the level lags, but never for good."""

    def sums(rate):
        return np.asarray(follow(np.exp(-rate * np.arange(2000))[:, None] * np.ones((1, 8)), 0.25)[0]).sum(axis=1)

    assert sums(0.0).mean() == pytest.approx(1, abs=0.01)
    falling = sums(0.01)
    assert 0.1 < falling.mean() < 1
    assert falling[-200:].sum() > 0


def test_all_of_the_tail_is_the_mean():
    losses = jnp.array([1.0, 5.0, 2.0])
    np.testing.assert_array_equal(shares(losses, 3.0, 1.0), jnp.full(3, 1 / 3))
    assert tail_mean(losses, 1.0) == float(np.mean(losses))


@pytest.mark.parametrize("fraction", [0.05, 0.3, 0.37, 0.9])
def test_the_mean_of_the_tail_is_the_formula_of_rockafellar_and_uryasev(fraction):
    """Its minimum over t is at one of the losses."""
    losses = exponential(1, 11, seed=3)[0]
    values = [t + np.maximum(losses - t, 0).mean() / fraction for t in losses]
    assert tail_mean(losses, fraction) == pytest.approx(min(values), rel=1e-12)
