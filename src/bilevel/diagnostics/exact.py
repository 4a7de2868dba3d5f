"""The upper objective with solved lower problems: l_i(x) = f_i(x, y_i*(x)) and its true gradient, on all the data."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bilevel.diagnostics.newton import LowerSolution, solve_lower
from bilevel.hypergradients.conjugate_gradient import ConjugateGradient
from bilevel.oracles.upper import Point, Upper
from bilevel.problem.group import UpperSample
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem

PRODUCTS = 1000  # the most Hessian products per linear system


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
