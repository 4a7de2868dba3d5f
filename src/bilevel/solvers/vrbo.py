"""VRBO: variance-reduced bilevel optimizer, a double loop with SPIDER at both levels.

u follows grad_y g, d follows the hypergradient, both by differences on small batches. Step k:

    (1)  if k mod period = 0:  u, d <- values at (x^k, y^k) on a large batch
    (2)  x^{k+1} = proj_X (x^k - alpha d),   lambda^{k+1} from the losses, tracked in the same way
    (3)  u, d <- u, d + differences between (x^{k+1}, y^k) and (x^k, y^k) on one small batch
    (4)  m times:  y <- y - beta u;   u, d <- u, d + differences between the new and the last y

At the end of (4) u and d are exact at (x^{k+1}, y^{k+1}) up to sampling, and with exact oracles they are exact for
every k and period. Public code takes both ends of (3) at the new x, so that the move of x is never accounted for and
the estimates drift until the next refresh.

Published for one task without constraint: O~(eps^-1.5) samples (constants from memory). Constraint, several tasks and
weights are our extension, without a theorem.

Reference: Yang, Ji, Liang, "Provably faster algorithms for bilevel optimization", NeurIPS 2021.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bilevel._core.module import part
from bilevel.hypergradients import Neumann
from bilevel.hypergradients.base import Hypergradient
from bilevel.oracles.upper import lower_gradients
from bilevel.problem import checks
from bilevel.problem.problem import Problem
from bilevel.solvers._base.bilevel import BilevelSolver, Info, Lowered, State
from bilevel.solvers._base.card import Card
from bilevel.solvers._base.tracking import UpperPoint, seen_as, upper_oracle, upper_point
from bilevel.trackers import Storm
from bilevel.trackers.base import Memory, Oracle
from bilevel.weightings import Average
from bilevel.weightings.base import Weighting


@part
class VRBO(BilevelSolver):
    """VRBO: x first, then lower steps, along directions kept exact by differences.

    Options as for `MORBiT`, and:

    Args:
        period: steps from one large batch to the next.
        refresh_batch: the size of the large batch; None = all the data.
        lower_steps: m, lower steps per step, each with a correction.
        tracker: `Storm()`, or `Storm(per_task=True)` for one direction per task (memory n d_x).
    """

    hypergradient: Hypergradient = Neumann()
    weighting: Weighting = Average()
    period: int = 3
    refresh_batch: int | None = None
    lower_steps: int = 4
    tracker: Storm = Storm()

    card = Card(
        loops="double",
        keeps="the last point, u (n d_y), d (d_x; per task n d_x)",
        rate="O~(eps^-1.5)",
        paper="Yang, Ji, Liang, NeurIPS 2021",
        extension="constraint, several tasks, weights",
    )

    def check(self, problem: Problem) -> None:
        """As every solver, and the counts."""
        super().check(problem)
        checks.check_count("VRBO(period)", self.period)
        checks.check_count("VRBO(lower_steps)", self.lower_steps)
        checks.check_refresh("VRBO(refresh_batch)", self.refresh_batch, problem)

    def start_trackers(self, problem: Problem, state: State, key: jax.Array) -> State:
        """The first values are on the large batch."""
        return state._replace(trackers=self._refreshed(problem, upper_point(state, state.automatic), key))

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """x and the weights, then y."""
        refresh_key, lower_key = jax.random.split(key)
        automatic = self.follow_curvature(problem, state, problem.draw_lower(lower_key))
        rate = self.lower_rates(problem, state, automatic)
        tracked = jax.lax.cond(
            state.step % self.period == 0,
            lambda: self._refreshed(problem, upper_point(state, automatic), refresh_key),
            lambda: state.trackers,
        )  # (1)
        seen = seen_as(tracked.value[1], state.weights, state.hypergradient, per_task=self.tracker.per_task)
        held = Lowered(state.y, state.lower, rate, automatic)
        state, info = self.finish(problem, state, held, seen)  # (2)
        return self._descend(problem, state, tracked, rate, lower_key), info

    def _descend(self, problem: Problem, state: State, tracked: Memory, rate: tuple, key: jax.Array) -> State:
        """(3) and (4): round 0 corrects for the move of x, the others step first."""
        oracle = self._oracle(problem)

        def round_(t: jax.Array, carry: tuple) -> tuple:
            y, optimiser, hypergradient, tracked = carry
            moved = self.lower_move(y, optimiser, tracked.value[0], rate)
            y, optimiser = jax.tree.map(lambda new, old: jnp.where(t > 0, new, old), moved, (y, optimiser))
            point = UpperPoint(state.x, y, state.weights, hypergradient, state.automatic.lower)
            samples = self._draw(problem, jax.random.fold_in(key, t))
            _, hypergradient, tracked = self.tracker.update(oracle, point, tracked, samples, 0.0)
            return y, optimiser, hypergradient, tracked

        carry = (state.y, state.lower, state.hypergradient, tracked)
        y, optimiser, hypergradient, tracked = jax.lax.fori_loop(0, 1 + self.lower_steps, round_, carry)
        return state._replace(y=y, lower=optimiser, hypergradient=hypergradient, trackers=tracked)

    def _refreshed(self, problem: Problem, point: UpperPoint, key: jax.Array) -> Memory:
        large = problem.rebatched(lambda _: self.refresh_batch)
        value, _ = self._oracle(large)(point, self._draw(large, key))
        return self.tracker.init(value, point)

    def _oracle(self, problem: Problem) -> Oracle:
        """(grad_y g, (direction, losses)) at a point."""
        upper = upper_oracle(self, problem, per_task=self.tracker.per_task)

        def oracle(point: UpperPoint, samples: tuple) -> tuple:
            value, extra = upper(point, samples[1])
            return (lower_gradients(problem, point.x, point.y, samples[0]), value), extra

        return oracle

    def _draw(self, problem: Problem, key: jax.Array) -> Any:
        lower_key, upper_key = jax.random.split(key)
        return problem.draw_lower(lower_key), problem.draw_upper(upper_key)
