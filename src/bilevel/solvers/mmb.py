"""MMB: multi-block min-max bilevel optimization, single loop, some of the blocks at a time.

Step k, everything at (x^k, a^k, y^k, v^k), one batch of f and one of g for each block:

    (1)  I        = C of the m blocks, uniformly, without replacement; the others stay as they are
    (2)  a_i     <- proj_A (a_i + eta_1 grad_a f_i)                     i in I
    (3)  y_i     <- y_i - eta_2 grad_y g_i                              i in I
    (4)  v_i     <- proj_ball (v_i - eta_3 (A_i v_i - grad_y f_i))      i in I
    (5)  z       <- (1 - beta) z + beta (1/C) sum_{i in I} (grad_x f_i - J_i v_i^k),       x <- proj_X (x - eta_0 z)

(5) has the old v_i, as the analysis does. This is the paper's second version, with tracked vectors v_i; its first,
which tracks Hessian matrices, is not here. The problem and its rate are the paper's; these updates are written from
memory.

Published without a constraint on x: O(eps^-4) samples until the gradient norm is below eps, for eta_0 and beta ~ eps^2.
The projection of x is our extension.

Reference: Hu, Zhong, Yang, "Multi-block min-max bilevel optimization with applications in multi-task deep AUC
maximization", NeurIPS 2022.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate, rate_at
from bilevel._core.types import Scalar, Tree
from bilevel.hypergradients.hypergradient import implicit, residual, step_towards
from bilevel.problem import findings
from bilevel.problem.constraints import Ball, Constraint
from bilevel.problem.group import TaskView, UpperSample
from bilevel.problem.multiblock import BlockPoint, MultiBlockProblem
from bilevel.problem.per_task import InOrder, PerTask, fields_of
from bilevel.solvers._base.solver import Card, Solver
from bilevel.solvers._base.state import Info, State
from bilevel.solvers._base.task_subset import Chosen


@part
class MMB(Solver):
    """Multi-block min-max bilevel optimization, for a `bl.MultiBlockProblem`. No rate is chosen: they must be given.

    Args:
        upper_lr: the rate of x (eta_0), a number or a schedule.
        lower_lr: the rate of y (eta_2), likewise.
        dual_lr: the rate of the dual variables (eta_1), likewise.
        v_lr: the rate of v (eta_3), likewise; None = that of y.
        momentum: the weight of the fresh direction (beta), a number in (0, 1] or a schedule.
        blocks_per_step: C; None = all blocks in every step.
        radius: of the ball that every v_i stays in; None = no ball.
    """

    upper_lr: Rate = leaf(default=None)  # eta_0
    lower_lr: Rate = leaf(default=None)  # eta_2
    dual_lr: Rate = leaf(default=None)  # eta_1
    v_lr: Rate = leaf(default=None)  # eta_3
    momentum: Rate = leaf(default=0.1)  # beta
    blocks_per_step: int | None = None  # C
    radius: float | None = leaf(default=None)

    problem_type = MultiBlockProblem
    card = Card(
        loops="single",
        keeps="v (m d_y), z (d_x), the dual variables",
        rate="O(eps^-2)",
        paper="Hu, Zhong, Yang, NeurIPS 2022",
        extension="constraint on x",
        problem="multi-block min-max bilevel",
    )

    def check(self, problem: MultiBlockProblem) -> None:
        """Raises where an option makes no sense."""
        for field in ("upper_lr", "lower_lr", "dual_lr"):
            values.rate(field, getattr(self, field), given=True, of="MMB")
        values.rate("v_lr", self.v_lr, of="MMB")
        values.share("momentum", self.momentum, scheduled=True, of="MMB")
        values.positive("radius", self.radius, of="MMB", none="no ball")
        values.whole("blocks_per_step", self.blocks_per_step, most=problem.size, of="MMB", none="all blocks")
        dual = findings.in_constraint("dual_constraint", problem.dual_constraint, "dual", problem.dual)
        findings.raise_first(dual)

    def start(self, problem: MultiBlockProblem, x: Tree, y: PerTask[Tree], key: jax.Array, steps: jax.Array) -> State:
        """The first state, without checks; pure. v is zero, and so is the momentum z of x."""
        dtype = jnp.promote_types(jnp.result_type(*jax.tree.leaves(x)), jnp.float32)
        weights = jnp.full(problem.size, 1 / problem.size, dtype)  # 1/m, always
        v = PerTask(tuple(optax.tree.zeros_like(point.y) for point in y))
        return State(jnp.zeros((), jnp.int32), x, y, weights, v=v, memory=optax.tree.zeros_like(x))

    def step(self, problem: MultiBlockProblem, state: State, key: jax.Array) -> tuple[State, Info]:
        """Draws blocks, moves what is theirs, then x; all from the old point."""
        rate, lower, dual, v_rate = (
            rate_at(r, state.step) for r in (self.upper_lr, self.lower_lr, self.dual_lr, self.v_lr)
        )
        move = BlockMove(lower, dual, lower if v_rate is None else v_rate, problem.dual_constraint, self.radius)
        block_key, row_key = jax.random.split(key)
        dtype = jnp.result_type(*jax.tree.leaves(state.x))
        chosen = Chosen.draw(problem, block_key, self.blocks_per_step, dtype)  # (1)
        share = chosen.mask / chosen.count
        samples = chosen.problem.draw_upper(row_key)
        seen = visit(chosen.problem, move, state.x, chosen.take(state.y), chosen.take(state.v), share, samples)
        y, v = chosen.put(state.y, seen.point), chosen.put(state.v, seen.v)  # (2) to (4)
        losses = chosen.put(InOrder(jnp.zeros_like(state.weights)), InOrder(seen.losses)).value
        beta = rate_at(self.momentum, state.step)
        z = jax.tree.map(lambda z, d: z + (beta * (d - z)).astype(z.dtype), state.memory, seen.direction)  # (5)
        x = jax.tree.map(lambda x, z: x - (rate * z).astype(x.dtype), state.x, z)
        info = Info.of(losses, optax.tree.norm(z), upper_rate=rate, lower_rate=lower, weights_rate=0.0)
        x = problem.constraint.project(x)
        return state._replace(step=state.step + 1, x=x, y=y, v=v, memory=z), info


class Visited(NamedTuple):
    """The blocks after their moves."""

    direction: Tree  # of x
    point: PerTask[BlockPoint]
    v: PerTask[Tree]
    losses: jax.Array  # in the order of the blocks


class BlockMove(NamedTuple):
    """How blocks move: the rates of y, of the dual and of v, and the sets that the latter two stay in."""

    lower_rate: Scalar
    dual_rate: Scalar
    v_rate: Scalar
    dual_constraint: Constraint
    radius: float | None  # of the ball for v; None = no ball

    def one(self, task: TaskView, x: Tree, point: BlockPoint, v: Tree, sample: UpperSample) -> tuple[BlockPoint, Tree]:
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
    x: Tree,
    points: PerTask[BlockPoint],
    v: PerTask[Tree],
    share: jax.Array,
    samples: PerTask[UpperSample],
) -> Visited:
    """All blocks of a problem after their moves, and the direction of x: sum_i share_i (f_x - J v_i)."""

    def weighted(x: Tree) -> tuple[jax.Array, jax.Array]:
        value = lambda task, point, v, s: implicit(at_dual(task, point.dual), x, point.y, v, s)  # noqa: E731
        losses = problem.join(problem.each(value, points, v, samples))
        return jnp.vdot(share.astype(losses.dtype), losses), losses

    direction, losses = jax.grad(weighted, has_aux=True)(x)
    moved = problem.each(lambda task, point, v, s: move.one(task, x, point, v, s), points, v, samples)
    new_points, new_v = fields_of(moved)
    return Visited(direction, new_points, new_v, losses)


def at_dual(task: TaskView, dual: Tree) -> TaskView:
    """A block with its dual variable fixed, as estimators see tasks."""
    return task._replace(
        upper=lambda x, y, sample: task.upper(x, BlockPoint(y, dual), sample),
        lower=lambda x, y, sample: task.lower(x, BlockPoint(y, dual), sample),
    )
