"""The lower problems solved to tolerance, on all the data, by Newton's method.

Why not optimistix: its Newton is a root finder of full steps, while here g may have no positive
curvature at the start, which needs (1) and (2) to go downhill.

For one task, with A the Hessian and s the slope of g in y:

    (1)  d ~ -A^-1 s      for small y by a Cholesky factorisation of A, straight down where it has none; for larger y by
                          conjugate gradients, until the residual is a small fraction of s or the curvature not positive
    (2)  y <- y + t d     t = 1, 1/2, 1/4, ... until g, or where rounding hides g, |s|, has fallen enough

Near y* the step d is the distance to it, which tells when to stop and how well y* is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from bilevel._core import dense
from bilevel._core.derivatives import hessian_product
from bilevel.problem.group import TaskView
from bilevel.problem.per_task import PerTask, fields_of
from bilevel.problem.problem import Problem

NEWTON_STEPS = 100
HALVINGS = 25
DENSE = 512  # numbers in y up to which A is built: all its columns share what g computes of x and the data
SUFFICIENT = 1e-4  # the fraction of the predicted decrease that a step must achieve


class LowerSolution(NamedTuple):
    """The lower level at x, solved; arrays are in the order of the tasks."""

    y: PerTask[Any]  # y_i*(x)
    losses: jax.Array  # l_i(x) = f_i(x, y_i*(x)), on all validation data
    errors: jax.Array  # about |y_i - y_i*|: the last Newton step
    converged: jax.Array


class Ended(NamedTuple):
    """One lower problem, solved."""

    y: Any
    error: jax.Array
    converged: jax.Array


class Place(NamedTuple):
    """Where Newton's method is; y is flat."""

    step: jax.Array
    y: jax.Array
    value: jax.Array
    slope: jax.Array
    error: jax.Array
    ended: jax.Array
    converged: jax.Array


@jax.jit
def solve_lower(problem: Problem, x: Any, y: PerTask[Any]) -> LowerSolution:
    """Solves every lower problem from y."""
    solved, error, converged = fields_of(problem.each(lambda task, y: newton(task, x, y), y))
    return LowerSolution(solved, problem.validation_losses(x, solved), problem.join(error), problem.join(converged))


def tolerance(dtype: Any) -> float:
    """The relative accuracy of a solution: 4e-11 in double precision, 2e-5 in single."""
    return float(jnp.finfo(dtype).eps) ** (2 / 3)


def newton(task: TaskView, x: Any, y: Any) -> Ended:
    """Minimises g_i(x, .) from y."""
    flat, unravel = ravel_pytree(y)
    evaluate = jax.value_and_grad(lambda flat: task.lower(x, unravel(flat), None))
    first, slope = evaluate(flat)
    wanted, eps = tolerance(flat.dtype), jnp.finfo(flat.dtype).eps
    scale = jnp.linalg.norm(slope)

    def direct(here: Place) -> tuple[jax.Array, jax.Array]:
        hessian = jax.hessian(lambda flat: task.lower(x, unravel(flat), None))(here.y)
        direction = -dense.solve_positive(hessian, here.slope)
        return direction, jnp.all(jnp.isfinite(direction))

    def iterative(here: Place) -> tuple[jax.Array, jax.Array]:
        product = lambda v: ravel_pytree(hessian_product(task.lower, x, unravel(here.y), unravel(v), None))[0]  # noqa: E731
        part = jnp.clip(jnp.linalg.norm(here.slope) / jnp.where(scale > 0, scale, 1), 1e-3, 0.1)
        return descent(product, here.slope, part)

    def towards(here: Place) -> tuple[jax.Array, jax.Array]:
        if flat.size > DENSE:
            return iterative(here)
        direction, positive = direct(here)
        # Down along the slope where A has no factor: under vmap a choice computes both, and both is far more.
        return jnp.where(positive, direction, -here.slope), positive

    def advance(here: Place) -> Place:
        direction, solved = towards(here)
        y, value, slope, moved = search(evaluate, here, direction)
        error = jnp.linalg.norm(direction)
        reach = 1 + jnp.linalg.norm(here.y)
        # Where no step lowers g or its slope any more, rounding dominates, and y* is known as well as it can be.
        small = solved & (error <= jnp.where(moved, wanted, 10 * jnp.sqrt(eps)) * reach)
        return Place(here.step + 1, y, value, slope, error, small | ~moved, small)

    start = Place(
        jnp.zeros((), jnp.int32), flat, first, slope, jnp.zeros_like(scale), jnp.array(False), jnp.array(False)
    )
    end = jax.lax.while_loop(lambda here: (here.step < NEWTON_STEPS) & ~here.ended, advance, start)
    return Ended(unravel(end.y), end.error, end.converged & jnp.isfinite(end.error))


def descent(product: Callable, slope: jax.Array, part: jax.Array) -> tuple[jax.Array, jax.Array]:
    """d ~ -A^-1 slope to a residual of at most `part` times it, and whether that was reached; always downhill.

    Not `linear.conjugate_gradient`, which needs a positive definite A: this one stops where the curvature is not.
    """
    limit = min(4 * slope.size + 10, 1000)

    def go_on(carry: tuple) -> jax.Array:
        step, _, residual, _, curved = carry
        return (step < limit) & curved & (jnp.linalg.norm(residual) > part * jnp.linalg.norm(slope))

    def one(carry: tuple) -> tuple:
        step, d, residual, p, _ = carry
        image = product(p)
        curvature, square = jnp.vdot(p, image), jnp.vdot(residual, residual)
        curved = curvature > 0
        length = square / jnp.where(curved, curvature, 1)
        # Along p, the curvature is not positive: keep d, or go straight down if it is still zero.
        d = jnp.where(curved, d + length * p, jnp.where(step > 0, d, p))
        residual = residual - length * image
        p = residual + jnp.vdot(residual, residual) / square * p
        return step + 1, d, residual, p, curved

    start = (jnp.zeros((), jnp.int32), jnp.zeros_like(slope), -slope, -slope, jnp.array(True))
    _, d, residual, _, curved = jax.lax.while_loop(go_on, one, start)
    return d, curved & (jnp.linalg.norm(residual) <= part * jnp.linalg.norm(slope))


def search(evaluate: Callable, here: Place, direction: jax.Array) -> tuple:
    """The longest of the steps direction, direction/2, ... that lowers g enough: y, g, slope there; whether any did."""
    promised = jnp.vdot(here.slope, direction)
    size = jnp.linalg.norm(here.slope)
    rounding = 10 * jnp.finfo(here.y.dtype).eps * jnp.abs(here.value)

    def go_on(carry: tuple) -> jax.Array:
        number, *_, done = carry
        return (number < HALVINGS) & ~done

    def one(carry: tuple) -> tuple:
        number = carry[0]
        length = jnp.exp2(-number.astype(here.y.dtype))
        y = here.y + length * direction
        value, slope = evaluate(y)
        lower = value <= here.value + SUFFICIENT * length * promised
        flatter = (value <= here.value + rounding) & (jnp.linalg.norm(slope) <= (1 - SUFFICIENT * length) * size)
        return number + 1, y, value, slope, (lower | flatter) & jnp.all(jnp.isfinite(slope))

    start = (jnp.zeros((), jnp.int32), here.y, here.value, here.slope, jnp.array(False))
    _, y, value, slope, done = jax.lax.while_loop(go_on, one, start)
    keep = lambda new, old: jnp.where(done, new, old)  # noqa: E731
    return keep(y, here.y), keep(value, here.value), keep(slope, here.slope), done
