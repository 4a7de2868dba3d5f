"""Heads are the minimisers that their formulas say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import Ridge

from bilevel.estimators import heads
from bilevel.estimators.heads import TaskRows
from bilevel.estimators.objectives import penalty as cost


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X, weight = rng.normal(size=(40, 3)), rng.integers(1, 4, 40) * 1.0
    return TaskRows(X, np.arange(40), X[:, 0] + X[:, 1] ** 2, weight / weight.mean())


@pytest.fixture
def penalty():
    """Of five features, the intercept and the scale."""
    return np.array([0.01, 0.1, 0.02, 0.3, 0.05, 0.2, 0.4])


def test_least_squares_is_ridge(shared, rows):
    """Ridge minimises the sum of squares + alpha |y|^2, so that alpha is n times our penalty."""
    features = shared.transform(rows.X, rows.place, np.float64)
    penalty = np.append(np.full(5, 0.01), [1e-6, 1.0])
    head = heads.least_squares(shared, rows, penalty)
    ridge = Ridge(alpha=0.01 * 40).fit(features, rows.target, sample_weight=rows.weight)
    np.testing.assert_allclose(head.weights[:, 0], ridge.coef_, rtol=1e-4)
    np.testing.assert_allclose(head.outputs(features)[:, 0], ridge.predict(features), atol=1e-5)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
def test_logistic_is_where_the_slope_of_g_vanishes(shared, rows, penalty, classes, centred):
    """g with a softmax column a class, as the lower level has it, and a penalty for each feature."""
    labels = np.digitize(rows.target, [0.5, 1.5][: classes - 1])
    centre = np.random.default_rng(1).normal(size=(6, classes)) if centred else None
    head = heads.classes(shared, rows._replace(target=labels), penalty, np.array(["a", "b", "c"][:classes]), centre)
    features = jnp.asarray(shared.transform(rows.X, rows.place, np.float64))
    # A free intercept where there is no centre: objectives have it so, and it is given here.
    x = {
        "penalty": jnp.log(penalty[[5, 6, 0, 0, 1, 2, 3, 4]]),
        "centre": jnp.zeros((6, classes)) if centre is None else centre,
    }

    def g(weights, intercept):
        scores = features @ weights + intercept[None]
        own = jnp.take_along_axis(jax.nn.log_softmax(scores), jnp.asarray(labels)[:, None], axis=1)[:, 0]
        return -jnp.mean(rows.weight * own) + cost(x, jnp.vstack([weights, intercept]))

    slopes = jax.grad(g, argnums=(0, 1))(jnp.asarray(head.weights), jnp.asarray(head.intercept))
    assert all(np.max(np.abs(slope)) < 1e-5 for slope in slopes)
    assert head.classes.tolist() == ["a", "b", "c"][:classes]
    assert np.allclose(head.probabilities(np.asarray(features)).sum(axis=1), 1)


def test_one_label_gives_shares(shared):
    """Three rows of "b" and one row of all tasks', a quarter of which is "a"."""
    head = heads.constant(shared, "b", 3.0, np.array(["a", "b"]), np.array([0.25, 0.75]))
    np.testing.assert_allclose(head.probabilities(np.zeros((2, 5))), [[1 / 16, 15 / 16]] * 2)


def test_a_strong_penalty_gives_the_centre_and_a_weak_one_the_own_fit(shared, rows):
    centre = np.arange(6.0)[:, None]
    near = heads.least_squares(shared, rows, np.full(7, 1e6), centre)
    np.testing.assert_allclose(np.append(near.weights, near.intercept), centre[:, 0], atol=1e-3)
    own, plain = (heads.least_squares(shared, rows, np.full(7, 1e-9), c) for c in (centre, None))
    features = shared.transform(rows.X, rows.place, np.float64)
    np.testing.assert_allclose(own.outputs(features), plain.outputs(features), atol=1e-4)


def test_rows_that_cannot_have_a_class_say_nothing_of_it(shared, rows, penalty):
    """Two tasks of two classes each, of three: the same as a softmax over the classes of each row's task."""
    known = np.where(np.arange(40)[:, None] < 20, [[True, True, False]], [[False, True, True]])
    labels = np.where(np.arange(40) < 20, 0, 1) + (rows.target > 0.5)
    head = heads.classes(shared, rows._replace(target=labels), penalty, np.arange(3), None, known)
    y = np.vstack([head.weights, head.intercept])
    features = jnp.asarray(shared.transform(rows.X, rows.place, np.float64))

    def g(y):
        scores = jnp.where(known, features @ y[:-1] + y[-1:], -jnp.inf)
        own = jnp.take_along_axis(jax.nn.log_softmax(scores), jnp.asarray(labels)[:, None], axis=1)[:, 0]
        return -jnp.mean(rows.weight * own) + jnp.sum(penalty[:-1, None] * y**2)

    assert np.max(np.abs(jax.grad(g)(jnp.asarray(y)))) < 1e-5
