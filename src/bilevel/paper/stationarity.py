"""The quantity that Theorem 1 bounds, measured at points along a run.

With l_i(u) = f_i(u, y_i*(u)) on all the data and F(u) = sum_i lambda_i l_i(u),

    rho^2 |x_hat - x|^2,     x_hat = argmin over u in X of  rho/2 |u - x|^2 + F(u)

where every y_i* is solved for and every gradient is exact. It is the squared norm of the gradient of F's envelope:
about |grad F|^2 where x is unconstrained. rho is one number for all points, trials and numbers of tasks, as gaps of
different rho do not compare; the theorem has any rho above the weak convexity of F.

What the scripts do has no such quantity: their lower problems are not convex, and their x does not follow F. Instead,
the squared norm of the direction that their x follows is measured, on all the data (`ScriptDescent.full_direction`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bilevel.diagnostics.exact import solve_lower
from bilevel.hypergradients import Exact
from bilevel.oracles.upper import Point, Upper
from bilevel.paper.published.descent import ScriptDescent
from bilevel.problem.group import UpperSample
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem

ACCURACY = 0.1  # a last move of x_hat this small, relative to |x_hat - x|: the next would be a hundredth of it
MOVES = 20


@dataclasses.dataclass(frozen=True)
class ProximalResidual:
    """rho^2 |x_hat - x|^2; NaN where a lower problem could not be solved or x_hat not be found.

    x_hat is the fixed point of u -> proj_X (x - grad F(u) / rho), a contraction where rho is above F's curvature. On
    FashionMNIST that is about 100; with 1,000 two or three moves are enough.
    """

    rho: float = 1000.0

    def __call__(self, problem: Problem, point: Point) -> float:
        """At one point."""
        here, y = point.x, point.y
        for _ in range(MOVES):
            solved = solve_lower(problem, here, y)
            if not bool(jnp.all(solved.converged)):
                return float("nan")
            gradient = _gradient(problem, here, solved.y, point.weights)
            moved, change, distance = _towards(problem, point.x, here, gradient, self.rho)
            if float(change) <= ACCURACY * float(distance):
                return float((self.rho * distance) ** 2)
            here, y = moved, solved.y
        return float("nan")


@dataclasses.dataclass(frozen=True)
class ScriptDirection:
    """The squared norm of what x follows in the scripts, on all the data."""

    solver: ScriptDescent

    def __call__(self, problem: Problem, point: Point) -> float:
        """At one point."""
        return float(_script_norm(self.solver, problem, point))


@jax.jit
def _gradient(problem: Problem, x: Any, y: PerTask[Any], weights: jax.Array) -> Any:
    """grad F at solved y, on all the data. The heads are small: solving by a matrix is far quicker than by products."""
    samples = PerTask(tuple(UpperSample(None, None, keys) for keys in problem.keys(jax.random.key(0))))
    oracle, point = Upper(problem, Exact()), Point(x, y, weights, PerTask(((),) * len(y)))
    return oracle.direction(point._replace(v=oracle.init(point, samples)), samples).direction


@jax.jit
def _towards(problem: Problem, x: Any, here: Any, gradient: Any, rho: Any) -> tuple[Any, jax.Array, jax.Array]:
    """The next u, how far it is from the last one, and from x."""
    target = jax.tree.map(lambda x, g: x - (g / rho).astype(x.dtype), x, gradient)
    moved = problem.constraint.project(target)
    return moved, optax.tree.norm(optax.tree.sub(moved, here)), optax.tree.norm(optax.tree.sub(moved, x))


@jax.jit
def _script_norm(solver: ScriptDescent, problem: Problem, point: Point) -> jax.Array:
    return optax.tree.norm(solver.full_direction(problem, point.x, point.y, point.weights), squared=True)
