"""FSLA: fully single loop algorithm: one step each on y and on the linear system, STORM on the upper direction.

Step k, with rho the rate of y and v:

    (1)  y^{k+1} = y^k - rho grad_y g(x^k, y^k)
    (2)  v^{k+1} = v^k - rho (A v^k - f_y)                      at (x^k, y^{k+1})
    (3)  d^k     = STORM_eta of f_x - J v                       at (x^k, y^{k+1}, v^{k+1}); before: (x^{k-1}, y^k, v^k)
    (4)  x^{k+1} = proj_X (x^k - alpha d^k),   lambda^{k+1} from the losses, tracked by STORM too

Both points of (3) see the same rows. v is a variable here: at the old point it is the old v, and does not move.

Published for one task without constraint: O(eps^-2) samples. Constraint, several tasks and weights are our extension,
without a theorem.

Reference: Li, Gu, Huang, "A fully single loop algorithm for bilevel optimization without Hessian inverse", AAAI 2022.
"""

from __future__ import annotations

import jax

from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate, rate_at
from bilevel.problem import checks
from bilevel.problem.problem import Problem
from bilevel.solvers._base.bilevel import Info, State
from bilevel.solvers._base.card import Card
from bilevel.solvers._base.tracking import UpperPoint, seen_as, upper_oracle, upper_point
from bilevel.solvers.soba import SOBA
from bilevel.trackers import Storm
from bilevel.trackers.base import Tracker


@part
class FSLA(SOBA):
    """FSLA: y, then v, then x along a STORM direction.

    Options as for `SOBA`, and:

    Args:
        momentum: eta, the weight of the fresh value in STORM: a number in (0, 1] or a schedule.
        tracker: of the upper direction and losses; `Storm(per_task=True)` keeps one direction per task.
    """

    momentum: Rate = leaf(default=0.3)  # eta
    tracker: Tracker = Storm()

    card = Card(
        loops="single",
        keeps="v (n d_y), the last point, d (d_x; per task n d_x)",
        rate="O(eps^-2)",
        paper="Li, Gu, Huang, AAAI 2022",
        extension="constraint, several tasks, weights",
    )

    def check(self, problem: Problem) -> None:
        """As SOBA, and a momentum."""
        super().check(problem)
        checks.check_share("FSLA(momentum)", self.momentum)

    def start_trackers(self, problem: Problem, state: State, key: jax.Array) -> State:
        """STORM starts from a plain stochastic value at the first point."""
        point = upper_point(state, state.automatic)
        oracle = upper_oracle(self, problem, per_task=self.tracker.per_task, held=True)
        value, _ = oracle(point, problem.draw_upper(key))
        return state._replace(trackers=self.tracker.init(value, point))

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """y, v at the new y, then x and the weights."""
        lower_key, upper_key = jax.random.split(key)
        samples = problem.draw_upper(upper_key)
        lowered = self.descend(problem, state, lower_key)  # (1)
        upper = self.tracked(lowered.rate)
        v = upper.prepare(problem, state.x, lowered.y, state.hypergradient, samples)  # (2)
        value, _, tracked = self.tracker.update(
            upper_oracle(self, problem, per_task=self.tracker.per_task, held=True),
            UpperPoint(state.x, lowered.y, state.weights, v, lowered.automatic.lower),
            state.trackers,
            samples,
            rate_at(self.momentum, state.step),
        )  # (3)
        seen = seen_as(value, state.weights, v, per_task=self.tracker.per_task)
        state, info = self.finish(problem, state, lowered, seen)  # (4)
        return state._replace(trackers=tracked), info
