"""The upper level of all tasks, through a hypergradient.

direction                 the shared hypergradient, one reverse pass     sum_i weights_i D_i(x, y_i)
directions                the same, one per task (memory n d_x)          D_i(x, y_i)
with_residuals            the shared one, and the residuals f_y - A v_i of the linear systems
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bilevel._core.types import T, Tree
from bilevel.hypergradients.hypergradient import Hypergradient
from bilevel.lower.steps import LowerSteps, Replay
from bilevel.problem.group import TaskView, UpperSample
from bilevel.problem.per_task import PerTask, for_tasks
from bilevel.problem.problem import Problem


class Point(NamedTuple):
    """Everything but the sample that the upper level depends on.

    A tracker evaluates one oracle at two points on one sample, so that the weights and the estimator's state of each
    time belong to the point too: otherwise its recursion does not telescope.
    """

    x: Tree
    y: PerTask[Tree]
    weights: jax.Array
    v: PerTask[Tree]  # what the estimator carries: for most, an estimate of A^-1 f_y
    curvature: PerTask[jax.Array] | None = None  # of the lower problems, where a solver keeps it


class Evaluation(NamedTuple):
    """The upper level at one point."""

    direction: Tree
    losses: jax.Array  # f_i(x, y_i) on the sample, in the order of the tasks
    v: PerTask[Tree]  # what the estimator carries on


class Residuals(NamedTuple):
    """f_y - A v_i of every task: the residual of its linear system."""

    evaluation: Evaluation
    of_v: PerTask[Tree]


class Upper(NamedTuple):
    """Evaluates the upper level of a problem."""

    problem: Problem
    hypergradient: Hypergradient
    replay: Replay | None = None  # the lower steps just taken, for estimators that need them

    def _each(self, function: Callable[..., T], curvature: PerTask[jax.Array] | None, *arguments: Tree) -> PerTask[T]:
        replay = self.replay

        def lent(task: TaskView, curvature: jax.Array | None, steps: LowerSteps | None, *arguments: Tree) -> Tree:
            again = None if replay is None or steps is None else functools.partial(_retaken, task, replay, steps)
            return function(task._replace(curvature=curvature, replay=again), *arguments)

        return self.problem.each(lent, curvature, None if replay is None else replay.steps, *arguments)

    def init(self, point: Point, samples: PerTask[UpperSample]) -> PerTask[Tree]:
        """The estimator's first state; that of the point is not used."""
        first = lambda task, y, s: self.hypergradient.init(task, point.x, y, s)  # noqa: E731
        return self._each(first, point.curvature, point.y, samples)

    def prepare(self, point: Point, samples: PerTask[UpperSample]) -> PerTask[Tree]:
        """The estimator's state at a new point."""
        move = lambda task, y, v, s: self.hypergradient.prepare(task, point.x, y, v, s)  # noqa: E731
        return self._each(move, point.curvature, point.y, point.v, samples)

    def direction(self, point: Point, samples: PerTask[UpperSample]) -> Evaluation:
        """sum_i weights_i D_i by one reverse pass; x is never copied per task."""
        return self.at_fixed_v(point._replace(v=self.prepare(point, samples)), samples)

    def at_fixed_v(self, point: Point, samples: PerTask[UpperSample]) -> Evaluation:
        """`direction` with the estimator's state as it is: v is a variable, and does not move here."""
        weighted = lambda x: self._weighted(point._replace(x=x), point.weights, samples)  # noqa: E731
        direction, losses = jax.grad(weighted, has_aux=True)(point.x)
        return Evaluation(direction, losses.astype(point.weights.dtype), point.v)

    def with_residuals(self, point: Point, samples: PerTask[UpperSample]) -> Residuals:
        """`at_fixed_v`, and the residuals: the parts in x and in y of one gradient of the implicit surrogates."""
        # With weight 0 a task would hide its residual; one rounding error of weight is enough to show it.
        weights = jnp.maximum(point.weights, jnp.finfo(point.weights.dtype).eps)
        weighted = lambda x, y: self._weighted(point._replace(x=x, y=y), weights, samples)  # noqa: E731
        (direction, slopes), losses = jax.grad(weighted, argnums=(0, 1), has_aux=True)(point.x, point.y)

        def unweighted(slope: Tree, weight: jax.Array) -> Tree:
            return jax.tree.map(lambda s: (s / weight).astype(s.dtype), slope)

        residuals = for_tasks(unweighted, slopes, self.problem.split(weights))
        return Residuals(Evaluation(direction, losses.astype(point.weights.dtype), point.v), residuals)

    def directions(self, point: Point, samples: PerTask[UpperSample]) -> Evaluation:
        """D_i for every task: n copies of x."""
        return self.directions_at_fixed_v(point._replace(v=self.prepare(point, samples)), samples)

    def directions_at_fixed_v(self, point: Point, samples: PerTask[UpperSample]) -> Evaluation:
        """`directions` with the estimator's state as it is."""
        surrogate = lambda x, task, y, v, s: self.hypergradient.surrogate(task, x, y, v, s)  # noqa: E731
        of = lambda task, y, v, s: jax.value_and_grad(surrogate)(point.x, task, y, v, s)  # noqa: E731
        own = self._each(of, point.curvature, point.y, point.v, samples)
        losses, directions = self.problem.join(own)
        return Evaluation(directions, losses.astype(point.weights.dtype), point.v)

    def _weighted(self, point: Point, weights: jax.Array, samples: PerTask[UpperSample]) -> tuple[jax.Array, jax.Array]:
        value = lambda task, y, v, s: self.hypergradient.surrogate(task, point.x, y, v, s)  # noqa: E731
        losses = self.problem.join(self._each(value, point.curvature, point.y, point.v, samples))
        return jnp.vdot(weights.astype(losses.dtype), losses), losses


def _retaken(task: TaskView, replay: Replay, steps: LowerSteps, x: Tree) -> Tree:
    """y after the lower steps just taken, as a function of x."""
    return steps.take(task, replay.rule, replay.length, x)[0]
