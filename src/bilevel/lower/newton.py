"""Newton's method: a lower problem solved to tolerance, on all its rows.

Why not optimistix: its Newton is a root finder of full steps, while here g may have no positive curvature at the start,
which needs (1) and (2) to go downhill; its BFGS needs many more passes where y is small.

For one task, with A the Hessian and s the slope of g in y:

    (1)  d ~ -A^-1 s      for small y by a Cholesky factorisation of A, straight down where it has none; for larger y by
                          conjugate gradients, until the residual is a small fraction of s or the curvature not positive
    (2)  y <- y + t d     t = 1, 1/2, 1/4, ... until g, or where rounding hides g, |s|, has fallen enough
    (3)  e = -A^-1 s      with s at the new y and A of (1), where that is factorised

Near y* the step d is the distance to it, which tells when to stop and how well y* is known. So does e, for the price of
a product: where it is within tolerance and far shorter than d, y + e is the end, and no Hessian is built to see that.

Reference for (3): Deuflhard, "Newton methods for nonlinear problems", 2004, section 2.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from bilevel._core import dense, values
from bilevel._core.linear import hessian_product
from bilevel._core.module import part
from bilevel._core.types import Scalar, Tree
from bilevel.lower.solver import Lower, Solved, tolerance
from bilevel.problem.group import TaskView
from bilevel.problem.per_task import PerTask

DENSE_TOTAL = 2**26  # numbers in the Hessians of all tasks
HALVINGS = 25
SUFFICIENT = 1e-4  # the fraction of the predicted decrease that a step must achieve
SHORTER = 0.1  # if |e| is below this share of |d|, A changed little on the way


class Place(NamedTuple):
    """State of Newton's method; y is flat."""

    step: jax.Array
    y: jax.Array
    before: jax.Array
    value: jax.Array
    slope: jax.Array
    error: jax.Array
    ended: jax.Array
    converged: jax.Array
    passes: jax.Array


@part
class Newton(Lower):
    """Newton's method with a line search: a few passes where y is small, conjugate gradients beyond.

    Args:
        dense: numbers in y up to which the Hessian is built and factorised: all its columns share what g computes of x
            and the data. Beyond, its products with vectors do.
        steps: the most Newton steps.
    """

    dense: int = 512
    steps: int = 100

    def check(self) -> None:
        """Whole numbers."""
        values.whole("dense", self.dense, least=0, of="Newton")
        values.whole("steps", self.steps, of="Newton")

    def solve(self, task: TaskView, x: Tree, y: Tree, accuracy: Scalar | None = None) -> Solved:
        """Minimises g_i(x, .) from y."""
        flat, unravel = ravel_pytree(y)
        evaluate = jax.value_and_grad(lambda flat: task.lower(x, unravel(flat), None))
        first, slope = evaluate(flat)
        wanted, eps = tolerance(flat.dtype), jnp.finfo(flat.dtype).eps
        wanted = wanted if accuracy is None else jnp.maximum(wanted, accuracy)
        scale = jnp.linalg.norm(slope)

        def direct(here: Place) -> Place:
            hessian = jax.hessian(lambda flat: task.lower(x, unravel(flat), None))(here.y)
            factor = dense.factor_positive(hessian)
            positive = jnp.all(jnp.isfinite(factor))
            # Down along the slope where A has no factor: under vmap a choice computes both, and both is far more.
            direction = jnp.where(positive, -dense.solve_factored(factor, here.slope), -here.slope)
            there = moved(here, direction, positive, jnp.asarray(flat.size))
            last = -dense.solve_factored(factor, there.slope)  # (3)
            length, reach = jnp.linalg.norm(last), 1 + jnp.linalg.norm(there.y)
            near = positive & ~there.ended & (length <= jnp.minimum(wanted * reach, SHORTER * there.error))
            near = near & (length > 0)  # a slope of zero may have underflown: the next step tells
            end = there._replace(y=there.y + last, before=there.y, error=length, ended=near, converged=near)
            return jax.tree.map(lambda new, old: jnp.where(near, new, old), end, there)

        def iterative(here: Place) -> Place:
            product = lambda v: ravel_pytree(hessian_product(task.lower, x, unravel(here.y), unravel(v), None))[0]  # noqa: E731
            part = jnp.clip(jnp.linalg.norm(here.slope) / jnp.where(scale > 0, scale, 1), 1e-3, 0.1)
            direction, solved, products = descent(product, here.slope, part)
            return moved(here, direction, solved, 2 * products)

        def moved(here: Place, direction: jax.Array, solved: jax.Array, passes: jax.Array) -> Place:
            y, value, slope, lower, tries = search(evaluate, here, direction)
            error = jnp.linalg.norm(direction)
            reach = 1 + jnp.linalg.norm(here.y)
            # Where no step lowers g or its slope any more, rounding dominates, and y* is known as well as it can be.
            small = solved & (error <= jnp.where(lower, wanted, 10 * jnp.sqrt(eps)) * reach)
            passes = here.passes + passes + tries
            return Place(here.step + 1, y, here.y, value, slope, error, small | ~lower, small, passes)

        advance = direct if flat.size <= self.dense else iterative
        zero, no = jnp.zeros((), jnp.int32), jnp.array(False)
        start = Place(zero, flat, flat, first, slope, jnp.zeros_like(scale), no, no, zero + 1)
        end = jax.lax.while_loop(lambda here: (here.step < self.steps) & ~here.ended, advance, start)
        converged = end.converged & jnp.isfinite(end.error)
        return Solved(unravel(end.y), unravel(end.before), end.error, converged, end.passes)

    @classmethod
    def suited(cls, y: PerTask[Tree]) -> Newton:
        """Factorises Hessians where those of all tasks have no more than `DENSE_TOTAL` numbers."""
        groups = [jax.tree.leaves(group) for group in y]
        numbers = sum(own[0].shape[0] * _size(own) ** 2 for own in groups if _size(own) <= cls.dense)
        return cls() if numbers <= DENSE_TOTAL else cls(dense=0)

    def factorises(self, y: PerTask[Tree]) -> bool:
        """Whether it does, for all tasks."""
        return max(_size(jax.tree.leaves(group)) for group in y) <= self.dense


def _size(leaves: list[jax.Array]) -> int:
    """How many numbers one task's y has."""
    return sum(leaf.size // leaf.shape[0] for leaf in leaves)


def descent(product: Callable, slope: jax.Array, part: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """d ~ -A^-1 slope to a residual of at most `part` times it; whether that was reached; how many products it took.

    It always leads downhill.

    Not `linear.conjugate_gradient`, which needs a positive definite A: this one stops at a direction whose curvature is
    not positive.
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
    count, d, residual, _, curved = jax.lax.while_loop(go_on, one, start)
    return d, curved & (jnp.linalg.norm(residual) <= part * jnp.linalg.norm(slope)), count


def search(evaluate: Callable, here: Place, direction: jax.Array) -> tuple:
    """The longest of the steps direction, direction/2, ... that lowers g enough.

    Returns y, g and its slope there, whether any did, and how many were tried.
    """
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
    tries, y, value, slope, done = jax.lax.while_loop(go_on, one, start)
    keep = lambda new, old: jnp.where(done, new, old)  # noqa: E731
    return keep(y, here.y), keep(value, here.value), keep(slope, here.slope), done, tries
