"""The upper direction of all tasks, in closed form, for tasks in two groups."""

import jax
import jax.numpy as jnp
import numpy as np

import bilevel as bl
from bilevel.hypergradients import Exact
from bilevel.hypergradients.upper import Point, Upper
from bilevel.problem.per_task import PerTask

TARGETS = np.array([[1.0, -1.0], [0.5, 2.0], [-2.0, 0.3]])
SHIFTS = np.array([2.0, -1.0, 0.5])
X = jnp.array([0.7, -0.4])
WEIGHTS = np.array([0.5, 0.0, 0.5])


def upper(x, y, batch):
    return jnp.mean(jnp.sum((y[None] - batch) ** 2, axis=1)) / 2 + jnp.sum(x**2)


def other(x, y, batch):
    return 3 * upper(x, y, batch)


def lower(x, y, batch):
    """y* = shift x, and the Hessian is 2."""
    return jnp.mean(jnp.sum((y[None] - batch * x[None]) ** 2, axis=1))


TASKS = [
    bl.Task(jnp.full((1, 1), shift), jnp.array(target)[None], upper=own, y=jnp.zeros(2))
    for shift, target, own in zip(SHIFTS, TARGETS, (None, other, None), strict=True)
]
PROBLEM = bl.Problem(upper, lower, TASKS)
SCALES = np.array([1.0, 3.0, 1.0])
# d/dx f(x, shift x), and f
GAPS = SHIFTS[:, None] * np.asarray(X) - TARGETS
GRADIENTS = SCALES[:, None] * (2 * np.asarray(X) + SHIFTS[:, None] * GAPS)
LOSSES = SCALES * (np.sum(GAPS**2, axis=1) / 2 + np.sum(np.asarray(X) ** 2))


def at_the_solution():
    y = PROBLEM.split(jnp.array(SHIFTS)[:, None] * X[None])
    point = Point(X, y, jnp.array(WEIGHTS), PerTask(((), ())))
    samples, level = PROBLEM.draw_upper(jax.random.key(0)), Upper(PROBLEM, Exact())
    return level, point._replace(v=level.init(point, samples)), samples


def test_directions_are_the_gradients_in_the_order_of_the_tasks():
    level, point, samples = at_the_solution()
    seen = jax.jit(level.directions)(point, samples)
    assert len(PROBLEM.groups) == 2
    np.testing.assert_allclose(seen.direction, GRADIENTS, rtol=1e-12)
    np.testing.assert_allclose(seen.losses, LOSSES, rtol=1e-12)


def test_the_direction_is_the_sum_of_the_weighted_gradients():
    level, point, samples = at_the_solution()
    seen = jax.jit(level.direction)(point, samples)
    np.testing.assert_allclose(seen.direction, WEIGHTS @ GRADIENTS, rtol=1e-12)
    np.testing.assert_allclose(seen.losses, LOSSES, rtol=1e-12)


def test_residuals_of_linear_systems_are_right_also_of_a_task_without_weight():
    """f_y - A v with A = 2, at a v that is off by 1."""
    level, point, samples = at_the_solution()
    v = jax.jit(level.prepare)(point, samples)
    away = jax.tree.map(lambda a: a + 1, v)
    found = jax.jit(level.with_residuals)(point._replace(v=away), samples)
    np.testing.assert_allclose(PROBLEM.join(found.of_v), np.full((3, 2), -2.0), rtol=1e-9)
