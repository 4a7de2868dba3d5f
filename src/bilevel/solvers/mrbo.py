"""MRBO: momentum-based recursive bilevel optimizer, single loop, STORM at both levels.

Step k, everything at (x^k, y^k), with alpha, beta the rates of x and y, and eta the momentum:

    (1)  u_i^k   = STORM_eta of grad_y g_i(x, y_i)                     every task i
    (2)  d^k     = STORM_eta of sum_i lambda_i D_i(x, y_i)
    (3)  x^{k+1} = proj_X (x^k - alpha d^k),   y_i^{k+1} = y_i^k - beta u_i^k     (simultaneous)
    (4)  lambda^{k+1} from the losses f_i, tracked by STORM too

STORM evaluates at the old and the new point on the same sample; the old point includes the old weights and the
estimator's state of that time, so that with exact oracles u and d are exact for every eta.

Published for one task without constraint, with the Neumann estimator, alpha, beta ~ k^{-1/3} and eta ~ k^{-2/3}:
O~(eps^-1.5) samples. Constraint, several tasks and weights (4) are our extension, without a theorem.

Reference: Yang, Ji, Liang, "Provably faster algorithms for bilevel optimization", NeurIPS 2021.
"""

from __future__ import annotations

from typing import NamedTuple

import jax

from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate, rate_at
from bilevel.hypergradients import Neumann
from bilevel.hypergradients.base import Hypergradient
from bilevel.problem import checks
from bilevel.problem.problem import Problem
from bilevel.solvers._base.bilevel import BilevelSolver, Info, Lowered, State
from bilevel.solvers._base.card import Card
from bilevel.solvers._base.tracking import lower_oracle, seen_as, upper_oracle, upper_point
from bilevel.trackers import Storm
from bilevel.trackers.base import Memory, Tracker
from bilevel.weightings import Average
from bilevel.weightings.base import Weighting


def published_momentum(step: jax.Array) -> jax.Array:
    """(1 + k)^(-2/3): the first step is the plain stochastic one."""
    return (1.0 + step) ** (-2 / 3)


class Trackers(NamedTuple):
    """The two recursions."""

    lower: Memory
    upper: Memory


@part
class MRBO(BilevelSolver):
    """MRBO: both levels move at once along variance-reduced directions.

    Options as for `MORBiT` without lower_steps, and:

    Args:
        momentum: the weight of the fresh value in STORM, a number in (0, 1] or a schedule.
        tracker: of the upper direction and losses; `Storm(per_task=True)` keeps one direction per task.
    """

    hypergradient: Hypergradient = Neumann()
    weighting: Weighting = Average()
    momentum: Rate = leaf(default=published_momentum)  # eta
    tracker: Tracker = Storm()

    card = Card(
        loops="single",
        keeps="the last point, u (n d_y), d (d_x; per task n d_x)",
        rate="O~(eps^-1.5)",
        paper="Yang, Ji, Liang, NeurIPS 2021",
        extension="constraint, several tasks, weights",
    )

    def check(self, problem: Problem) -> None:
        """As every solver, and a momentum."""
        super().check(problem)
        checks.check_share(f"{type(self).__name__}(momentum)", self.momentum)

    def start_trackers(self, problem: Problem, state: State, key: jax.Array) -> State:
        """Both recursions start from a plain stochastic value at the first point."""
        lower_key, upper_key = jax.random.split(key)
        lower, upper = (state.x, state.y), upper_point(state, state.automatic)
        gradients, _ = lower_oracle(problem)(lower, problem.draw_lower(lower_key))
        oracle = upper_oracle(self, problem, per_task=self.tracker.per_task)
        value, _ = oracle(upper, problem.draw_upper(upper_key))
        return state._replace(trackers=Trackers(Storm().init(gradients, lower), self.tracker.init(value, upper)))

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """Both directions at (x^k, y^k), then both moves."""
        lower_key, upper_key = jax.random.split(key)
        momentum, per_task = rate_at(self.momentum, state.step), self.tracker.per_task
        rows = problem.draw_lower(lower_key)
        automatic = self.follow_curvature(problem, state, rows)
        rate = self.lower_rates(problem, state, automatic)
        u, _, lower = Storm().update(
            lower_oracle(problem), (state.x, state.y), state.trackers.lower, rows, momentum
        )  # (1)
        value, hypergradient, upper = self.tracker.update(
            upper_oracle(self, problem, per_task=per_task),
            upper_point(state, automatic),
            state.trackers.upper,
            problem.draw_upper(upper_key),
            momentum,
        )  # (2)
        lowered = Lowered(*self.lower_move(state.y, state.lower, u, rate), rate, automatic)
        seen = seen_as(value, state.weights, hypergradient, per_task=per_task)
        state, info = self.finish(problem, state, lowered, seen)  # (3), (4)
        return state._replace(trackers=Trackers(lower, upper)), info
