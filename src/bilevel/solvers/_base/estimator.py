"""Solvers that estimate the implicit term by any hypergradient."""

from __future__ import annotations

import jax
import optax

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate
from bilevel.hypergradients import Tracked
from bilevel.hypergradients.base import Hypergradient
from bilevel.oracles.upper import Upper
from bilevel.problem.problem import Problem
from bilevel.rates import Measured
from bilevel.rates.base import Rates
from bilevel.rules.base import Rule
from bilevel.sampling import All
from bilevel.sampling.base import Sampling
from bilevel.solvers._base.bilevel import BilevelSolver
from bilevel.solvers._base.state import Info, State
from bilevel.weightings import SimplexAscent
from bilevel.weightings.base import Weighting


@part
class EstimatorSolver(BilevelSolver):
    """Options of solvers that take any estimator.

    Args:
        upper_lr: the rate of x (alpha): a number, a schedule, or None = chosen and kept up to date.
        lower_lr: the rate of y (beta), likewise; None gives every task its own.
        hypergradient: an estimator from `bl.hypergradients`.
        weighting: how the tasks' losses move their weights, from `bl.weightings`; its `lr` is gamma.
        upper_rule: from a rate to an optax transformation, for x; None = what the rates are made for.
        lower_rule: likewise for y, per task.
        rates: where rates come from that are None, from `bl.rates`.
        sampling: which tasks a step sees, from `bl.sampling`.
    """

    upper_lr: Rate = leaf(default=None)  # alpha
    lower_lr: Rate = leaf(default=None)  # beta
    hypergradient: Hypergradient = Tracked()
    weighting: Weighting = SimplexAscent()
    upper_rule: Rule | None = None
    lower_rule: Rule = optax.sgd
    rates: Rates = Measured()
    sampling: Sampling = All()

    @property
    def estimator(self) -> Hypergradient:
        """The hypergradient."""
        return self.hypergradient


class Alternating(EstimatorSolver):
    """The order of moves y, then x and the weights at the new y and the old x: MORBiT's, TTSA's and others'.

    (1)  T times  y_i <- y_i - beta_i grad_y g_i(x^k, y_i; fresh rows)                           every task i
    (2)  x^{k+1}      = proj_X (x^k - alpha sum_i lambda_i^k D_i(x^k, y_i^{k+1}))
    (3)  lambda^{k+1} from the losses f_i(x^k, y_i^{k+1})
    """

    lower_steps: int  # T
    replays = True

    def check(self, problem: Problem) -> None:
        """As every solver, and a number of lower steps."""
        super().check(problem)
        values.whole("lower_steps", self.lower_steps, of=type(self).__name__)

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """y, then x and the weights."""
        lower_key, upper_key = jax.random.split(key)
        moved = self.descend(problem, state, lower_key, self.lower_steps)  # (1)
        oracle = Upper(problem, self.estimator, moved.replay)
        seen = oracle.direction(self.point(state, moved.y, moved.rates), problem.draw_upper(upper_key))
        return self.finish(problem, state, moved, seen)  # (2), (3)
