"""Curvatures of the lower problems, how smooth the tasks are around a point, and how noisy their batches are.

All but the noise is measured on all the data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from bilevel._core import dense, linear, pytrees
from bilevel._core.linear import hessian_product, response
from bilevel._core.types import Tree
from bilevel.lower.steps import lower_gradients
from bilevel.problem.group import TaskView
from bilevel.problem.per_task import PerTask, for_groups, for_tasks
from bilevel.problem.problem import Problem

ITERATIONS = 30  # of power iteration
DENSE = 128  # up to so many numbers in y, all eigenvalues are computed
BLOCK_ITERATIONS = 60


class MovedPoint(NamedTuple):
    """A point, and a move from it in x alone and in y alone."""

    x: Tree
    y: PerTask[Tree]
    x_moved: Tree
    y_moved: PerTask[Tree]


class Smoothness(NamedTuple):
    """Norms at one point, per task or the largest; changes are measured between the ends of a `MovedPoint`."""

    upper_slope: Tree  # |f_y|
    upper_hessian: Tree  # |f_yy|
    upper_cross: Tree  # |f_xy|
    cross: Tree  # |J|
    cross_in_y: Tree  # |J - J'| / |y - y'|
    cross_in_x: Tree
    hessian_in_y: Tree  # |A - A'| / |y - y'|
    hessian_in_x: Tree


def draw_pair(problem: Problem, x: Tree, y: PerTask[Tree], radius: float, generator: np.random.Generator) -> MovedPoint:
    """A random point within a radius of (x, y), x inside X, with random moves from it of up to that radius."""

    def near(stacked: Tree) -> Tree:
        leaves, structure = jax.tree.flatten(stacked)
        moves = [generator.normal(size=(len(leaf), leaf.size // len(leaf))) for leaf in leaves]
        reach = radius * generator.uniform(0.1, 1, size=len(leaves[0]))
        scale = reach / np.sqrt(sum(np.sum(move**2, axis=1) for move in moves))
        far = [(scale[:, None] * move).reshape(leaf.shape) for leaf, move in zip(leaves, moves, strict=True)]
        return structure.unflatten([a + jnp.asarray(b, a.dtype) for a, b in zip(leaves, far, strict=True)])

    def near_x(x: Tree) -> Tree:
        moved = pytrees.index(near(pytrees.stack([x])), 0)
        return optax.tree.cast_like(problem.constraint.project(moved), x)

    start_x, start_y = near_x(x), for_groups(near, y)
    return MovedPoint(start_x, start_y, near_x(start_x), for_groups(near, start_y))


@jax.jit
def smoothness(problem: Problem, pair: MovedPoint) -> Smoothness:
    """Operator norms by power iteration, which approaches them from below."""
    x, x_moved = pair.x, pair.x_moved
    in_x = optax.tree.norm(optax.tree.sub(x_moved, x))

    def one(task: TaskView, y: Tree, y_moved: Tree) -> Smoothness:
        in_y = optax.tree.norm(optax.tree.sub(y_moved, y))

        def change(product: Callable, like: Tree, where: tuple, apart: jax.Array) -> jax.Array:
            size = _norm(lambda v: optax.tree.sub(product(*where, v), product(x, y, v)), like)
            return jnp.where(apart > 0, size / jnp.where(apart > 0, apart, 1), 0)

        f_yy, A = (lambda x, y, v, h=h: hessian_product(h, x, y, v, None) for h in (task.upper, task.lower))
        f_xy, J = (lambda x, y, u, h=h: response(h, x, y, u, None) for h in (task.upper, task.lower))
        return Smoothness(
            upper_slope=optax.tree.norm(jax.grad(task.upper, argnums=1)(x, y, None)),
            upper_hessian=_norm(lambda v: f_yy(x, y, v), y),
            upper_cross=_norm(lambda u: f_xy(x, y, u), x),
            cross=_norm(lambda u: J(x, y, u), x),
            cross_in_y=change(J, x, (x, y_moved), in_y),
            cross_in_x=change(J, x, (x_moved, y), in_x),
            hessian_in_y=change(A, y, (x, y_moved), in_y),
            hessian_in_x=change(A, y, (x_moved, y), in_x),
        )

    return problem.join(problem.each(one, pair.y, pair.y_moved))


def _norm(product: Callable, like: Tree) -> jax.Array:
    """The largest |product(v)| / |v| of a linear map, by power iteration on its square."""
    transpose = jax.linear_transpose(product, like)

    squared = linear.power_iteration(lambda v: transpose(product(v))[0], pytrees.generic(like), ITERATIONS)
    return optax.tree.norm(product(squared.vector))


@jax.jit
def lower_noise(problem: Problem, x: Tree, y: PerTask[Tree], key: jax.Array, samples: jax.Array) -> jax.Array:
    """E |h_i - grad_y g_i|^2 / (1 + |grad_y g_i|^2) per task, over a solver's batches; one key for each sample."""
    exact = lower_gradients(problem, x, y, None)

    def square(a: PerTask[Tree]) -> jax.Array:
        return problem.join(for_tasks(lambda g: optax.tree.norm(g, squared=True), a))

    def add(total: jax.Array, number: jax.Array) -> tuple:
        drawn = problem.draw_lower(jax.random.fold_in(key, number))
        return total + square(optax.tree.sub(lower_gradients(problem, x, y, drawn), exact)), None

    size = square(exact)
    total, _ = jax.lax.scan(add, jnp.zeros_like(size), samples)
    return total / samples.shape[0] / (1 + size)


def bends(points: list, gradients: list) -> float:
    """The most negative curvature of any task between two of the points: -<grad l - grad l', x - x'> / |x - x'|^2."""
    found = 0.0
    for k, (x, slopes) in enumerate(zip(points, gradients, strict=True)):
        for other, others in zip(points[:k], gradients[:k], strict=True):
            square = np.sum((x - other) ** 2)
            if square > 0:
                found = max(found, float(np.max(-(slopes - others) @ (x - other) / square)))
    return found


@jax.jit
def lower_spectra(problem: Problem, x: Tree, y: PerTask[Tree]) -> tuple[jax.Array, jax.Array]:
    """Smallest and largest eigenvalue of A_i = d2g_i/dy2, in the order of the tasks.

    They are exact where y has at most `DENSE` numbers. Otherwise they are Rayleigh quotients: the true smallest one may
    be a little smaller, the true largest one a little larger.
    """

    def one(task: TaskView, y: Tree) -> tuple[jax.Array, jax.Array]:
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

    Each iteration takes the best of the space that these six vectors span (as LOBPCG does). k iterations come as close
    as about k^2 of plain power iteration. JAX's own (`jax.experimental.sparse.linalg.lobpcg_standard`) finds only the
    largest eigenvalues: the smallest would take a second run on a shifted matrix.
    """
    number = jnp.arange(like.size, dtype=like.dtype)
    start = jnp.stack([0.5 + jnp.cos((2.4 + k) * number) for k in range(6)], axis=1)  # in general position

    def improve(_: object, carry: tuple) -> tuple:
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
    _, smallest, largest = jax.lax.fori_loop(0, BLOCK_ITERATIONS, improve, (start, zero, zero))
    return smallest, largest


def is_strongly_convex(smallest: Tree, largest: Tree) -> np.ndarray:
    """Whether the smallest curvature is positive beyond rounding."""
    smallest, largest = np.asarray(smallest), np.asarray(largest)
    return smallest > 100 * np.finfo(smallest.dtype).eps * np.abs(largest)
