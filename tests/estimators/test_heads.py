"""Heads are the minimisers that their formulas say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import Ridge

from bilevel.estimators import heads
from bilevel.estimators.heads import TaskRows


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X, weight = rng.normal(size=(40, 3)), rng.integers(1, 4, 40) * 1.0
    return TaskRows(X, np.arange(40), X[:, 0] + X[:, 1] ** 2, weight / weight.mean())


def test_least_squares_is_ridge(shared, rows):
    """Ridge minimises the sum of squares + alpha |y|^2, so that alpha is n times our penalty."""
    features = shared.transform(rows.X, rows.place, np.float64)
    penalty = np.full(5, 0.01)
    head = heads.least_squares(shared, rows, penalty)
    ridge = Ridge(alpha=0.01 * 40).fit(features, rows.target, sample_weight=rows.weight)
    np.testing.assert_allclose(head.weights[:, 0], ridge.coef_, rtol=1e-4)
    np.testing.assert_allclose(head.outputs(features)[:, 0], ridge.predict(features), atol=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_logistic_is_where_the_slope_of_g_vanishes(shared, rows, classes):
    """g with a softmax column a class, as the lower level has it, and a penalty for each feature."""
    labels = np.digitize(rows.target, [0.5, 1.5][: classes - 1])
    penalty = np.array([0.01, 0.1, 0.02, 0.3, 0.05])
    head = heads.logistic(shared, rows._replace(target=labels), penalty)
    features = jnp.asarray(shared.transform(rows.X, rows.place, np.float64))

    def g(weights, intercept):
        scores = features @ weights + intercept[None]
        own = jnp.take_along_axis(jax.nn.log_softmax(scores), jnp.asarray(labels)[:, None], axis=1)[:, 0]
        return -jnp.mean(rows.weight * own) + jnp.sum(penalty[:, None] * weights**2)

    slopes = jax.grad(g, argnums=(0, 1))(jnp.asarray(head.weights), jnp.asarray(head.intercept))
    assert all(np.max(np.abs(slope)) < 1e-5 for slope in slopes)
    assert head.classes.tolist() == list(range(classes))
    assert np.allclose(head.probabilities(np.asarray(features)).sum(axis=1), 1)


def test_one_label_gives_shares(shared):
    """Three rows of "b" and one row of all tasks', a quarter of which is "a"."""
    head = heads.constant(shared, "b", 3.0, np.array(["a", "b"]), np.array([0.25, 0.75]))
    np.testing.assert_allclose(head.probabilities(np.zeros((2, 5))), [[1 / 16, 15 / 16]] * 2)
