"""ALSET: alternating stochastic gradient method, single loop, both rates on one time scale.

Step k, with T lower steps:

    (1)  T times  y <- y - beta_k grad_y g(x^k, y; fresh rows)
    (2)  x^{k+1} = proj_X (x^k - alpha_k D),   D by `RandomNeumann` at (x^k, y^{k+1}),   beta_k = ratio alpha_k

The iteration is TTSA's; what is new in the paper is the coupling of the rates, beta proportional to alpha, and the
proof that it suffices. The text read prints the random power of the series from 1 on; from 0 on it is unbiased, and
that is what `RandomNeumann` does.

Published for one task without constraint: O(eps^-2) samples with alpha ~ K^{-1/2}. Constraint, several tasks and
weights are our extension, without a theorem.

Reference: Chen, Sun, Yin, "Closing the gap: tighter analysis of alternating stochastic gradient methods for bilevel
problems", NeurIPS 2021.
"""

from __future__ import annotations

import jax

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel._core.schedules import rate_at
from bilevel.hypergradients import RandomNeumann
from bilevel.hypergradients.hypergradient import Hypergradient
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Sample
from bilevel.rates.protocol import Needs
from bilevel.solvers._base.solver import Card
from bilevel.solvers._base.state import State
from bilevel.solvers.morbit import MORBiT
from bilevel.weightings import Average
from bilevel.weightings.base import Weighting


@part
class ALSET(MORBiT):
    """ALSET: lower steps, then x, at rates in a fixed ratio.

    Options as for `MORBiT`, and:

    Args:
        ratio: beta / alpha, the paper's coupling; needs `upper_lr`, replaces `lower_lr`. None = `lower_lr` counts.
    """

    hypergradient: Hypergradient = RandomNeumann()
    weighting: Weighting = Average()
    lower_steps: int = 1
    ratio: float | None = leaf(default=None)  # c

    card = Card(
        loops="single",
        keeps="nothing",
        rate="O(eps^-2)",
        paper="Chen, Sun, Yin, NeurIPS 2021",
        extension="constraint, several tasks, weights",
    )

    @property
    def needs(self) -> Needs:
        """beta is not to be chosen where a ratio says what it is."""
        needs = super().needs
        return needs if self.ratio is None else needs._replace(lower=False)

    def check(self, problem: Problem) -> None:
        """As every solver, and what a ratio needs."""
        super().check(problem)
        values.rate("ratio", self.ratio, of="ALSET")
        if self.ratio is not None and (self.upper_lr is None or self.lower_lr is not None):
            raise ValueError(
                f"ALSET(ratio={self.ratio!r}): lower_lr is then ratio * upper_lr, so give upper_lr and no lower_lr."
            )

    def lower_rates(self, problem: Problem, state: State, rows: PerTask[Sample]) -> tuple[State, PerTask[jax.Array]]:
        """ratio alpha, where a ratio is given."""
        if self.ratio is None or self.upper_lr is None:
            return super().lower_rates(problem, state, rows)
        rates = self.rates.follow(problem, state.x, state.y, rows, state.rates)
        beta = self.ratio * rate_at(self.upper_lr, state.step)
        return state._replace(rates=rates), problem.fill(beta, rates.horizon.dtype)
