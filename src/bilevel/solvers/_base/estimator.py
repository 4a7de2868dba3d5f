"""Solvers that estimate the implicit term by any hypergradient."""

from __future__ import annotations

import optax

from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate
from bilevel.hypergradients import Tracked
from bilevel.hypergradients.base import Hypergradient
from bilevel.rates import Measured
from bilevel.rates.base import Rates
from bilevel.rules.base import Rule
from bilevel.sampling import All
from bilevel.sampling.base import Sampling
from bilevel.solvers._base.bilevel import BilevelSolver
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
