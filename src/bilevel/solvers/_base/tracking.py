"""What variance-reduced solvers share: oracles over points, for trackers that look at two points on one sample.

Where a step sees some of the tasks, a task may not have been in the last step. A solver that compares two points
follows  d^k = G(w^k; s) + (1 - eta) (d^{k-1} - G(w^{k-1}; s)),  with w^k = (x, y, v, weights) of step k. The tasks that
a step draws are a part of its sample s: with the same tasks at both points, each with the same share, both G are
unbiased, and so is their difference. A task that is not drawn does not move, so that

- its y and v of the last step are those of now;
- its weight of the last step is that before the weights last moved, where they moved right after it;
- what is followed task by task (grad_y g_i, f_i) was not followed there, and starts anew, as in a first step.

The matrices of `STABLE` do not start anew: of a task that was not in the last step they are of an x that is not known
any more, and its last point counts as this one, which makes them a running mean over its visits. That lags behind x,
and is the smaller evil: matrices that start anew at every visit are those of one batch, and an A of 4 rows, inverted in
two places, sends x and y far away. On the conformance problem with 3 of 5 tasks, drawn uniformly, 9 of 40 runs of 200
steps ended above a loss of 100 that way, with momentum 0.1 27 of 40; with the mean 1 and 1, and with all tasks or all
rows in a step none.

So the noise of the draws is reduced in the shared direction, and that of the rows only in tasks which two steps after
each other see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core.types import Tree
from bilevel.hypergradients.trackers import Memory, Oracle
from bilevel.hypergradients.upper import Evaluation, Point
from bilevel.lower.steps import lower_gradients
from bilevel.problem.group import UpperSample
from bilevel.problem.on_devices import own_rows, shared
from bilevel.problem.per_task import InOrder, PerTask, Some
from bilevel.problem.problem import Problem
from bilevel.solvers._base.task_subset import Rows


class LowerPoint(NamedTuple):
    """Everything but the sample that grad_y g depends on."""

    x: Tree
    y: PerTask[Tree]


class UpperValue(NamedTuple):
    """Tracked values of the upper level."""

    direction: Tree  # sum_i lambda_i D_i; with a tracker per task, every D_i: `InOrder`
    losses: InOrder[jax.Array]


class KeptPoint(NamedTuple):
    """A point as a tracker keeps it: its weights are marked as belonging to tasks."""

    x: Tree
    y: PerTask[Tree]
    weights: InOrder[jax.Array]
    v: PerTask[Tree]
    curvature: PerTask[jax.Array] | None


def kept(point: Point) -> KeptPoint:
    """A point, to be kept."""
    return KeptPoint(point.x, point.y, InOrder(point.weights), point.v, point.curvature)


def upper_oracle(evaluate: Callable[[Point, PerTask[UpperSample]], Evaluation], *, per_task: bool) -> Oracle:
    """(direction, losses) at a kept point, and what the estimator carries there; `evaluate` is a method of `Upper`."""

    def oracle(point: KeptPoint, samples: PerTask[UpperSample]) -> tuple[UpperValue, PerTask[Tree]]:
        seen = evaluate(Point(point.x, point.y, point.weights.value, point.v, point.curvature), samples)
        return UpperValue(InOrder(seen.direction) if per_task else seen.direction, InOrder(seen.losses)), seen.v

    return oracle


def lower_oracle(problem: Problem) -> Oracle:
    """grad_y g_i at a point."""
    return lambda point, samples: (lower_gradients(problem, point.x, point.y, samples), ())


def as_evaluation(value: UpperValue, weights: jax.Array, v: PerTask[Tree]) -> Evaluation:
    """The evaluation at the end of a step; one direction per task is weighted only here."""
    direction = value.direction
    if isinstance(direction, InOrder):
        direction = jax.tree.map(lambda d: jnp.tensordot(weights.astype(d.dtype), d, 1), direction.value)
    return Evaluation(direction, value.losses.value, v)


class LastStep(NamedTuple):
    """Facts about the last step of each task."""

    seen: InOrder[jax.Array]  # the last step that saw each task
    counted: InOrder[jax.Array]  # how much each task counted before the weights last moved
    moved: jax.Array  # the step before which they did

    @classmethod
    def start(cls, counted: jax.Array) -> LastStep:
        """Before the first step, where all tasks were seen."""
        never = jnp.full((), -1, jnp.int32)
        return cls(InOrder(jnp.full(counted.shape, never)), InOrder(counted), never)

    def see(self, rows: Rows, step: jax.Array) -> LastStep:
        """After a step that saw these tasks."""
        seen = self.seen.value
        # The maximum is the step. Without it rows could be written before they are read, and all would be copied.
        return self._replace(seen=InOrder(seen.at[rows.numbers].set(jnp.maximum(seen[rows.numbers], step))))

    def weigh(self, before: InOrder[jax.Array], step: jax.Array) -> LastStep:
        """After a move of the weights, with what counted before it."""
        return self._replace(counted=before, moved=step)

    def of(self, rows: Rows, share: jax.Array, counted: InOrder[jax.Array], step: jax.Array) -> LastPoint:
        """The last point of the tasks that a step sees."""
        now, before = counted.value[rows.numbers], self.counted.value[rows.numbers]
        # Looked up by every device for all: looked up by each for its own, it would be read after it is written.
        rested = shared(self.seen.value[rows.numbers] < step - 1, rows.on[0])
        ends = np.cumsum([own.shape[0] for own in rows.places])
        groups = PerTask(tuple(map(own_rows, jnp.split(rested, ends[:-1]), rows.on)))
        return LastPoint(Some(groups, rested), jnp.where(self.moved == step, before, now) / share)


class LastPoint(NamedTuple):
    """The last point of some tasks, as far as it is not kept with them."""

    rested: Some  # those that the last step did not see
    weights: jax.Array  # how much each counted then, over its share in the draw of now

    def of(self, memory: Memory, present: Point) -> Memory:
        """The state of a tracker with this last point, which dates from each task's last visit."""
        point: Tree = memory.point
        own = {
            name: self.rested.pick(getattr(present, name), getattr(point, name))
            for name in ("y", "v")
            if hasattr(point, name)
        }
        if hasattr(point, "weights"):
            own["weights"] = InOrder(self.weights)
        return memory._replace(point=point._replace(**own) if own else point, afresh=self.rested)
