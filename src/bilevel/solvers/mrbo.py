"""MRBO: momentum-based recursive bilevel optimizer, single loop, STORM at both levels.

Step k, everything at (x^k, y^k), with alpha, beta the rates of x and y, and eta the momentum:

    (1)  u_i^k   = STORM_eta of grad_y g_i(x, y_i)                     every task i
    (2)  d^k     = STORM_eta of sum_i lambda_i D_i(x, y_i)
    (3)  x^{k+1} = proj_X (x^k - alpha d^k),   y_i^{k+1} = y_i^k - beta u_i^k     (simultaneous)
    (4)  lambda^{k+1} from the losses f_i, tracked by STORM too

STORM evaluates at the old and the new point on the same sample; the old point includes the old weights and the
estimator's state of that time, so that with exact oracles u and d are exact for every eta.

The paper has a momentum for each level; here they are one.

Published for one task without constraint, with the Neumann estimator, alpha, beta ~ k^{-1/3} and eta ~ k^{-2/3}:
O~(eps^-1.5) samples. Constraint, several tasks and weights (4) are our extension, without a theorem.

Reference: Yang, Ji, Liang, "Provably faster algorithms for bilevel optimization", NeurIPS 2021.
"""

from __future__ import annotations

from typing import NamedTuple

import jax

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate, rate_at
from bilevel.hypergradients import Neumann
from bilevel.hypergradients.hypergradient import Hypergradient
from bilevel.hypergradients.trackers import Memory, Oracle, Storm, Tracker
from bilevel.hypergradients.upper import Upper
from bilevel.problem.problem import Problem
from bilevel.solvers._base.bilevel import EstimatorSolver
from bilevel.solvers._base.solver import Card
from bilevel.solvers._base.state import Info, State
from bilevel.solvers._base.tracking import LastPoint, LowerPoint, as_evaluation, kept, lower_oracle, upper_oracle
from bilevel.weightings import Average
from bilevel.weightings.base import Weighting


def published_momentum(step: jax.Array) -> jax.Array:
    """(1 + k)^(-2/3): the first step is the plain stochastic one."""
    return (1.0 + step) ** (-2 / 3)


class Memories(NamedTuple):
    """The two recursions."""

    lower: Memory
    upper: Memory


@part
class MRBO(EstimatorSolver):
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

    moves_at_once = compares_points = True
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
        values.share("momentum", self.momentum, scheduled=True, of=type(self).__name__)

    def start_memory(self, problem: Problem, state: State, key: jax.Array) -> Memories:
        """Both recursions start from a plain stochastic value at the first point."""
        lower_key, upper_key = jax.random.split(key)
        lower, upper = LowerPoint(state.x, state.y), kept(self.point(state))
        gradients, _ = lower_oracle(problem)(lower, problem.draw_lower(lower_key))
        value, _ = self._tracked(problem)(upper, problem.draw_upper(upper_key))
        return Memories(Storm().init(gradients, lower), self.tracker.init(value, upper))

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """Both directions at (x^k, y^k), then both moves."""
        lower_key, upper_key = jax.random.split(key)
        momentum = rate_at(self.momentum, state.step)
        rows, samples = problem.draw_lower(lower_key), problem.draw_upper(upper_key)
        state, beta = self.lower_rates(problem, state, rows)
        here = LowerPoint(state.x, state.y)
        u, _, lower = Storm().update(lower_oracle(problem), here, state.memory.lower, rows, momentum)  # (1)
        point = kept(self.point(state))
        value, v, upper = self.tracker.update(
            self._tracked(problem), point, state.memory.upper, samples, momentum
        )  # (2)
        seen = as_evaluation(value, self.weights_of_x(state), v)
        state, info = self.move_x_and_weights(problem, self.move_lower(state, u, beta), beta, seen)  # (3), (4)
        return state._replace(memory=Memories(lower, upper)), info

    def with_last_point(self, state: State, last: LastPoint) -> State:
        """Of both recursions."""
        present = self.point(state)
        return state._replace(memory=Memories(*(last.of(memory, present) for memory in state.memory)))

    def _tracked(self, problem: Problem) -> Oracle:
        oracle, per_task = Upper(problem, self.estimator), self.tracker.per_task
        return upper_oracle(oracle.directions if per_task else oracle.direction, per_task=per_task)
