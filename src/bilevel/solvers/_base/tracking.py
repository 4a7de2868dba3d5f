"""What variance-reduced solvers share: points that hold all an oracle depends on, and oracles over them.

A tracker evaluates one oracle at two points on one sample, so that whatever the oracle depends on besides the sample
must be in the point: the weights and the estimator's state of that time too, or the recursion does not telescope.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bilevel.oracles.upper import Evaluation, lower_gradients
from bilevel.problem.problem import Problem
from bilevel.rates.measured import Automatic
from bilevel.solvers._base.bilevel import BilevelSolver, State
from bilevel.trackers.base import Oracle


class UpperPoint(NamedTuple):
    """All that the upper oracle depends on besides the sample."""

    x: Any
    y: tuple
    weights: jax.Array
    hypergradient: tuple
    curvature: Any


def upper_point(state: State, automatic: Automatic) -> UpperPoint:
    """Where a run is, with the curvatures measured last."""
    return UpperPoint(state.x, state.y, state.weights, state.hypergradient, automatic.lower)


def upper_oracle(solver: BilevelSolver, problem: Problem, *, per_task: bool, held: bool = False) -> Oracle:
    """(direction, losses) at a point, and the estimator's state there; `held`: v is a variable that does not move."""

    def oracle(point: UpperPoint, samples: tuple) -> tuple:
        upper = solver.upper_level(point.curvature)
        x, y, weights, state, _ = point
        if per_task:
            seen = upper.held_directions if held else upper.directions
            seen = seen(problem, x, y, state, samples, weights.dtype)
        else:
            seen = (upper.held if held else upper.direction)(problem, x, y, weights, state, samples)
        return (seen.direction, seen.losses), seen.state

    return oracle


def lower_oracle(problem: Problem) -> Oracle:
    """grad_y g_i at a point (x, y)."""
    return lambda point, samples: (lower_gradients(problem, point[0], point[1], samples), ())


def seen_as(value: tuple, weights: jax.Array, hypergradient: tuple, *, per_task: bool) -> Evaluation:
    """A tracked (direction, losses) as what a step ends with; one direction per task is weighted only now."""
    direction, losses = value
    if per_task:
        direction = jax.tree.map(lambda d: jnp.tensordot(weights.astype(d.dtype), d, 1), direction)
    return Evaluation(direction, losses, hypergradient)
