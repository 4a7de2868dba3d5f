"""What STABLE keeps of every task, its second derivatives as matrices, and what it does with them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from bilevel._core import dense
from bilevel._core.linear import Second, second
from bilevel.hypergradients.base import upper_gradient
from bilevel.oracles.upper import Point
from bilevel.problem.group import TaskView, UpperSample
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Sample


def positive(A: jax.Array, floor: float) -> jax.Array:
    """The nearest symmetric matrix without curvatures below `floor` times the largest."""
    values, vectors = dense.eigh((A + A.T) / 2)
    values = jnp.maximum(values, jnp.asarray(floor, A.dtype) * jnp.max(jnp.abs(values)))
    return (vectors * values[None]) @ vectors.T


def seconds(problem: Problem, x: Any, y: PerTask[Any], rows: PerTask[Sample]) -> PerTask[Second]:
    """A and J of every task."""
    return problem.each(lambda task, y, sample: second(task.lower, x, y, sample), y, rows)


def implicit_term(problem: Problem, point: Point, matrices: PerTask[Second], samples: PerTask[UpperSample]) -> Any:
    """sum_i lambda_i J^_i A^_i^-1 f_y,i."""

    def right(task: TaskView, y: Any, sample: UpperSample) -> jax.Array:
        return ravel_pytree(upper_gradient(task, point.x, y, sample))[0]

    def image(task: TaskView, y: Any, sample: UpperSample, matrices: Second) -> Any:
        v = dense.solve(matrices.A, right(task, y, sample))
        return jax.tree.map(lambda J: jnp.tensordot(v.astype(J.dtype), J, 1), matrices.J)

    return problem.weighted_sum(point.weights, problem.each(image, point.y, samples, matrices))


def along(second: Second, move: Any, y: Any) -> Any:
    """A^^-1 J^' (move of x), as y is shaped."""
    flat, unravel = ravel_pytree(y)
    change = sum(jnp.tensordot(J, m, m.ndim) for J, m in zip(*map(jax.tree.leaves, (second.J, move)), strict=True))
    return unravel(dense.solve(second.A, jnp.asarray(change, flat.dtype)))
