"""The problem that is made of rows: what padding may not change, and how much is held."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bilevel.estimators import learning, networks
from bilevel.estimators.learning import Falling, Learner
from bilevel.estimators.objectives import cross_entropy, head_losses
from bilevel.estimators.rows import WeightedRows
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem
from bilevel.problem.task import Task

SIZES = (50, 30)


def learner(sizes=SIZES):
    rng = np.random.default_rng(0)
    n = sum(sizes)
    X, task = rng.normal(size=(n, 3)), np.repeat([0, 1], sizes)
    rows = WeightedRows(
        np.arange(n), task, np.arange(n, dtype=np.int32) % 3, rng.integers(1, 4, n) * 1.0, np.arange(n) % 3
    )
    shared = networks.dense(3, (5,), 0)._replace(centre=X.mean(axis=0), scale=X.std(axis=0))
    return Learner(X, rows, ["a", "b"], np.ones((2, 3), bool), shared, np.log([0.1] * 4), None, 1.0)


def problem(own, limit=10**6, batch="auto"):
    losses = head_losses(own.shared.function, cross_entropy)
    like = Task.stack(**own._examples(), names=own.names)
    return own._filled(Problem(losses.upper, losses.lower, [like]), limit, batch)


def slopes(own, y):
    x = {"network": own.shared.x, "penalty": jnp.log(jnp.full(4, 0.1, jnp.float32))}
    filled = problem(own)
    loss = jax.value_and_grad(lambda x, y: filled.losses(x, y, "validation").sum(), argnums=(0, 1))
    return jax.jit(loss)(x, PerTask((y,)))


def test_padding_changes_losses_and_slopes_by_rounding_only(monkeypatch):
    y = jnp.asarray(np.random.default_rng(1).normal(size=(2, 6, 4)), jnp.float32)
    value, (x_slope, y_slope) = slopes(learner(), y)
    monkeypatch.setattr(learning, "padded", lambda count, least=1: count)
    monkeypatch.setattr(networks, "padded", lambda count, least=1: count)
    plain_value, (plain_x, plain_y) = slopes(learner(), y[..., :3])
    np.testing.assert_allclose(value, plain_value, rtol=1e-6)
    np.testing.assert_allclose(y_slope.groups[0][..., :3], plain_y.groups[0], rtol=1e-4, atol=1e-6)
    assert np.all(np.asarray(y_slope.groups[0][..., 3]) == 0)
    first, plain_first = x_slope["network"][0]["w"], plain_x["network"][0]["w"]
    assert first.shape == (8, 5)
    np.testing.assert_allclose(first[:3], plain_first, rtol=1e-4, atol=1e-6)
    assert np.all(np.asarray(first[3:]) == 0)


def test_a_part_is_its_rows_and_weights_are_one_in_the_mean():
    own = learner()
    (group,) = problem(own).groups
    for number, source in enumerate((group.train, group.validation, group.selection)):
        for k in (0, 1):
            rows = own.rows.take((own.rows.task == k) & (own.rows.part == number))
            found = source.task(k)
            np.testing.assert_allclose(found.inputs[:, :3], own.shared.inputs(own.X[rows.place])[:, :3])
            assert found.target.tolist() == rows.target.tolist()
            np.testing.assert_allclose(found.weight.mean(), 1, rtol=1e-6)
            np.testing.assert_allclose(found.weight / found.weight[0], rows.weight / rows.weight[0], rtol=1e-6)


def test_programs_are_shared_by_tables_of_about_the_same_size():
    kinds = {jax.tree.structure(problem(learner(sizes))) for sizes in (SIZES, (40, 35), (51, 51))}
    shapes = {tuple(a.shape for a in jax.tree.leaves(problem(learner(s)))) for s in (SIZES, (40, 35), (51, 51))}
    assert len(kinds) == len(shapes) == 1


def test_no_more_rows_than_a_limit_and_batches_where_there_are_many():
    (group,) = problem(learner((3000, 60)), limit=100).groups
    assert group.train.size.tolist() == [100, 20]
    (group,) = problem(learner((9000, 60))).groups
    assert group.lower_batch == group.upper_batch == learning.BATCH
    assert group.validation.size.tolist() == [3000, 20]
    assert problem(learner()).groups[0].lower_batch is None


def test_a_rate_falls_to_the_last_step():
    rate = Falling(0.5, 4.0)
    assert [float(rate(jnp.array(k))) for k in (0, 1, 3, 4, 9)] == pytest.approx([0.5, 0.375, 0.125, 0.125, 0.125])
    assert jax.tree.structure(rate) == jax.tree.structure(Falling(0.1, 9.0))
