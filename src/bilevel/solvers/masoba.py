"""MA-SOBA: SOBA with a moving average of the upper direction, single loop.

Step k, everything at (x^k, y^k, v^k) and with h^k the average so far:

    (1)  x^{k+1} = x^k + a (proj_X (x^k - tau h^k) - x^k),         without constraint x^k - a tau h^k
    (2)  y^{k+1} = y^k - rho grad_y g,   v^{k+1} = v^k - rho (A v^k - f_y)
    (3)  h^{k+1} = (1 - theta) h^k + theta sum_i lambda_i (f_x - J v^k)
    (4)  lambda^{k+1} from losses averaged in the same way

x moves along the average before this step's direction enters it. `upper_lr` is a tau, `damping` is a: 1 is the plain
projected step, and smaller values go only a fraction of the way to a point that is projected from farther out.

Published for one task, with or without constraint, a, rho, theta ~ K^{-1/2}: O(eps^-2) samples under standard
smoothness. The updates are from memory and third-party code, not from the paper's text. Several tasks and weights (4)
are the subject of `MORMASOBA`.

Reference: Chen, Xiao, Balasubramanian, "Optimal algorithms for stochastic bilevel optimization under relaxed smoothness
conditions", JMLR 2024.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate, rate_at
from bilevel.hypergradients.trackers import Memory, Momentum, Oracle
from bilevel.hypergradients.upper import Evaluation
from bilevel.lower.steps import lower_gradients
from bilevel.problem.problem import Problem
from bilevel.solvers._base.linear_system import LinearSystemSolver, residuals, rows_of_g
from bilevel.solvers._base.solver import Card
from bilevel.solvers._base.state import Info, State
from bilevel.solvers._base.tracking import as_evaluation, kept, upper_oracle


@part
class MASOBA(LinearSystemSolver):
    """MA-SOBA: SOBA along a moving average.

    Options as for `SOBA`, and:

    Args:
        momentum: theta, the weight of the fresh direction in the average: a number in (0, 1] or a schedule.
        damping: the fraction of the way to the projected point that x goes.
        tracker: `Momentum()`, or `Momentum(per_task=True)` for one average per task (memory n d_x, less lag).
    """

    momentum: Rate = leaf(default=0.2)  # theta
    damping: float = leaf(default=1.0)  # a
    tracker: Momentum = Momentum()

    moves_at_once = True
    card = Card(
        loops="single",
        keeps="v (n d_y), h (d_x; per task n d_x)",
        rate="O(eps^-2)",
        paper="Chen, Xiao, Balasubramanian, JMLR 2024",
        extension="several tasks, weights (but see MORMASOBA)",
        constraint="damped projection",
    )

    def check(self, problem: Problem) -> None:
        """As every solver, and the two shares."""
        super().check(problem)
        name = type(self).__name__
        values.share("momentum", self.momentum, scheduled=True, of=name)
        values.share("damping", self.damping, of=name)

    def start_memory(self, problem: Problem, state: State, key: jax.Array) -> Memory:
        """The average starts from a plain stochastic value."""
        value, _ = self._tracked(problem)(kept(self.point(state)), problem.draw_upper(key))
        return self.tracker.init(value, ())

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """x along the old average, everything else at the old point."""
        samples = problem.draw_upper(key)
        rows = rows_of_g(samples)
        state, beta = self.lower_rates(problem, state, rows)
        point, momentum = self.point(state), rate_at(self.momentum, state.step)
        v = self.move_v(state.v, residuals(problem, point, samples), beta)  # (2)
        _, _, memory = self.tracker.update(self._tracked(problem), kept(point), state.memory, samples, momentum)  # (3)
        seen = as_evaluation(state.memory.value, self.weights_of_x(state), v)
        state = self.move_lower(state, lower_gradients(problem, state.x, state.y, rows), beta)
        state, info = self.move_x_and_weights(problem, state, beta, seen)  # (1), (4)
        return state._replace(memory=memory), info

    def move_x(self, problem: Problem, state: State, seen: Evaluation) -> tuple[State, jax.Array]:
        """The damped step (1): one that is 1 / a times as long, and then a fraction a of the way."""
        longer = seen._replace(direction=optax.tree.scale(1 / self.damping, seen.direction))
        moved, alpha = super().move_x(problem, state, longer)
        slower = self.lag_share(state, self.upper_lr)
        part = self.damping * slower
        x = jax.tree.map(lambda old, new: old + (part * (new - old)).astype(old.dtype), state.x, moved.x)
        return moved._replace(x=x), alpha * slower

    def lag_share(self, state: State, lr: Rate) -> jax.Array:
        """theta for a rate that is chosen, as an average lags by 1 / theta steps; 1 for one that is given."""
        chosen = lr is None and self.rates.chooses
        return jnp.asarray(rate_at(self.momentum, state.step) if chosen else 1.0, state.weights.dtype)

    def _tracked(self, problem: Problem) -> Oracle:
        oracle, per_task = self.oracle(problem), self.tracker.per_task
        return upper_oracle(oracle.directions_at_fixed_v if per_task else oracle.at_fixed_v, per_task=per_task)
