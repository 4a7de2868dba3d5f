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
    known = np.broadcast_to(np.arange(4 if classes > 1 else 1) < classes, (n, 4 if classes > 1 else 1))
    return Batch(*map(jnp.asarray, (rng.normal(size=(n, 3)), target, known, weight, np.full(n, 2.0))))


X = {"network": jnp.eye(3), "penalty": jnp.log(jnp.array([5.0, 9.0, 7.0, 0.1, 0.2, 0.3]))}


def test_columns_beyond_the_classes_of_a_task_are_not_there():
    rows = batch(np.array([0, 1, 2, 0]), 3)
    y = jnp.asarray(np.random.default_rng(1).normal(size=(4, 4)))
    losses = HeadLosses(linear, cross_entropy)
    whole, slope = jax.value_and_grad(losses.upper, argnums=1)(X, y, rows)
    np.testing.assert_allclose(whole, losses.upper(X, y[:, :3], rows._replace(known=rows.known[:, :3])), rtol=1e-12)
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
    added = losses.lower(X, y, rows) - losses.upper(X, y, rows)
    np.testing.assert_allclose(added, 2 * (0.1 + 0.8 + 2.7 + 16e-6))


def test_with_a_centre_it_is_the_way_from_there_that_costs():
    """Or from its multiples, at a price of their own; one strength for the intercept, one for inputs, one for the rest.

    A task's share of it all is 2.
    """
    rows, losses = batch(np.array([1.0, 2.0]), 1), HeadLosses(linear, squared_error, linear=1)
    y, c = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, -1.0, 2.0, 0.5])
    x = {"network": jnp.eye(3), "penalty": jnp.log(jnp.array([5.0, 0.3, 7.0, 0.1])), "centre": jnp.asarray(c[:, None])}
    found = losses.lower(x, y[:, None], rows) - losses.upper(x, y[:, None], rows)
    a = np.linspace(-2, 2, 400_001)[:, None]
    way = y - np.append(1 + a, np.ones_like(a), axis=1)[:, [0, 0, 0, 1]] * c
    least = np.min(np.sum(np.array([7.0, 0.1, 0.1, 5.0]) * way**2, axis=1) + 0.3 * a[:, 0] ** 2)
    np.testing.assert_allclose(found, 2 * least, rtol=1e-8)


def test_equal_losses_are_one_object():
    """Methods of different objects are different functions, and would be compiled apart."""
    assert head_losses(linear, squared_error).upper == head_losses(linear, squared_error).upper
