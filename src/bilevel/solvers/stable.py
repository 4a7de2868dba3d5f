"""STABLE: single-timescale stochastic bilevel optimization, single loop, with tracked second derivatives.

Step k, everything at (x^k, y^k) on one sample; hats are matrices that are kept, tau their momentum:

    (1)  A^ <- proj_{>= mu} (A(x^k, y^k) + (1 - tau) (A^ - A(x^{k-1}, y^{k-1}))),   J^ likewise without projection
    (2)  x^{k+1} = proj_X (x^k - alpha (f_x - J^ A^^-1 f_y))
    (3)  y^{k+1} = y^k - beta grad_y g - A^^-1 J^' (x^{k+1} - x^k)
    (4)  lambda^{k+1} from the losses f_i

The last term of (3) moves y along with y*(x): on quadratics y - y*(x) shrinks by (I - beta A) a step whatever x does,
so that there is no lag, and the weights may move faster than in any other single-loop method. The price is d_y^2 +
d_x d_y numbers and a factorisation of a d_y x d_y matrix per task: for small y only. (3) uses the move of x after its
projection, and both points of (1) see the same rows. Where a step sees some of the tasks, only they move along with x,
and of one that was not in the last step (1) is a running mean: `solvers/_base/tracking.py` says why.

Published for one task with a constraint on x, alpha, beta, tau ~ K^{-1/2}: O(eps^-2) samples. The paper also projects
J^ onto a ball; constants and radii are not confirmed, and J^ is free here. mu, which is not known, is `floor` times
the largest curvature in A^. Several tasks and weights (4) are our extension, without a theorem.

Reference: Chen, Sun, Xiao, Yin, "A single-timescale method for stochastic bilevel optimization", AISTATS 2022.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from bilevel._core import dense, values
from bilevel._core.linear import Second, second
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate, rate_at
from bilevel._core.types import Tree
from bilevel.hypergradients import Direct
from bilevel.hypergradients.hypergradient import upper_gradient
from bilevel.hypergradients.upper import Point, Upper
from bilevel.lower.rules import Rule
from bilevel.lower.steps import lower_gradients
from bilevel.problem.group import TaskView, UpperSample
from bilevel.problem.per_task import PerTask, Some
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Sample
from bilevel.rates import Measured
from bilevel.rates.protocol import Rates
from bilevel.solvers._base.bilevel import BilevelSolver
from bilevel.solvers._base.checks import check_memory
from bilevel.solvers._base.linear_system import rows_of_g
from bilevel.solvers._base.solver import Card
from bilevel.solvers._base.state import Info, State
from bilevel.solvers._base.tracking import LastPoint
from bilevel.solvers.sampling import All, Sampling
from bilevel.weightings import Average
from bilevel.weightings.base import Weighting


class Kept(NamedTuple):
    """The tracked matrices, and the point they were last tracked at."""

    second: PerTask[Second]
    x: Tree
    y: PerTask[Tree]
    rested: Some | None = None  # tasks whose matrices are of an older point, which is not known; None = none is


@part
class STABLE(BilevelSolver):
    """STABLE: tracked Hessians and Jacobians, and a y that moves along with x.

    Args:
        upper_lr: the rate of x (alpha): a number, a schedule, or None = chosen and kept up to date.
        lower_lr: the rate of y (beta), likewise; None gives every task its own.
        weighting: how the tasks' losses move their weights, from `bl.weightings`; its `lr` is gamma.
        upper_rule: from a rate to an optax transformation, for x; None = what the rates are made for, `optax.sgd`.
        lower_rule: likewise for y, per task.
        rates: where rates come from that are None, from `bl.rates`.
        sampling: which tasks a step sees, from `bl.sampling`.
        momentum: tau, the weight of the fresh matrices: a number in (0, 1] or a schedule.
        floor: the smallest curvature kept in A^, as a fraction of its largest.
    """

    upper_lr: Rate = leaf(default=None)  # alpha
    lower_lr: Rate = leaf(default=None)  # beta
    weighting: Weighting = Average()
    upper_rule: Rule | None = None
    lower_rule: Rule = optax.sgd
    rates: Rates = Measured()
    sampling: Sampling = All()
    momentum: Rate = leaf(default=0.5)  # tau
    floor: float = leaf(default=1e-4)

    moves_x_first = True
    compares_points = True
    card = Card(
        loops="single",
        keeps="A^ (n d_y^2), J^ (n d_x d_y), the last point",
        rate="O(eps^-2)",
        paper="Chen, Sun, Xiao, Yin, AISTATS 2022",
        extension="several tasks, weights",
    )

    @property
    def estimator(self) -> Direct:
        """f_x alone; the implicit term is made of the kept matrices."""
        return Direct()

    def check(self, problem: Problem) -> None:
        """As every solver, and the two shares."""
        super().check(problem)
        values.share("momentum", self.momentum, scheduled=True, of="STABLE")
        values.share("floor", self.floor, of="STABLE")

    def check_size(self, problem: Problem, x: Tree, y: PerTask[Tree]) -> None:
        """The matrices must fit."""
        for group, y_group in zip(problem.groups, y, strict=True):
            d = optax.tree.size(y_group) // group.size
            numbers = 4 * group.size * d * (d + optax.tree.size(x))  # fresh and kept, at two points
            what = f"STABLE, with {group.size} tasks, {d} numbers in y and {optax.tree.size(x)} in x,"
            check_memory(what, numbers, jnp.result_type(*jax.tree.leaves(x)), "use bl.MORBiT() or bl.SOBA()")

    def start_memory(self, problem: Problem, state: State, key: jax.Array) -> Kept:
        """The first matrices are those of the first sample; zeros would have no inverse."""
        return Kept(seconds(problem, state.x, state.y, problem.draw_lower(key)), state.x, state.y)

    def with_last_point(self, state: State, last: LastPoint) -> State:
        """Which matrices are of an older point than the last."""
        return state._replace(memory=state.memory._replace(rested=last.rested))

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """Matrices, x, then y along with it."""
        samples = problem.draw_upper(key)
        rows = rows_of_g(samples)
        state, beta = self.lower_rates(problem, state, rows)
        new = seconds(problem, state.x, state.y, rows)
        old = seconds(problem, state.memory.x, state.memory.y, rows)
        rested = state.memory.rested
        old = old if rested is None else rested.pick(new, old)
        keep = 1 - rate_at(self.momentum, state.step)
        matrices = jax.tree.map(lambda n, k, o: n + (keep * (k - o)).astype(n.dtype), new, state.memory.second, old)
        matrices = problem.each(lambda _, s: s._replace(A=positive(s.A, self.floor)), matrices)  # (1)
        point = self.point(state)
        seen = Upper(problem, self.estimator).direction(point, samples)
        implicit = implicit_term(problem, point, matrices, samples)
        seen = seen._replace(direction=optax.tree.sub(seen.direction, implicit))
        after = self.move_lower(state, lower_gradients(problem, state.x, state.y, rows), beta)
        after, info = self.move_x_and_weights(problem, after, beta, seen)  # (2), (4)
        shift = optax.tree.sub(after.x, state.x)
        y = optax.tree.sub(after.y, problem.each(lambda _, s, y: along(s, shift, y), matrices, state.y))  # (3)
        return after._replace(y=y, memory=Kept(matrices, state.x, state.y)), info


def positive(A: jax.Array, floor: float) -> jax.Array:
    """The nearest symmetric matrix without curvatures below `floor` times the largest."""
    values, vectors = dense.eigh((A + A.T) / 2)
    values = jnp.maximum(values, jnp.asarray(floor, A.dtype) * jnp.max(jnp.abs(values)))
    return (vectors * values[None]) @ vectors.T


def seconds(problem: Problem, x: Tree, y: PerTask[Tree], rows: PerTask[Sample]) -> PerTask[Second]:
    """A and J of every task."""
    return problem.each(lambda task, y, sample: second(task.lower, x, y, sample), y, rows)


def implicit_term(problem: Problem, point: Point, matrices: PerTask[Second], samples: PerTask[UpperSample]) -> Any:
    """sum_i lambda_i J^_i A^_i^-1 f_y,i."""

    def right(task: TaskView, y: Tree, sample: UpperSample) -> jax.Array:
        return ravel_pytree(upper_gradient(task, point.x, y, sample))[0]

    def image(task: TaskView, y: Tree, sample: UpperSample, matrices: Second) -> Any:
        v = dense.solve(matrices.A, right(task, y, sample))
        return jax.tree.map(lambda J: jnp.tensordot(v.astype(J.dtype), J, 1), matrices.J)

    return problem.weighted_sum(point.weights, problem.each(image, point.y, samples, matrices))


def along(second: Second, move: Any, y: Tree) -> Any:
    """A^^-1 J^' (move of x), as y is shaped."""
    flat, unravel = ravel_pytree(y)
    change = sum(jnp.tensordot(J, m, m.ndim) for J, m in zip(*map(jax.tree.leaves, (second.J, move)), strict=True))
    return unravel(dense.solve(second.A, jnp.asarray(change, flat.dtype)))
