"""Values that belong to tasks: what is done to them is done to every task, in whatever group it is."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.problem.per_task import InOrder, PerTask, fields_of, for_groups, for_tasks


class Pair(NamedTuple):
    left: object
    right: object


# Two tasks with a vector of three entries, one with a vector of four.
VALUES = PerTask((jnp.arange(6.0).reshape(2, 3), jnp.arange(4.0)[None]))
SCALES = PerTask((jnp.array([1.0, 10.0]), jnp.array([100.0])))


def test_for_tasks_is_a_loop_over_the_tasks():
    seen = for_tasks(lambda value, scale: Pair(scale * value[::-1], value.sum()), VALUES, SCALES)
    for made, values, scales in zip(seen, VALUES, SCALES, strict=True):
        for k, (value, scale) in enumerate(zip(values, scales, strict=True)):
            np.testing.assert_array_equal(made.left[k], scale * value[::-1])
            np.testing.assert_array_equal(made.right[k], value.sum())


def test_for_groups_gets_the_tasks_of_a_group_at_once():
    assert for_groups(lambda values, scales: (values.shape, scales.shape), VALUES, SCALES) == PerTask(
        (((2, 3), (2,)), ((1, 4), (1,)))
    )


def test_fields_are_taken_apart():
    pairs = for_groups(Pair, VALUES, SCALES)
    left, right = fields_of(pairs)
    assert [group is own for group, own in zip((*left, *right), (*VALUES, *SCALES), strict=True)] == [True] * 4
    with pytest.raises(ValueError, match="zip"):
        fields_of(PerTask(((1, 2), (1,))))


@pytest.mark.parametrize("value", [VALUES, InOrder(jnp.arange(3.0))], ids=["PerTask", "InOrder"])
def test_they_are_pytrees_and_keep_their_kind(value):
    twice = jax.jit(lambda v: jax.tree.map(lambda a: 2 * a, v))(value)
    assert type(twice) is type(value)
    assert jax.tree.structure(twice) == jax.tree.structure(value)
    assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(2 * a, b), value, twice))


def test_a_value_goes_to_its_task_and_back_where_groups_interleave():
    def loss(x, y, batch):
        return jnp.mean(batch)

    def other(x, y, batch):
        return jnp.mean(batch)

    kinds = (loss, other, loss, other, other)
    tasks = [bl.Task(jnp.full(2, float(i)), jnp.ones(1), upper=f) for i, f in enumerate(kinds)]
    problem = bl.Problem(loss, loss, tasks)
    ordered = {"a": jnp.arange(5.0), "b": jnp.arange(10.0).reshape(5, 2)}
    split = problem.split(ordered)
    np.testing.assert_array_equal(split.groups[0]["a"], [0, 2])
    np.testing.assert_array_equal(split.groups[1]["b"], [[2, 3], [6, 7], [8, 9]])
    assert jax.tree.all(jax.tree.map(np.array_equal, problem.join(split), ordered))
    own = problem.each(lambda task, a: task.lower(None, None, None) - a, PerTask(tuple(g["a"] for g in split)))
    np.testing.assert_array_equal(problem.join(own), np.zeros(5))
    assert problem.fill(3, jnp.float32) == PerTask((pytest.approx([3, 3]), pytest.approx([3, 3, 3])))
