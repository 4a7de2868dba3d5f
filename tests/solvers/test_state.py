"""The two halves of every solver's state, and some of a problem's tasks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel.hypergradients.trackers import Momentum, Storm
from bilevel.problem.per_task import InOrder, PerTask
from bilevel.solvers._base.state import Halves
from bilevel.solvers._base.task_subset import Chosen
from bilevel.testing.common import Setting, make
from every_solver import QUICK, every

SOLVERS = {name: getattr(bl, name)() for name in bl.solvers.__all__}
MORE = {
    "MRBO, per task": bl.MRBO(tracker=Storm(per_task=True)),
    "VRBO, per task": bl.VRBO(tracker=Storm(per_task=True)),
    "MASOBA, per task": bl.MASOBA(tracker=Momentum(per_task=True)),
    "F2SA, with Adam": bl.F2SA(0.1, 0.1, lower_rule=optax.adam),
    "Tandem, multiplicative": bl.Tandem(weighting=bl.weightings.Exponentiated()),
}
SOLVERS |= MORE
NAMES = every(SOLVERS, quick=(*QUICK, "Descent", *MORE))


@functools.cache
def shapes(name, order=(0, 1, 2, 3, 4)):
    """The shapes of a solver's first state, with rates to choose where it can; nothing is computed."""
    solver = SOLVERS[name]
    example = make(Setting(solver.problem_type, order), jnp.float64)
    state = jax.eval_shape(
        lambda x, y: solver.start(example.problem, x, y, jax.random.key(0), 10), example.x, example.y
    )
    return example.problem, state


@pytest.mark.parametrize("name", NAMES)
def test_a_state_taken_apart_and_joined_is_the_same(name):
    _, state = shapes(name)
    halves = Halves.of(state)
    joined = halves.join()
    assert jax.tree.structure(joined) == jax.tree.structure(state)
    assert jax.tree.leaves(joined) == jax.tree.leaves(state)
    counts = [len(jax.tree.leaves(half)) for half in (halves.shared, halves.tasks)]
    assert sum(counts) == len(jax.tree.leaves(state))
    assert all(counts)


@pytest.mark.parametrize("name", NAMES)
def test_what_belongs_to_tasks_has_one_row_a_task_and_what_is_shared_has_not(name):
    """Two of the five tasks fewer: all leaves of the one half are shorter then, and none of the other."""
    (problem, all_tasks), (few, fewer) = shapes(name), shapes(name, (0, 1, 2))
    assert [group.size for group in problem.groups] == [3, 2]
    assert [group.size for group in few.groups] == [2, 1]
    large, small = Halves.of(all_tasks), Halves.of(fewer)
    assert [a.shape for a in jax.tree.leaves(large.shared)] == [a.shape for a in jax.tree.leaves(small.shared)]
    for a, b in zip(jax.tree.leaves(large.tasks), jax.tree.leaves(small.tasks), strict=True):
        assert (a.shape[0], b.shape[0]) in ((5, 3), (3, 2), (2, 1))
        assert a.shape[1:] == b.shape[1:]


def one_group(size=4):
    def loss(x, y, batch):
        return jnp.mean((y - x * batch) ** 2)

    tasks = [
        bl.Task(jnp.full(2, 1.0 + i), jnp.full(2, 10.0 + i), name=f"t{i}", y=jnp.array(float(i))) for i in range(size)
    ]
    return bl.Problem(loss, loss, tasks)


# ---------------------------------------------------------------- some of the tasks


def losses(problem, y):
    return problem.join(problem.each(lambda task, y: task.upper(jnp.array(1.0), y, None), y))


def test_chosen_tasks_of_one_group_are_a_problem_of_their_own():
    problem, key = one_group(), jax.random.key(3)
    chosen = Chosen.draw(problem, key, 2, jnp.float64)
    assert chosen.problem.size == 2
    assert len(set(np.asarray(chosen.index))) == 2
    y = PerTask((jnp.arange(4.0),))
    np.testing.assert_array_equal(chosen.mask, [1, 1])
    np.testing.assert_allclose(losses(chosen.problem, chosen.take(y)), losses(problem, y)[chosen.index])
    put = chosen.put(y, PerTask((jnp.array([7.0, 8.0]),)))
    expected = np.arange(4.0)
    expected[np.asarray(chosen.index)] = [7, 8]
    np.testing.assert_array_equal(put.groups[0], expected)
    np.testing.assert_array_equal(chosen.put(InOrder(jnp.arange(4.0)), InOrder(jnp.array([7.0, 8.0]))).value, expected)
    # A task that is chosen draws what it draws among all.
    for a, b in zip(*(jax.tree.leaves(p.keys(key)) for p in (chosen.problem, problem)), strict=True):
        np.testing.assert_array_equal(jax.random.key_data(a), jax.random.key_data(b)[np.asarray(chosen.index)])


def test_chosen_tasks_of_several_groups_are_told_by_a_mask():
    problem = make(Setting(), jnp.float64).problem
    chosen = Chosen.draw(problem, jax.random.key(3), 2, jnp.float64)
    assert chosen.problem is problem
    assert chosen.index is None
    assert sorted(chosen.mask.tolist()) == [0, 0, 0, 1, 1]
    old, new = (problem.split(start + jnp.arange(5.0)) for start in (0, 10))
    expected = np.arange(5.0) + 10 * np.asarray(chosen.mask)
    assert chosen.take(old) is old
    np.testing.assert_array_equal(problem.join(chosen.put(old, new)), expected)
    in_order = chosen.put(InOrder(jnp.arange(5.0)), InOrder(10 + jnp.arange(5.0)))
    np.testing.assert_array_equal(in_order.value, expected)


def test_without_a_number_all_tasks_are_chosen():
    problem = one_group()
    chosen = Chosen.draw(problem, jax.random.key(3), None, jnp.float64)
    assert chosen.problem is problem
    np.testing.assert_array_equal(chosen.mask, np.ones(4))
    y = PerTask((jnp.arange(4.0),))
    np.testing.assert_array_equal(chosen.put(y, PerTask((10 + jnp.arange(4.0),))).groups[0], 10 + np.arange(4.0))


def test_every_task_is_chosen_as_often_as_the_others():
    problem = make(Setting(), jnp.float64).problem
    draw = lambda key: Chosen.draw(problem, key, 2, jnp.float64).mask  # noqa: E731
    masks = jax.vmap(draw)(jax.random.split(jax.random.key(0), 2000))
    np.testing.assert_array_equal(masks.sum(axis=1), np.full(2000, 2))
    np.testing.assert_allclose(masks.mean(axis=0), np.full(5, 2 / 5), atol=4 * np.sqrt(0.24 / 2000))
