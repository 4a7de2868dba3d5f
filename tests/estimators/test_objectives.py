"""Losses of heads."""

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.estimators.objectives import Batch, HeadLosses, cross_entropy, head_losses, squared_error


def linear(x, inputs):
    return inputs @ x


def batch(target, classes, weight=None):
    rng = np.random.default_rng(0)
    n = len(target)
    weight = np.ones(n) if weight is None else weight
    return Batch(*map(jnp.asarray, (rng.normal(size=(n, 3)), target, np.full(n, classes), weight)))


X = {"network": jnp.eye(3), "penalty": jnp.log(jnp.array([0.1, 0.2, 0.3]))}


def test_columns_beyond_the_classes_of_a_task_are_not_there():
    rows = batch(np.array([0, 1, 2, 0]), 3)
    y = jnp.asarray(np.random.default_rng(1).normal(size=(4, 4)))
    losses = HeadLosses(linear, cross_entropy)
    whole, slope = jax.value_and_grad(losses.upper, argnums=1)(X, y, rows)
    np.testing.assert_allclose(whole, losses.upper(X, y[:, :3], rows), rtol=1e-12)
    assert np.all(np.asarray(slope[:, 3]) == 0)


def test_a_weight_of_two_is_a_row_twice():
    """With weights whose mean is 1 in both."""
    once = batch(np.array([1.0, 2.0]), 1)
    twice = jax.tree.map(lambda a: jnp.concatenate([a, a[:1]]), once)
    weighted = once._replace(weight=jnp.array([4 / 3, 2 / 3]))
    y = jnp.asarray(np.random.default_rng(1).normal(size=(4, 1)))
    losses = HeadLosses(linear, squared_error)
    np.testing.assert_allclose(losses.upper(X, y, weighted), losses.upper(X, y, twice), rtol=1e-12)


def test_the_lower_level_adds_a_penalty_for_each_feature_and_hardly_any_for_the_intercept():
    rows, losses = batch(np.array([1.0, 2.0]), 1), HeadLosses(linear, squared_error)
    y = jnp.array([[1.0], [2.0], [3.0], [4.0]])
    np.testing.assert_allclose(losses.lower(X, y, rows) - losses.upper(X, y, rows), 0.1 + 0.8 + 2.7 + 16e-6)


def test_equal_losses_are_one_object():
    """Methods of different objects are different functions, and would be compiled apart."""
    assert head_losses(linear, squared_error).upper == head_losses(linear, squared_error).upper
