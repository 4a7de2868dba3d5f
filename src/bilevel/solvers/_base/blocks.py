"""What a step does to the blocks of a multi-block problem: their duals, y and v move, and x hears where to go."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bilevel._core import pytrees
from bilevel.constraints import Ball
from bilevel.hypergradients import Tracked
from bilevel.hypergradients.base import implicit
from bilevel.hypergradients.exact import Solved
from bilevel.problem.group import Group, TaskView, UpperSample
from bilevel.problem.multiblock import BlockPoint, MultiBlockProblem


class Visited(NamedTuple):
    """A group after a step; the losses of blocks that were not drawn are 0."""

    direction: Any  # its part of that of x
    point: BlockPoint
    v: Any
    losses: jax.Array


class BlockMove(NamedTuple):
    """How blocks move: the rates of y, of the dual and of v, and the sets that the latter two stay in."""

    lower_rate: Any
    dual_rate: Any
    v_rate: Any
    dual_constraint: Any
    radius: Any  # of the ball for v; None = no ball

    def one(self, task: TaskView, x: Any, point: BlockPoint, v: Any, sample: UpperSample) -> tuple[BlockPoint, Any]:
        """One block after its moves, all of them from the old point."""
        y, dual = point
        ascent = jax.grad(lambda dual: task.upper(x, BlockPoint(y, dual), sample.upper))(dual)
        up = jax.tree.map(lambda a, s: a + (self.dual_rate * s).astype(a.dtype), dual, ascent)
        held = _held(task, dual)
        slope = jax.grad(held.lower, argnums=1)(x, y, sample.lower)
        down = jax.tree.map(lambda a, s: a - (self.lower_rate * s).astype(a.dtype), y, slope)
        new = Tracked(self.v_rate).prepare(held, x, y, Solved(v), sample).v
        new = new if self.radius is None else Ball(self.radius).project(new)
        return BlockPoint(down, self.dual_constraint.project(up)), new

    def visit_some(
        self, problem: MultiBlockProblem, x: Any, points: tuple, v: tuple, count: int | None, key: jax.Array
    ) -> list[Visited]:
        """Visits so many blocks, drawn at random, of all groups; the others come back as they were."""
        block_key, row_key = jax.random.split(key)
        groups, size = problem.groups, problem.size
        dtype = jnp.result_type(*jax.tree.leaves(x))
        share = jnp.full(size, 1 / size, dtype)
        if count is not None:
            chosen = jax.random.permutation(block_key, size)[:count]
            if len(groups) == 1:
                old = Visited(None, points[0], v[0], jnp.zeros_like(share))
                few, share = pytrees.index(old, chosen), jnp.full(count, 1 / count, dtype)
                new = self.visit(groups[0].chosen(chosen), x, few.point, few.v, share, row_key)
                back = lambda a, b: a.at[chosen].set(b.astype(a.dtype))  # noqa: E731
                return [jax.tree.map(back, old, new._replace(direction=None))._replace(direction=new.direction)]
            share = jnp.zeros_like(share).at[chosen].set(1 / count)
        rows = zip(groups, points, v, strict=True)
        return [self.visit(group, x, point, vg, share[group.ids], row_key) for group, point, vg in rows]

    def visit(self, group: Group, x: Any, points: BlockPoint, v: Any, share: jax.Array, key: jax.Array) -> Visited:
        """The blocks of a group after their moves, where their share is not 0, and their part of the direction."""
        samples = group.draw_upper(key)

        def weighted(x: Any) -> tuple[jax.Array, jax.Array]:
            value = lambda task, point, v, s: implicit(_held(task, point.dual), x, point.y, v, s)  # noqa: E731
            losses = group.each(value, points, v, samples)
            return jnp.vdot(share.astype(losses.dtype), losses), losses

        def move(task: TaskView, point: BlockPoint, v: Any, sample: UpperSample, share: jax.Array) -> tuple:
            moved = self.one(task, x, point, v, sample)
            return jax.tree.map(lambda new, old: jnp.where(share > 0, new, old), moved, (point, v))

        direction, losses = jax.grad(weighted, has_aux=True)(x)
        points, v = group.each(move, points, v, samples, share)
        return Visited(direction, points, v, jnp.where(share > 0, losses, 0))


def _held(task: TaskView, dual: Any) -> TaskView:
    """A block with its dual variable held, as estimators see tasks."""
    return task._replace(
        upper=lambda x, y, sample: task.upper(x, BlockPoint(y, dual), sample),
        lower=lambda x, y, sample: task.lower(x, BlockPoint(y, dual), sample),
    )
