"""SPABA: stochastic probabilistic averaging bilevel algorithm, single loop, PAGE on x, y and the linear system.

With G(x, y, v) = (grad_y g,  A v - f_y,  f_x - J v) and the losses f, all at one point, step k:

    (1)  G^k = G(x^k, y^k, v^k) on all the data with probability p, otherwise
         G^k = G^{k-1} + G(x^k, y^k, v^k; rows) - G(x^{k-1}, y^{k-1}, v^{k-1}; the same rows)
    (2)  y, v, x each one step along their part of G^k; lambda from the losses in it

With several tasks the third part is sum_i lambda_i (f_x - J v_i), and the old weights belong to the old point. With
exact oracles G^k is exact for every k and p. Constant rates converge on finite data: the noise vanishes there.

Published for one task without constraint, finite data or streams: the optimal O(sqrt(N) eps^-1) and O(eps^-1.5)
samples. Constraint, several tasks and weights are our extension, without a theorem; the losses that drive the weights
are variance-reduced with the rest, without which the method stalls.

Reference: Chu, Xu, Yao, Zhang, "SPABA: a single-loop and probabilistic stochastic bilevel algorithm achieving optimal
sample complexity", ICML 2024.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import jax

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel._core.types import Tree
from bilevel.hypergradients.trackers import Memory, Oracle, Storm
from bilevel.lower.steps import lower_gradients
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem
from bilevel.solvers._base.checks import check_refresh
from bilevel.solvers._base.linear_system import LinearSystemSolver, residuals, rows_of_g
from bilevel.solvers._base.solver import Card
from bilevel.solvers._base.state import Info, State
from bilevel.solvers._base.tracking import KeptPoint, LastPoint, UpperValue, as_evaluation, kept, upper_oracle


class Directions(NamedTuple):
    """G, and the losses."""

    y: PerTask[Tree]
    v: PerTask[Tree]
    upper: UpperValue


@part
class Recursive(LinearSystemSolver):
    """The step of SPABA and SRBA, which differ in when they start afresh."""

    refresh_batch: int | None = None
    tracker: Storm = Storm()

    moves_at_once = compares_points = True

    def check(self, problem: Problem) -> None:
        """As every solver, and the large batch."""
        super().check(problem)
        check_refresh(type(self).__name__, self.refresh_batch, problem)

    @abc.abstractmethod
    def refreshes(self, state: State, key: jax.Array) -> jax.Array:
        """Whether this step starts afresh."""

    def start_memory(self, problem: Problem, state: State, key: jax.Array) -> Memory:
        """The first directions are on the large batch."""
        return self._refreshed(problem, kept(self.point(state)), key)

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """All directions at (x^k, y^k, v^k), then all moves."""
        refresh_key, coin_key, key = jax.random.split(key, 3)
        samples = problem.draw_upper(key)
        state, beta = self.lower_rates(problem, state, rows_of_g(samples))
        point = kept(self.point(state))
        memory = jax.lax.cond(
            self.refreshes(state, coin_key),
            lambda: self._refreshed(problem, point, refresh_key),
            lambda: self.tracker.update(self._directions(problem), point, state.memory, samples, 0.0)[2],
        )  # (1)
        along: Directions = memory.value
        seen = as_evaluation(along.upper, self.weights_of_x(state), self.move_v(state.v, along.v, beta))
        state, info = self.move_x_and_weights(problem, self.move_lower(state, along.y, beta), beta, seen)  # (2)
        return state._replace(memory=memory), info

    def with_last_point(self, state: State, last: LastPoint) -> State:
        """Of all directions."""
        return state._replace(memory=last.of(state.memory, self.point(state)))

    def _refreshed(self, problem: Problem, point: KeptPoint, key: jax.Array) -> Memory:
        large = problem.rebatched(lambda _: self.refresh_batch)
        return self.tracker.init(self._directions(large)(point, large.draw_upper(key))[0], point)

    def _directions(self, problem: Problem) -> Oracle:
        """G at a point."""
        oracle, per_task = self.oracle(problem), self.tracker.per_task
        evaluate = oracle.directions_at_fixed_v if per_task else oracle.at_fixed_v
        upper = upper_oracle(evaluate, per_task=per_task)

        def at(point: KeptPoint, samples: Any) -> tuple[Directions, tuple]:
            u = lower_gradients(problem, point.x, point.y, rows_of_g(samples))
            return Directions(u, residuals(problem, point, samples), upper(point, samples)[0]), ()

        return at


@part
class SPABA(Recursive):
    """SPABA: SOBA along directions kept exact by differences, refreshed at random.

    Options as for `SOBA`, and:

    Args:
        refresh_batch: rows of a refresh; None = all the data.
        tracker: `Storm()`, or `Storm(per_task=True)` for one direction per task (memory n d_x).
        probability: of a refresh in each step.
    """

    probability: float = leaf(default=0.1)  # p

    card = Card(
        loops="single",
        keeps="v (n d_y), the last point, its directions (2 n d_y + d_x; per task 2 n d_y + n d_x)",
        rate="O(sqrt(N) eps^-1) on N rows, O(eps^-1.5) on streams",
        paper="Chu, Xu, Yao, Zhang, ICML 2024",
        extension="constraint, several tasks, weights",
    )

    def check(self, problem: Problem) -> None:
        """As SOBA, and the probability."""
        super().check(problem)
        values.share("probability", self.probability, of="SPABA")

    def refreshes(self, state: State, key: jax.Array) -> jax.Array:
        """With probability p."""
        return jax.random.bernoulli(key, self.probability)
