"""The upper objective with solved lower problems: l_i(x) = f_i(x, y_i*(x)) and its true gradient, on all the data."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bilevel.hypergradients.conjugate_gradient import ConjugateGradient
from bilevel.lower.newton import Newton
from bilevel.oracles.upper import Point, Upper
from bilevel.problem.group import UpperSample
from bilevel.problem.per_task import PerTask, fields_of
from bilevel.problem.problem import Problem

PRODUCTS = 1000  # the most Hessian products per linear system
_NEWTON = Newton()


class LowerSolution(NamedTuple):
    """The lower level at x, solved; arrays are in the order of the tasks."""

    y: PerTask[Any]  # y_i*(x)
    losses: jax.Array  # l_i(x) = f_i(x, y_i*(x)), on all validation data
    errors: jax.Array  # about |y_i - y_i*|: the last Newton step
    converged: jax.Array


@jax.jit
def solve_lower(problem: Problem, x: Any, y: PerTask[Any]) -> LowerSolution:
    """Solves every lower problem from y."""
    solved, _, error, converged, _ = fields_of(problem.each(lambda task, y: _NEWTON.solve(task, x, y), y))
    return LowerSolution(solved, problem.validation_losses(x, solved), problem.join(error), problem.join(converged))


def weighted_gradient(problem: Problem, x: Any, y: PerTask[Any], weights: jax.Array) -> tuple[LowerSolution, Any]:
    """The lower problems solved from y, and the gradient of F(x, weights) = sum_i weights_i l_i(x)."""
    solved = solve_lower(problem, x, y)
    return solved, gradient_at(problem, x, solved.y, weights)


@jax.jit
def gradient_at(problem: Problem, x: Any, y: PerTask[Any], weights: jax.Array) -> Any:
    """The gradient of F(x, weights) at solved y."""
    exact, point, samples = _exactly(problem, x, y, weights)
    return exact.direction(point, samples).direction


@jax.jit
def task_gradients(problem: Problem, x: Any, y: PerTask[Any]) -> Any:
    """grad l_i(x) of every task at solved y, in the order of the tasks: n copies of x."""
    uniform = jnp.full(problem.size, 1 / problem.size, jnp.result_type(*jax.tree.leaves(x)))
    exact, point, samples = _exactly(problem, x, y, uniform)
    return exact.directions(point, samples).direction


def _exactly(
    problem: Problem, x: Any, y: PerTask[Any], weights: jax.Array
) -> tuple[Upper, Point, PerTask[UpperSample]]:
    """Conjugate gradients to the last digits, on all the data whatever the problem's batches."""
    samples = PerTask(tuple(UpperSample(None, None, keys) for keys in problem.keys(jax.random.key(0))))
    eps = float(jnp.finfo(jnp.result_type(*jax.tree.leaves(y))).eps)
    exact = Upper(problem, ConjugateGradient(PRODUCTS, eps**0.75))
    point = Point(x, y, weights, PerTask(((),) * len(y)))
    return exact, point._replace(v=exact.init(point, samples)), samples
