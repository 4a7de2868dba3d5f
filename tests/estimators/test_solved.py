"""The lower level in closed form: scikit-learn's ridge, and a gradient that is that of the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import Ridge

from bilevel.estimators.heads import penalty_matrix
from bilevel.estimators.objectives import INTERCEPT, Batch, SolvedHeads, SquaredLoss
from bilevel.problem.minmax import MinMaxProblem
from bilevel.problem.sources import Ragged
from bilevel.problem.task import Task

SIZES = (30, 20)
SHARES = np.array([0.5, 2.0])


def features(x, inputs):
    return jnp.tanh(inputs * x["scale"][None]) @ x["matrix"]


def source(role, padding):
    """Rows of two tasks, and rows behind them that belong to none."""
    rng = np.random.default_rng(role)
    n = sum(SIZES)
    inputs, weight = rng.normal(size=(n, 3)), rng.integers(1, 3, n) * 1.0
    task = np.repeat([0, 1], SIZES)
    weight = weight / (np.bincount(task, weight) / SIZES)[task]
    target = inputs[:, 0] * np.where(task == 0, 1, -1) + inputs[:, 1] ** 2
    batch = Batch(inputs, target, np.ones((n, 1), bool), weight, SHARES[task])
    batch = jax.tree.map(lambda a: jnp.pad(a, [(0, padding), *[(0, 0)] * (a.ndim - 1)]), batch)
    return Ragged(batch, jnp.array([0, 30]), jnp.array(SIZES), 30 + padding)


def problem(padding=0):
    rows = Batch(np.zeros((2, 1, 3)), np.zeros((2, 1)), np.ones((2, 1, 1), bool), np.ones((2, 1)), np.ones((2, 1)))
    own = MinMaxProblem(
        SquaredLoss(features), [Task.stack(train=rows, validation=rows)], objective=SolvedHeads(features)
    )
    group = own.groups[0].__class__(
        **vars(own.groups[0]) | {"train": source(0, padding), "validation": source(1, padding)}
    )
    return own.replace(groups=(group,))


@jax.jit
def heads_of(own, x):
    _, heads = own.each(lambda task: SolvedHeads(features).solution(task, x)).groups[0]
    return heads


@jax.jit
def objectives(own, x):
    return own.objectives(x, own.draw(jax.random.key(0)))


@pytest.fixture
def x():
    rng = np.random.default_rng(2)
    network = {"scale": jnp.array([1.0, 0.5, 2.0]), "matrix": jnp.asarray(rng.normal(size=(3, 4)))}
    return {
        "network": network,
        "penalty": jnp.log(jnp.array([0.4, 0.6, 0.7, 0.1, 0.02, 0.3, 0.05])),
        "head": jnp.zeros((5, 1)),
    }


def test_heads_are_those_of_ridge(x):
    """A penalty for each feature is one for all, of features divided by its root."""
    own = problem()
    heads = heads_of(own, x)
    p = np.exp(np.asarray(x["penalty"][3:]))
    for task, rows in ((0, slice(0, 30)), (1, slice(30, 50))):
        batch = jax.tree.map(lambda a, rows=rows: np.asarray(a)[rows], own.groups[0].train.data)
        scaled = np.asarray(features(x["network"], batch.inputs)) / np.sqrt(p)
        count = len(batch.target)
        ridge = Ridge(alpha=SHARES[task] * count).fit(scaled, batch.target, sample_weight=batch.weight)
        found = np.asarray(heads[task])[:, 0]
        np.testing.assert_allclose(found[:-1] * np.sqrt(p), ridge.coef_, rtol=1e-4, atol=10 * INTERCEPT)
        np.testing.assert_allclose(found[-1], ridge.intercept_, rtol=1e-4, atol=10 * INTERCEPT)


def test_heads_go_from_the_centre(x):
    """With z = y - c and targets less what the centre says, it is ridge again, with the penalty of heads in files."""
    own, centre = problem(), jnp.arange(1.0, 6.0)[:, None]
    heads = heads_of(own, x | {"centre": centre})
    p = np.exp(np.asarray(jnp.append(x["penalty"][3:], x["penalty"][:2])))
    P = penalty_matrix(p, np.arange(1.0, 6.0))
    for task, rows in ((0, slice(0, 30)), (1, slice(30, 50))):
        batch = jax.tree.map(lambda a, rows=rows: np.asarray(a)[rows], own.groups[0].train.data)
        phi = np.column_stack([features(x["network"], batch.inputs), np.ones(len(batch.target))])
        A = phi.T @ (batch.weight[:, None] * phi) / len(phi) + SHARES[task] * P
        b = phi.T @ (batch.weight * (batch.target - phi @ np.arange(1.0, 6.0))) / len(phi)
        np.testing.assert_allclose(np.asarray(heads[task] - centre)[:, 0], np.linalg.solve(A, b), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("centred", [False, True])
def test_the_gradient_is_that_of_the_validation_loss_of_the_solution(x, centred):
    own = problem()
    x = x | ({"centre": jnp.arange(1.0, 6.0)[:, None]} if centred else {})
    learnt = {name: value for name, value in x.items() if name != "head"}

    @jax.jit
    def whole(learnt):
        """Solved anew at every point, so that differences see all of it."""
        return own.validation_losses(learnt | {"head": x["head"]}, None)

    weights = jnp.array([0.3, 0.7])
    value, slope = jax.jit(jax.value_and_grad(lambda x: weights @ objectives(own, x)))(x)
    np.testing.assert_allclose(value, weights @ whole(learnt), rtol=1e-12)
    direction = jax.tree.map(lambda a: jnp.cos(jnp.arange(a.size, dtype=a.dtype)).reshape(a.shape), learnt)
    ends = [weights @ whole(jax.tree.map(lambda a, d, e=e: a + e * d, learnt, direction)) for e in (-1e-5, 1e-5)]
    along = sum(jax.tree.leaves(jax.tree.map(lambda s, d: jnp.vdot(s, d), {n: slope[n] for n in learnt}, direction)))
    np.testing.assert_allclose(along, (ends[1] - ends[0]) / 2e-5, rtol=1e-6)
    assert np.all(np.asarray(slope["head"]) == 0)


def test_padding_does_not_matter(x):
    losses = [objectives(own, x) for own in (problem(), problem(14))]
    np.testing.assert_allclose(*losses, rtol=1e-12)
