"""MA-SOBA: SOBA with a moving average of the upper direction, single loop.

Step k, everything at (x^k, y^k, v^k) and with h^k the average so far:

    (1)  x^{k+1} = x^k + a (proj_X (x^k - tau h^k) - x^k),         without constraint x^k - a tau h^k
    (2)  y^{k+1} = y^k - rho grad_y g,   v^{k+1} = v^k - rho (A v^k - f_y)
    (3)  h^{k+1} = (1 - theta) h^k + theta sum_i lambda_i (f_x - J v^k)
    (4)  lambda^{k+1} from losses averaged in the same way

x moves along the average before this step's direction enters it. `upper_lr` is a tau, `damping` is a: 1 is the plain
projected step, and smaller values go only a part of the way to a point that is projected from farther out.

Published for one task, with or without constraint, a, rho, theta ~ K^{-1/2}: O(eps^-2) samples under standard
smoothness. The updates are from memory and third-party code, not from the paper's text. Several tasks and weights (4)
are the subject of `MORMASOBA`.

Reference: Chen, Xiao, Balasubramanian, "Optimal algorithms for stochastic bilevel optimization under relaxed smoothness
conditions", JMLR 2024.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate, rate_at
from bilevel.oracles.upper import Evaluation
from bilevel.problem import checks
from bilevel.problem.problem import Problem
from bilevel.rates.measured import Automatic
from bilevel.solvers._base.bilevel import Info, State
from bilevel.solvers._base.card import Card
from bilevel.solvers._base.tracking import seen_as, upper_oracle, upper_point
from bilevel.solvers.soba import SOBA
from bilevel.trackers import Momentum


@part
class MASOBA(SOBA):
    """MA-SOBA: SOBA along a moving average.

    Options as for `SOBA`, and:

    Args:
        momentum: theta, the weight of the fresh direction in the average: a number in (0, 1] or a schedule.
        damping: the part of the way to the projected point that x goes.
        tracker: `Momentum()`, or `Momentum(per_task=True)` for one average per task (memory n d_x, less lag).
    """

    momentum: Rate = leaf(default=0.2)  # theta
    damping: float = leaf(default=1.0)  # a
    tracker: Momentum = Momentum()

    card = Card(
        loops="single",
        keeps="v (n d_y), h (d_x; per task n d_x)",
        rate="O(eps^-2)",
        paper="Chen, Xiao, Balasubramanian, JMLR 2024",
        extension="several tasks, weights (but see MORMASOBA)",
        constraint="damped projection",
    )

    def check(self, problem: Problem) -> None:
        """As SOBA, and the two shares."""
        super().check(problem)
        name = type(self).__name__
        checks.check_share(f"{name}(momentum)", self.momentum)
        checks.check_share(f"{name}(damping)", self.damping)

    def start_trackers(self, problem: Problem, state: State, key: jax.Array) -> State:
        """The average starts from a plain stochastic value."""
        oracle = upper_oracle(self, problem, per_task=self.tracker.per_task, held=True)
        value, _ = oracle(upper_point(state, state.automatic), problem.draw_upper(key))
        return state._replace(trackers=self.tracker.init(value, ()))

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """x along the old average, everything else at the old point."""
        per_task = self.tracker.per_task
        samples = problem.draw_upper(key)
        lowered, upper = self.lower_level(problem, state, samples)
        v = upper.prepare(problem, state.x, state.y, state.hypergradient, samples)  # (2)
        _, _, tracked = self.tracker.update(
            upper_oracle(self, problem, per_task=per_task, held=True),
            upper_point(state, lowered.automatic),
            state.trackers,
            samples,
            rate_at(self.momentum, state.step),
        )  # (3)
        seen = seen_as(state.trackers.value, state.weights, v, per_task=per_task)
        state, info = self.finish(problem, state, lowered, seen)  # (1), (4)
        return state._replace(trackers=tracked), info

    def move(self, problem: Problem, state: State, seen: Evaluation, automatic: Automatic) -> tuple:
        """The damped step (1): one that is 1 / a times as long, and then a part a of the way."""
        longer = seen._replace(direction=optax.tree.scale(1 / self.damping, seen.direction))
        x, upper, automatic, rate, norm = super().move(problem, state, longer, automatic)
        slower = self.lag_share(state, self.upper_lr)
        part = self.damping * slower
        x = jax.tree.map(lambda old, new: old + (part * (new - old)).astype(old.dtype), state.x, x)
        return x, upper, automatic, rate * slower, norm * self.damping

    def lag_share(self, state: State, lr: Rate) -> Any:
        """theta for a rate that is chosen, as an average lags by 1 / theta steps; 1 for one that is given."""
        return jnp.asarray(rate_at(self.momentum, state.step) if lr is None else 1.0, state.weights.dtype)
