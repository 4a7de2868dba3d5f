"""SOBA along directions kept exact by differences: what SPABA and SRBA share.

With G(x, y, v) = (grad_y g,  A v - f_y,  f_x - J v) and the losses f, all at one point, step k:

    (1)  G^k = G(x^k, y^k, v^k) on a large batch where the method starts afresh, otherwise
         G^k = G^{k-1} + G(x^k, y^k, v^k; rows) - G(x^{k-1}, y^{k-1}, v^{k-1}; the same rows)
    (2)  y, v, x each one step along their part of G^k; lambda from the losses in it

With several tasks the third part is sum_i lambda_i (f_x - J v_i), and the old weights belong to the old point. With
exact oracles G^k is exact, whenever it starts afresh.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bilevel._core.derivatives import hessian_product
from bilevel._core.module import part
from bilevel.hypergradients.base import upper_gradient
from bilevel.oracles.upper import lower_gradients
from bilevel.problem import checks
from bilevel.problem.problem import Problem
from bilevel.solvers._base.bilevel import Info, Lowered, State
from bilevel.solvers._base.tracking import UpperPoint, seen_as, upper_oracle, upper_point
from bilevel.solvers.soba import SOBA
from bilevel.trackers import Storm
from bilevel.trackers.base import Memory, Oracle


@part
class Recursive(SOBA):
    """The step; a method says when it starts afresh."""

    refresh_batch: int | None = None
    tracker: Storm = Storm()

    def check(self, problem: Problem) -> None:
        """As SOBA, and the large batch."""
        super().check(problem)
        checks.check_refresh(f"{type(self).__name__}(refresh_batch)", self.refresh_batch, problem)

    def refreshes(self, state: State, key: jax.Array) -> jax.Array:
        """Whether this step starts afresh."""
        raise NotImplementedError

    def start_trackers(self, problem: Problem, state: State, key: jax.Array) -> State:
        """The first directions are on the large batch."""
        return state._replace(trackers=self._refreshed(problem, upper_point(state, state.automatic), key))

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """All directions at (x^k, y^k, v^k), then all moves."""
        refresh_key, coin_key, key = jax.random.split(key, 3)
        samples = problem.draw_upper(key)
        automatic = self.follow_curvature(problem, state, tuple(sample.lower for sample in samples))
        rate = self.lower_rates(problem, state, automatic)
        point = upper_point(state, automatic)
        tracked = jax.lax.cond(
            self.refreshes(state, coin_key),
            lambda: self._refreshed(problem, point, refresh_key),
            lambda: self.tracker.update(self._oracle(problem), point, state.trackers, samples, 0.0)[2],
        )  # (1)
        u, residual, value = tracked.value
        v = tuple(map(self._move_v, state.hypergradient, residual, rate))
        seen = seen_as(value, state.weights, v, per_task=self.tracker.per_task)
        lowered = Lowered(*self.lower_move(state.y, state.lower, u, rate), rate, automatic)
        state, info = self.finish(problem, state, lowered, seen)  # (2)
        return state._replace(trackers=tracked), info

    def _move_v(self, v: tuple, residual: tuple, rate: jax.Array) -> tuple:
        given = self.hypergradient.lr  # type: ignore[attr-defined]
        step = jax.vmap(lambda v, r, lr: jax.tree.map(lambda v, r: v - (lr * r).astype(v.dtype), v, r))
        return step(v, residual, rate if given is None else jnp.full_like(rate, given))

    def _refreshed(self, problem: Problem, point: UpperPoint, key: jax.Array) -> Memory:
        large = problem.rebatched(lambda _: self.refresh_batch)
        return self.tracker.init(self._oracle(large)(point, large.draw_upper(key))[0], point)

    def _oracle(self, problem: Problem) -> Oracle:
        """(grad_y g, A v - f_y, (direction, losses)) at a point."""
        upper = upper_oracle(self, problem, per_task=self.tracker.per_task, held=True)

        def oracle(point: UpperPoint, samples: tuple) -> tuple:
            def residual(task, y, solved, sample):
                image = hessian_product(task.lower, point.x, y, solved.v, sample.lower)
                right = upper_gradient(task, point.x, y, sample)
                return solved._replace(v=jax.tree.map(jnp.subtract, image, right))

            rows = zip(problem.groups, point.y, point.hypergradient, samples, strict=True)
            residuals = tuple(group.each(residual, y, v, s) for group, y, v, s in rows)
            value, _ = upper(point, samples)
            u = lower_gradients(problem, point.x, point.y, tuple(sample.lower for sample in samples))
            return (u, residuals, value), ()

        return oracle
