"""What variance-reduced solvers share: oracles over points, for trackers that look at two of them on one sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bilevel.oracles.lower import lower_gradients
from bilevel.oracles.upper import Evaluation, Point
from bilevel.problem.group import UpperSample
from bilevel.problem.per_task import InOrder, PerTask
from bilevel.problem.problem import Problem
from bilevel.trackers.base import Oracle


class LowerPoint(NamedTuple):
    """All that grad_y g depends on besides the sample."""

    x: Any
    y: PerTask[Any]


class UpperValue(NamedTuple):
    """What is tracked of the upper level."""

    direction: Any  # sum_i lambda_i D_i; with a tracker per task, every D_i: `InOrder`
    losses: InOrder[jax.Array]


class KeptPoint(NamedTuple):
    """A point as a tracker keeps it: its weights are marked as belonging to tasks."""

    x: Any
    y: PerTask[Any]
    weights: InOrder[jax.Array]
    v: PerTask[Any]
    curvature: PerTask[jax.Array] | None


def kept(point: Point) -> KeptPoint:
    """A point, to be kept."""
    return KeptPoint(point.x, point.y, InOrder(point.weights), point.v, point.curvature)


def upper_oracle(evaluate: Callable[[Point, PerTask[UpperSample]], Evaluation], *, per_task: bool) -> Oracle:
    """(direction, losses) at a kept point, and what the estimator carries there; `evaluate` is a method of `Upper`."""

    def oracle(point: KeptPoint, samples: PerTask[UpperSample]) -> tuple[UpperValue, PerTask[Any]]:
        seen = evaluate(Point(point.x, point.y, point.weights.value, point.v, point.curvature), samples)
        return UpperValue(InOrder(seen.direction) if per_task else seen.direction, InOrder(seen.losses)), seen.v

    return oracle


def lower_oracle(problem: Problem) -> Oracle:
    """grad_y g_i at a point."""
    return lambda point, samples: (lower_gradients(problem, point.x, point.y, samples), ())


def as_evaluation(value: UpperValue, weights: jax.Array, v: PerTask[Any]) -> Evaluation:
    """What a step ends with; one direction per task is weighted only now."""
    direction = value.direction
    if isinstance(direction, InOrder):
        direction = jax.tree.map(lambda d: jnp.tensordot(weights.astype(d.dtype), d, 1), direction.value)
    return Evaluation(direction, value.losses.value, v)
