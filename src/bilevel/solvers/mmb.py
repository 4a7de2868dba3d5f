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

Blocks that form one group: only those drawn are computed. Blocks in several groups: all are computed and those not
drawn count for nothing, because how many of each group are drawn differs from step to step and compiled shapes cannot.

Reference: Hu, Zhong, Yang, "Multi-block min-max bilevel optimization with applications in multi-task deep AUC
maximization", NeurIPS 2022.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from bilevel._core import pytrees
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate, rate_at
from bilevel.problem import checks, initial_point
from bilevel.problem.multiblock import BlockPoint, MultiBlockProblem
from bilevel.solvers._base.blocks import BlockMove
from bilevel.solvers._base.card import Card
from bilevel.solvers._base.solver import Info


class State(NamedTuple):
    """Where a run is; y holds the y and the dual variable of every block, stacked, per group."""

    step: jax.Array
    x: Any
    y: tuple[BlockPoint, ...]
    weights: jax.Array  # 1/m, always
    v: tuple
    z: Any  # the momentum of x


@part
class MMB:
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
    chooses_rates = False
    card = Card(
        loops="single",
        keeps="v (m d_y), z (d_x), the dual variables",
        rate="O(eps^-2)",
        paper="Hu, Zhong, Yang, NeurIPS 2022",
        extension="constraint on x",
        problem="multi-block min-max bilevel",
    )

    def init(self, problem: MultiBlockProblem, x: Any, y: Any = None, *, key: jax.Array, steps: int) -> State:
        """Validates everything and returns the first state."""
        checks.check_kind(self, problem)
        x = initial_point.arrays(x, "x")
        points = problem.points(initial_point.lower_points(problem, y, jax.random.fold_in(key, 0)))
        self.check(problem)
        checks.check_count("steps", steps)
        checks.check_start(problem, x, points)
        checks.check_inside("dual_constraint", problem.dual_constraint, "dual", problem.dual)
        return self.start(problem, x, points, key, steps)

    def check(self, problem: MultiBlockProblem) -> None:
        """Raises where an option makes no sense."""
        for field in ("upper_lr", "lower_lr", "dual_lr"):
            checks.check_given(f"MMB({field})", getattr(self, field))
        checks.check_rate("MMB(v_lr)", self.v_lr)
        checks.check_share("MMB(momentum)", self.momentum)
        if self.radius is not None and not pytrees.is_traced(self.radius) and not checks.is_positive(self.radius):
            raise ValueError(f"MMB(radius={self.radius!r}): it needs a positive number, or None.")
        if self.blocks_per_step is not None:
            checks.check_part("MMB(blocks_per_step)", self.blocks_per_step, problem.size)

    def start(self, problem: MultiBlockProblem, x: Any, y: tuple, key: jax.Array, steps: Any) -> State:
        """The first state, without checks; pure."""
        dtype = jnp.promote_types(jnp.result_type(*jax.tree.leaves(x)), jnp.float32)
        weights = jnp.full(problem.size, 1 / problem.size, dtype)
        zeros = optax.tree.zeros_like
        return State(jnp.zeros((), jnp.int32), x, y, weights, tuple(zeros(point.y) for point in y), zeros(x))

    def refresh(self, problem: MultiBlockProblem, state: State, key: jax.Array, iterations: Any = 1) -> State:
        """Nothing is measured."""
        return state

    def measures(self, state: State) -> bool:
        """Nothing is measured."""
        return False

    def replace(self, **options: Any) -> Self:
        """The same solver with other options."""
        return dataclasses.replace(self, **options)

    def step(self, problem: MultiBlockProblem, state: State, key: jax.Array) -> tuple[State, Info]:
        """Draws blocks, moves what is theirs, then x; all from the old point."""
        rate, lower, dual, v = (rate_at(r, state.step) for r in (self.upper_lr, self.lower_lr, self.dual_lr, self.v_lr))
        move = BlockMove(lower, dual, lower if v is None else v, problem.dual_constraint, self.radius)
        seen = move.visit_some(problem, state.x, state.y, state.v, self.blocks_per_step, key)  # (1) to (4)
        direction = jax.tree.map(lambda *parts: sum(parts), *(group.direction for group in seen))
        beta = rate_at(self.momentum, state.step)
        z = jax.tree.map(lambda z, d: z + (beta * (d - z)).astype(z.dtype), state.z, direction)  # (5)
        x = jax.tree.map(lambda x, z: x - (rate * z).astype(x.dtype), state.x, z)
        dtype = state.weights.dtype
        info = Info(
            losses=problem.join([group.losses for group in seen]).astype(dtype),
            direction_norm=optax.tree.norm(z).astype(dtype),
            upper_rate=jnp.asarray(rate, dtype),
            lower_rate=jnp.full(problem.size, lower, dtype),
            weights_rate=jnp.zeros((), dtype),
        )
        points, v = tuple(group.point for group in seen), tuple(group.v for group in seen)
        return State(state.step + 1, problem.constraint.project(x), points, state.weights, v, z), info
