"""The upper objective with solved lower problems: l_i(x) = f_i(x, y_i*(x)) and its true gradient, on all the data."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bilevel.diagnostics.newton import Solved, solve_lower
from bilevel.hypergradients.conjugate_gradient import ConjugateGradient
from bilevel.oracles.upper import Upper
from bilevel.problem.group import UpperSample
from bilevel.problem.problem import Problem

PRODUCTS = 1000  # at most so many Hessian products per linear system


def weighted_gradient(problem: Problem, x: Any, y: tuple, weights: jax.Array) -> tuple[Solved, Any]:
    """The lower problems solved from y, and the gradient of F(x, weights) = sum_i weights_i l_i(x)."""
    solved = solve_lower(problem, x, y)
    return solved, _weighted(problem, x, solved.y, weights)


@jax.jit
def _weighted(problem: Problem, x: Any, y: tuple, weights: jax.Array) -> Any:
    upper, state, samples = _exactly(problem, x, y)
    return upper.direction(problem, x, y, weights, state, samples).direction


@jax.jit
def task_gradients(problem: Problem, x: Any, y: tuple) -> Any:
    """grad l_i(x) of every task at solved y, in the order of the tasks: n copies of x."""
    upper, state, samples = _exactly(problem, x, y)
    return upper.directions(problem, x, y, state, samples, jnp.result_type(*jax.tree.leaves(x))).direction


def _exactly(problem: Problem, x: Any, y: tuple) -> tuple[Upper, tuple, tuple]:
    """Conjugate gradients to the last digits, on all the data whatever the problem's batches."""
    key = jax.random.key(0)
    samples = tuple(UpperSample(None, None, group.keys(key)) for group in problem.groups)
    eps = float(jnp.finfo(jnp.result_type(*jax.tree.leaves(y))).eps)
    upper = Upper(ConjugateGradient(PRODUCTS, eps**0.75))
    return upper, upper.init(problem, x, y, samples), samples
