"""FSLA: fully single loop algorithm: one step each on y and on the linear system, STORM on the upper direction.

Step k, with rho the rate of y and v:

    (1)  y^{k+1} = y^k - rho grad_y g(x^k, y^k)
    (2)  v^{k+1} = v^k - rho (A v^k - f_y)                      at (x^k, y^{k+1})
    (3)  d^k     = STORM_eta of f_x - J v                       at (x^k, y^{k+1}, v^{k+1}); before: (x^{k-1}, y^k, v^k)
    (4)  x^{k+1} = proj_X (x^k - alpha d^k),   lambda^{k+1} from the losses, tracked by STORM too

(1), (2) and (3) see rows of their own, as published: with the rows of (2) in (3), J and the new v would not be
independent, and the direction would be biased. Both points of (3) see the same rows. v is a variable here: at the old
point it is the old v, and does not move.

Published for one task without constraint: O(eps^-2) samples. Constraint, several tasks and weights are our extension,
without a theorem.

Reference: Li, Gu, Huang, "A fully single loop algorithm for bilevel optimization without Hessian inverse", AAAI 2022.
"""

from __future__ import annotations

import jax

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate, rate_at
from bilevel.hypergradients.trackers import Memory, Oracle, Storm, Tracker
from bilevel.problem.problem import Problem
from bilevel.solvers._base.checks import LOOKS_AGAIN
from bilevel.solvers._base.linear_system import LinearSystemSolver, residuals
from bilevel.solvers._base.solver import Card
from bilevel.solvers._base.state import Info, State
from bilevel.solvers._base.tracking import as_evaluation, kept, upper_oracle


@part
class FSLA(LinearSystemSolver):
    """FSLA: y, then v, then x along a STORM direction.

    Options as for `SOBA`, and:

    Args:
        momentum: eta, the weight of the fresh value in STORM: a number in (0, 1] or a schedule.
        tracker: of the upper direction and losses; `Storm(per_task=True)` keeps one direction per task.
    """

    momentum: Rate = leaf(default=0.3)  # eta
    tracker: Tracker = Storm()

    needs_all_tasks = LOOKS_AGAIN
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
        values.share("momentum", self.momentum, scheduled=True, of="FSLA")

    def start_memory(self, problem: Problem, state: State, key: jax.Array) -> Memory:
        """STORM starts from a plain stochastic value at the first point."""
        point = kept(self.point(state))
        value, _ = self._tracked(problem)(point, problem.draw_upper(key))
        return self.tracker.init(value, point)

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """y, v at the new y, then x and the weights."""
        lower_key, v_key, upper_key = jax.random.split(key, 3)
        state, beta, _ = self.descend(problem, state, lower_key)  # (1)
        point = self.point(state)
        v = self.move_v(state.v, residuals(problem, point, problem.draw_upper(v_key)), beta)  # (2)
        momentum = rate_at(self.momentum, state.step)
        value, _, memory = self.tracker.update(
            self._tracked(problem), kept(point._replace(v=v)), state.memory, problem.draw_upper(upper_key), momentum
        )  # (3)
        seen = as_evaluation(value, self.weights_of_x(state), v)
        state, info = self.move_x_and_weights(problem, state, beta, seen)  # (4)
        return state._replace(memory=memory), info

    def _tracked(self, problem: Problem) -> Oracle:
        oracle, per_task = self.oracle(problem), self.tracker.per_task
        return upper_oracle(oracle.directions_at_fixed_v if per_task else oracle.at_fixed_v, per_task=per_task)
