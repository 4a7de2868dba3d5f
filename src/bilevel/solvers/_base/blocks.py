"""What a step does to the blocks of a multi-block problem: their duals, y and v move, and x gets its direction."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bilevel.constraints import Ball
from bilevel.constraints.base import Constraint
from bilevel.hypergradients.base import implicit, residual, step_towards
from bilevel.problem.group import TaskView, UpperSample
from bilevel.problem.multiblock import BlockPoint, MultiBlockProblem
from bilevel.problem.per_task import PerTask, fields_of


class Visited(NamedTuple):
    """The blocks after their moves."""

    direction: Any  # of x
    point: PerTask[BlockPoint]
    v: PerTask[Any]
    losses: jax.Array  # in the order of the blocks


class BlockMove(NamedTuple):
    """How blocks move: the rates of y, of the dual and of v, and the sets that the latter two stay in."""

    lower_rate: Any
    dual_rate: Any
    v_rate: Any
    dual_constraint: Constraint
    radius: Any  # of the ball for v; None = no ball

    def one(self, task: TaskView, x: Any, point: BlockPoint, v: Any, sample: UpperSample) -> tuple[BlockPoint, Any]:
        """One block after its moves, all of them from the old point."""
        y, dual = point
        ascent = jax.grad(lambda dual: task.upper(x, BlockPoint(y, dual), sample.upper))(dual)
        up = jax.tree.map(lambda a, s: a + (self.dual_rate * s).astype(a.dtype), dual, ascent)
        fixed = at_dual(task, dual)
        slope = jax.grad(fixed.lower, argnums=1)(x, y, sample.lower)
        down = jax.tree.map(lambda a, s: a - (self.lower_rate * s).astype(a.dtype), y, slope)
        new = step_towards(v, residual(fixed, x, y, v, sample), self.v_rate)
        new = new if self.radius is None else Ball(self.radius).project(new)
        return BlockPoint(down, self.dual_constraint.project(up)), new


def visit(
    problem: MultiBlockProblem,
    move: BlockMove,
    x: Any,
    points: PerTask[BlockPoint],
    v: PerTask[Any],
    share: jax.Array,
    samples: PerTask[UpperSample],
) -> Visited:
    """All blocks of a problem after their moves, and the direction of x: sum_i share_i (f_x - J v_i)."""

    def weighted(x: Any) -> tuple[jax.Array, jax.Array]:
        value = lambda task, point, v, s: implicit(at_dual(task, point.dual), x, point.y, v, s)  # noqa: E731
        losses = problem.join(problem.each(value, points, v, samples))
        return jnp.vdot(share.astype(losses.dtype), losses), losses

    direction, losses = jax.grad(weighted, has_aux=True)(x)
    moved = problem.each(lambda task, point, v, s: move.one(task, x, point, v, s), points, v, samples)
    new_points, new_v = fields_of(moved)
    return Visited(direction, new_points, new_v, losses)


def at_dual(task: TaskView, dual: Any) -> TaskView:
    """A block with its dual variable fixed, as estimators see tasks."""
    return task._replace(
        upper=lambda x, y, sample: task.upper(x, BlockPoint(y, dual), sample),
        lower=lambda x, y, sample: task.lower(x, BlockPoint(y, dual), sample),
    )
