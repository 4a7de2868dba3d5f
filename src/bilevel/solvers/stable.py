"""STABLE: single-timescale stochastic bilevel optimization, single loop, with tracked second derivatives.

Step k, everything at (x^k, y^k) on one sample; hats are matrices that are kept, tau their momentum:

    (1)  A^ <- proj_{>= mu} (A(x^k, y^k) + (1 - tau) (A^ - A(x^{k-1}, y^{k-1}))),   J^ likewise without projection
    (2)  x^{k+1} = proj_X (x^k - alpha (f_x - J^ A^^-1 f_y))
    (3)  y^{k+1} = y^k - beta grad_y g - A^^-1 J^' (x^{k+1} - x^k)
    (4)  lambda^{k+1} from the losses f_i

The last term of (3) moves y along with y*(x): on quadratics y - y*(x) shrinks by (I - beta A) a step whatever x does,
so that there is no lag, and the weights may move faster than in any other single-loop method. The price is d_y^2 +
d_x d_y numbers and a factorisation of a d_y x d_y matrix per task: for small y only. (3) uses the move of x after its
projection, and both points of (1) see the same rows.

Published for one task with a constraint on x, alpha, beta, tau ~ K^{-1/2}: O(eps^-2) samples. The paper also projects
J^ onto a ball; constants and radii are not confirmed, and J^ is free here. mu, which nobody knows, is `floor` times
the largest curvature in A^. Several tasks and weights (4) are our extension, without a theorem.

Reference: Chen, Sun, Xiao, Yin, "A single-timescale method for stochastic bilevel optimization", AISTATS 2022.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from bilevel._core import pytrees
from bilevel._core.derivatives import Second, second
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate, rate_at
from bilevel.hypergradients import Direct
from bilevel.hypergradients.base import Hypergradient, upper_gradient
from bilevel.oracles.upper import Evaluation, lower_gradients
from bilevel.problem import checks
from bilevel.problem.group import TaskView
from bilevel.problem.problem import Problem
from bilevel.solvers._base.bilevel import BilevelSolver, Info, Lowered, State
from bilevel.solvers._base.card import Card
from bilevel.weightings import Average
from bilevel.weightings.base import Weighting


class Kept(NamedTuple):
    """The tracked matrices, and the point they were last tracked at."""

    second: tuple[Second, ...]
    x: Any
    y: tuple


@part
class STABLE(BilevelSolver):
    """STABLE: tracked Hessians and Jacobians, and a y that moves along with x.

    Options as for `MORBiT` without hypergradient, which is its own, and:

    Args:
        momentum: tau, the weight of the fresh matrices: a number in (0, 1] or a schedule.
        floor: the smallest curvature kept in A^, as a part of its largest.
    """

    hypergradient: Hypergradient = Direct()  # f_x alone; the implicit term is made of the kept matrices
    weighting: Weighting = Average()
    momentum: Rate = leaf(default=0.5)  # tau
    floor: float = leaf(default=1e-4)

    card = Card(
        loops="single",
        keeps="A^ (n d_y^2), J^ (n d_x d_y), the last point",
        rate="O(eps^-2)",
        paper="Chen, Sun, Xiao, Yin, AISTATS 2022",
        extension="several tasks, weights",
    )

    def check(self, problem: Problem) -> None:
        """As every solver, and that nobody gave an estimator."""
        super().check(problem)
        checks.check_share("STABLE(momentum)", self.momentum)
        checks.check_share("STABLE(floor)", self.floor)
        if not isinstance(self.hypergradient, Direct):
            raise ValueError(f"STABLE(hypergradient={self.hypergradient}): STABLE keeps its own matrices; give none.")

    def check_size(self, problem: Problem, x: Any, y: tuple) -> None:
        """The matrices must fit."""
        for group, y_group in zip(problem.groups, y, strict=True):
            d = optax.tree.size(y_group) // group.size
            numbers = 4 * group.size * d * (d + optax.tree.size(x))  # fresh and kept, at two points
            what = f"STABLE, with {group.size} tasks, {d} numbers in y and {optax.tree.size(x)} in x,"
            checks.check_memory(what, numbers, jnp.result_type(*jax.tree.leaves(x)), "use bl.MORBiT() or bl.SOBA()")

    def start_trackers(self, problem: Problem, state: State, key: jax.Array) -> State:
        """The first matrices are those of the first sample; zeros would have no inverse."""
        kept = self._second(problem, state.x, state.y, problem.draw_lower(key))
        return state._replace(trackers=Kept(kept, state.x, state.y))

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """Matrices, x, then y along with it."""
        samples = problem.draw_upper(key)
        rows = tuple(sample.lower for sample in samples)
        automatic = self.follow_curvature(problem, state, rows)
        rate = self.lower_rates(problem, state, automatic)
        new = self._second(problem, state.x, state.y, rows)
        old = self._second(problem, state.trackers.x, state.trackers.y, rows)
        keep = 1 - rate_at(self.momentum, state.step)
        kept = jax.tree.map(lambda n, k, o: n + (keep * (k - o)).astype(n.dtype), new, state.trackers.second, old)
        kept = tuple(s._replace(A=jax.vmap(self._positive)(s.A)) for s in kept)  # (1)
        seen = self.upper_level(None).direction(problem, state.x, state.y, state.weights, state.hypergradient, samples)
        implicit = self._implicit(problem, state, kept, samples)
        seen = Evaluation(optax.tree.sub(seen.direction, implicit), seen.losses, seen.state)
        u = lower_gradients(problem, state.x, state.y, rows)
        lowered = Lowered(*self.lower_move(state.y, state.lower, u, rate), rate, automatic)
        after, info = self.finish(problem, state, lowered, seen)  # (2), (4)
        moved = optax.tree.sub(after.x, state.x)
        follow = tuple(jax.vmap(lambda s, y: _follow(s, moved, y))(s, y) for s, y in zip(kept, state.y, strict=True))
        y = tuple(map(optax.tree.sub, after.y, follow))  # (3)
        return after._replace(y=y, trackers=Kept(kept, state.x, state.y)), info

    def _second(self, problem: Problem, x: Any, y: tuple, rows: tuple) -> tuple[Second, ...]:
        of = lambda task, y, sample: second(task.lower, x, y, sample)  # noqa: E731
        return tuple(group.each(of, yg, s) for group, yg, s in zip(problem.groups, y, rows, strict=True))

    def _positive(self, A: jax.Array) -> jax.Array:
        values, vectors = jnp.linalg.eigh((A + A.T) / 2)
        values = jnp.maximum(values, jnp.asarray(self.floor, A.dtype) * jnp.max(jnp.abs(values)))
        return (vectors * values[None]) @ vectors.T

    def _implicit(self, problem: Problem, state: State, kept: tuple[Second, ...], samples: tuple) -> Any:
        """sum_i lambda_i J^_i A^_i^-1 f_y,i."""

        def one(task: TaskView, y: Any, kept: Second, weight: jax.Array, sample: Any) -> Any:
            right, _ = ravel_pytree(upper_gradient(task, state.x, y, sample))
            v = weight.astype(right.dtype) * jnp.linalg.solve(kept.A, right)
            return jax.tree.map(lambda J: jnp.tensordot(v.astype(J.dtype), J, 1), kept.J)

        rows = zip(problem.groups, state.y, kept, samples, strict=True)
        parts = [group.each(one, y, s, pytrees.index(state.weights, group.ids), sample) for group, y, s, sample in rows]
        sums = [jax.tree.map(lambda a: jnp.sum(a, axis=0), part) for part in parts]
        return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *sums)


def _follow(second: Second, move: Any, y: Any) -> Any:
    """A^^-1 J^' (move of x), as y is shaped."""
    flat, unravel = ravel_pytree(y)
    change = sum(jnp.tensordot(J, m, m.ndim) for J, m in zip(*map(jax.tree.leaves, (second.J, move)), strict=True))
    return unravel(jnp.linalg.solve(second.A, jnp.asarray(change, flat.dtype)))
