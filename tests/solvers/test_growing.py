"""Tasks that come during a run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.testing.common import Setting, make

OPTIONS = {"upper_lr": 0.05, "lower_lr": 0.2, "weighting": bl.weightings.Exponentiated(0.1)}


def names_and_rows(problem, values):
    return {problem.names[int(i)]: jax.tree.map(lambda a: np.asarray(a[k]), v)  # noqa: B023
            for g, v in zip(problem.groups, values, strict=True) for k, i in enumerate(g.ids)}  # fmt: skip


@pytest.mark.parametrize("sampling", [bl.sampling.All(), bl.sampling.Mixture(3)])
def test_what_was_there_stays_and_what_comes_starts(sampling):
    """Three tasks of two groups, then five in another order."""
    solver = bl.MORBiT(**OPTIONS, sampling=sampling)
    whole = make(Setting(order=(4, 2, 0, 3, 1)), jnp.float64)
    fewer = make(Setting(order=(0, 1, 2)), jnp.float64)
    state = jax.jit(solver.stepper().start)(*fewer, jax.random.key(0), jnp.asarray(10))
    advance = jax.jit(solver.stepper().step)
    for k in range(2):
        state, _ = advance(fewer.problem, state, jax.random.key(k))
    grown = bl.add_tasks(solver, state, fewer.problem, whole.problem, key=jax.random.key(5), steps=10)
    fresh = solver.stepper().start(whole.problem, state.x, whole.y, jax.random.key(5), jnp.asarray(10))
    for name in ("x", "upper", "step"):
        assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, b), getattr(grown, name), getattr(state, name)))
    for name in ("y", "v", "lower"):
        old, new, first = (
            names_and_rows(p, getattr(s, name))
            for p, s in ((fewer.problem, state), (whole.problem, grown), (whole.problem, fresh))
        )
        for task, rows in new.items():
            wanted = old.get(task, first[task])
            assert jax.tree.all(jax.tree.map(np.array_equal, rows, wanted)), (name, task)
    weights = dict(zip(whole.problem.names, grown.weights.tolist(), strict=True))
    for task, weight in zip(fewer.problem.names, state.weights.tolist(), strict=True):
        assert weights[task] == pytest.approx(weight * 3 / 5, rel=1e-14)
    assert weights["task 3"] == weights["task 4"] == pytest.approx(1 / 5)
    assert float(grown.weights.sum()) == pytest.approx(1, rel=1e-14)
    after, _ = jax.eval_shape(solver.stepper().step, whole.problem, grown, jax.random.key(7))
    assert jax.tree.structure(after) == jax.tree.structure(grown)
    if sampling.draws:
        table = dict(zip(fewer.problem.names, state.sampling.owed.last.value.tolist(), strict=True))
        for task, loss in zip(whole.problem.names, grown.sampling.owed.last.value.tolist(), strict=True):
            assert loss == table.get(task, loss)
        np.testing.assert_array_equal(grown.sampling.counted.value, grown.weights)


def test_a_task_that_is_gone_is_named():
    whole, fewer = make(Setting(), jnp.float64), make(Setting(order=(0, 1, 2)), jnp.float64)
    solver = bl.MORBiT(**OPTIONS)
    state = solver.stepper().start(*whole, jax.random.key(0), jnp.asarray(10))
    with pytest.raises(ValueError, match="lacks the task 'task 3'"):
        bl.add_tasks(solver, state, whole.problem, fewer.problem, key=jax.random.key(0), steps=10)
