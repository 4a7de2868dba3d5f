"""The smallest and the largest curvature of every lower problem, on all the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from bilevel._core import dense
from bilevel._core.derivatives import hessian_product
from bilevel.problem.group import TaskView
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem

DENSE = 128  # numbers in y up to which all eigenvalues are computed
ITERATIONS = 60


@jax.jit
def lower_spectra(problem: Problem, x: Any, y: PerTask[Any]) -> tuple[jax.Array, jax.Array]:
    """Smallest and largest eigenvalue of A_i = d2g_i/dy2, in the order of the tasks.

    Exactly where y has at most `DENSE` numbers. Otherwise by Rayleigh quotients, which come from inside: the smallest
    may be a little smaller yet, the largest a little larger.
    """

    def one(task: TaskView, y: Any) -> tuple[jax.Array, jax.Array]:
        flat, unravel = ravel_pytree(y)

        def product(v: jax.Array) -> jax.Array:
            return ravel_pytree(hessian_product(task.lower, x, y, unravel(v), None))[0]

        if flat.size <= DENSE:
            values = dense.eigh(jax.vmap(product)(jnp.eye(flat.size, dtype=flat.dtype)))[0]
            return values[0], values[-1]
        return extremes(product, flat)

    return problem.join(problem.each(one, y))


def extremes(product: Callable, like: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both ends of a spectrum by power iteration in blocks: two ends, their residuals and their last moves.

    Each iteration takes the best of the space these six vectors span (as LOBPCG does), which comes as close in k
    iterations as plain power iteration in about k^2. JAX's own (`jax.experimental.sparse.linalg.lobpcg_standard`) finds
    the largest eigenvalues only, so that the smallest would take a second run on a shifted matrix.
    """
    number = jnp.arange(like.size, dtype=like.dtype)
    start = jnp.stack([0.5 + jnp.cos((2.4 + k) * number) for k in range(6)], axis=1)  # in general position

    def improve(_: Any, carry: tuple) -> tuple:
        block, _, _ = carry
        basis = dense.orthonormal(block)
        images = jax.vmap(product, in_axes=1, out_axes=1)(basis)
        values, rotation = dense.eigh(basis.T @ images)
        rotation, values = rotation[:, jnp.array([0, 5])], values[jnp.array([0, 5])]
        ends = basis @ rotation
        residuals = images @ rotation - ends * values[None]
        moves = basis[:, 2:] @ rotation[2:]
        return jnp.concatenate([ends, residuals, moves], axis=1), values[0], values[1]

    zero = jnp.zeros((), like.dtype)
    _, smallest, largest = jax.lax.fori_loop(0, ITERATIONS, improve, (start, zero, zero))
    return smallest, largest


def is_strongly_convex(smallest: Any, largest: Any) -> np.ndarray:
    """Whether the smallest curvature is positive beyond rounding."""
    smallest, largest = np.asarray(smallest), np.asarray(largest)
    return smallest > 100 * np.finfo(smallest.dtype).eps * np.abs(largest)
