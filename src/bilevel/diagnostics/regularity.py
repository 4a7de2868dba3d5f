"""How smooth the tasks are around a point, on all the data, and how noisy their batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bilevel._core import linear, pytrees
from bilevel._core.derivatives import hessian_product, response
from bilevel.oracles.lower import lower_gradients
from bilevel.problem.group import TaskView
from bilevel.problem.per_task import PerTask, for_groups, for_tasks
from bilevel.problem.problem import Problem

ITERATIONS = 30  # of power iteration


class Pair(NamedTuple):
    """A point, and where from there only x, or only y, has moved."""

    x: Any
    y: PerTask[Any]
    x_moved: Any
    y_moved: PerTask[Any]


class Smoothness(NamedTuple):
    """At one point, an array over the tasks or the largest; what changes is measured between the ends of a `Pair`."""

    upper_slope: Any  # |f_y|
    upper_hessian: Any  # |f_yy|
    upper_cross: Any  # |f_xy|
    cross: Any  # |J|
    cross_in_y: Any  # |J - J'| / |y - y'|
    cross_in_x: Any
    hessian_in_y: Any  # |A - A'| / |y - y'|
    hessian_in_x: Any


def draw_pair(problem: Problem, x: Any, y: PerTask[Any], radius: float, generator: np.random.Generator) -> Pair:
    """A random point within a radius of (x, y), x inside X, and random moves from it as far again."""

    def near(stacked: Any) -> Any:
        leaves, structure = jax.tree.flatten(stacked)
        moves = [generator.normal(size=(len(leaf), leaf.size // len(leaf))) for leaf in leaves]
        reach = radius * generator.uniform(0.1, 1, size=len(leaves[0]))
        scale = reach / np.sqrt(sum(np.sum(move**2, axis=1) for move in moves))
        far = [(scale[:, None] * move).reshape(leaf.shape) for leaf, move in zip(leaves, moves, strict=True)]
        return structure.unflatten([a + jnp.asarray(b, a.dtype) for a, b in zip(leaves, far, strict=True)])

    def near_x(x: Any) -> Any:
        moved = pytrees.index(near(pytrees.stack([x])), 0)
        return optax.tree.cast_like(problem.constraint.project(moved), x)

    start_x, start_y = near_x(x), for_groups(near, y)
    return Pair(start_x, start_y, near_x(start_x), for_groups(near, start_y))


@jax.jit
def smoothness(problem: Problem, pair: Pair) -> Smoothness:
    """Operator norms by power iteration, which come from below."""
    x, x_moved = pair.x, pair.x_moved
    in_x = optax.tree.norm(optax.tree.sub(x_moved, x))

    def one(task: TaskView, y: Any, y_moved: Any) -> Smoothness:
        in_y = optax.tree.norm(optax.tree.sub(y_moved, y))

        def change(product: Callable, like: Any, where: tuple, apart: jax.Array) -> jax.Array:
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


def _norm(product: Callable, like: Any) -> jax.Array:
    """The largest |product(v)| / |v| of a linear map, by power iteration on its square."""
    transpose = jax.linear_transpose(product, like)

    squared = linear.power_iteration(lambda v: transpose(product(v))[0], pytrees.generic(like), ITERATIONS)
    return optax.tree.norm(product(squared.vector))


@jax.jit
def lower_noise(problem: Problem, x: Any, y: PerTask[Any], key: jax.Array, samples: jax.Array) -> jax.Array:
    """E |h_i - grad_y g_i|^2 / (1 + |grad_y g_i|^2) per task, over a solver's batches; one key for each sample."""
    exact = lower_gradients(problem, x, y, None)

    def square(a: PerTask[Any]) -> jax.Array:
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
