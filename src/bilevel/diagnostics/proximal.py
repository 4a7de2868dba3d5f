"""The proximal map x_hat(x) = argmin over u in X of rho/2 ||u - x||^2 + F(u, weights), solved."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel._core import pytrees
from bilevel.diagnostics.exact import weighted_gradient
from bilevel.lower.solver import tolerance
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem

POWER_ITERATIONS = 10
HALVINGS = 50


class Proximal(NamedTuple):
    """x_hat, and how it was found."""

    point: Any
    converged: bool
    convex: bool  # whether rho/2 ||u - x||^2 + F was convex wherever it was evaluated


class Moved(NamedTuple):
    """One projected step."""

    point: Any
    move: Any
    size: jax.Array


def upper_curvature(problem: Problem, x: Any, y: PerTask[Any], weights: jax.Array) -> float:
    """The largest curvature of F(., weights) at x, in absolute value; 0 where F is linear.

    By power iteration on central differences of the true gradient, between points of X; in Python rather than by
    `linear.power_iteration`, as a direction that leads out of X is replaced on the way.
    """
    value, vector = 0.0, _direction(x)
    for number in range(POWER_ITERATIONS):
        ends, apart = _ends(problem, x, vector)
        if not apart > 0:  # a corner of X: try another direction
            vector = _direction(x, 3.1 + number)
            continue
        bend, vector = _bend(*(weighted_gradient(problem, end, y, weights)[1] for end in ends), apart)
        if not 0 < float(bend) < float("inf"):
            break
        value = float(bend)
    return value


def proximal_point(
    problem: Problem,
    x: Any,
    y: PerTask[Any],
    weights: jax.Array,
    slope: Any,
    rho: float,
    curvature: float,
    iterations: int,
) -> Proximal:
    """Projected gradient steps from x, whose rate is halved where the curvature exceeds what it allows.

    `slope` is the gradient of F at x, `y` the lower solutions there, `curvature` that of F there.
    """
    norm = _norm(x)
    wanted = tolerance(norm.dtype) * (1 + float(norm))
    seen = float(jnp.finfo(norm.dtype).eps) ** 0.5 * (1 + float(norm))  # shorter moves show only rounding
    rate, here, convex, lower_solved, halvings = 1 / (rho + 1.1 * curvature), x, True, True, 0
    for _ in range(iterations):
        moved = _move(problem, here, slope, rate)
        size = float(moved.size)
        if size <= wanted:
            return Proximal(moved.point, lower_solved, convex)
        solved, gradient = weighted_gradient(problem, moved.point, y, weights)
        bend, after = _after(x, moved, slope, gradient, rho)
        bend = float(bend)
        if not abs(bend) < float("inf") or (bend * rate > 1 and size > seen):
            rate, halvings = rate / 2, halvings + 1
            if halvings > HALVINGS:
                break
            continue
        convex = convex and (bend >= 0 or size <= seen)
        here, slope, y, lower_solved = moved.point, after, solved.y, bool(jnp.all(solved.converged))
    return Proximal(here, False, convex)


_norm = jax.jit(optax.tree.norm)
_direction = jax.jit(pytrees.generic)


@jax.jit
def _ends(problem: Problem, x: Any, vector: Any) -> tuple[list, jax.Array]:
    size = optax.tree.norm(x)
    reach = jnp.finfo(size.dtype).eps ** (1 / 3) * jnp.where(size > 0, size, 1)
    ends = [problem.constraint.project(optax.tree.add_scale(x, sign * reach, vector)) for sign in (1, -1)]
    return [optax.tree.cast_like(end, x) for end in ends], optax.tree.norm(optax.tree.sub(*ends))


@jax.jit
def _bend(one: Any, other: Any, apart: jax.Array) -> tuple[jax.Array, Any]:
    change = optax.tree.sub(one, other)
    length, size = optax.tree.norm(change), optax.tree.norm(one)
    significant = length > 100 * jnp.finfo(size.dtype).eps * size  # above rounding
    return jnp.where(significant, length / apart, 0), pytrees.unit(change)


@jax.jit
def _move(problem: Problem, here: Any, slope: Any, rate: Any) -> Moved:
    target = jax.tree.map(lambda u, s: u - (rate * s).astype(u.dtype), here, slope)
    point = problem.constraint.project(target)
    move = optax.tree.sub(point, here)
    return Moved(point, move, optax.tree.norm(move))


@jax.jit
def _after(x: Any, moved: Moved, before: Any, gradient: Any, rho: Any) -> tuple[Any, Any]:
    """The curvature of the proximal objective along a move, and its slope at the end of it."""
    slope = jax.tree.map(lambda g, u, x: g + (rho * (u - x)).astype(g.dtype), gradient, moved.point, x)
    return optax.tree.vdot(optax.tree.sub(slope, before), moved.move) / moved.size**2, slope


@jax.jit
def residual(problem: Problem, x: Any, gradient: Any) -> jax.Array:
    """||x - proj(x - gradient)||: 0 exactly where x is stationary."""
    return _move(problem, x, gradient, 1.0).size
