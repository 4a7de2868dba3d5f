"""SRBA: stochastic recursive bilevel algorithm, single loop, SARAH on x, y and the linear system.

With G(x, y, v) = (grad_y g,  A v - f_y,  f_x - J v) and the losses f, all at one point, step k:

    (1)  if k mod period = 0:  G^k = G(x^k, y^k, v^k) on all the data, otherwise
         G^k = G^{k-1} + G(x^k, y^k, v^k; rows) - G(x^{k-1}, y^{k-1}, v^{k-1}; the same rows)
    (2)  y, v, x each one step along their part of G^k; lambda from the losses in it

Published for one task without constraint on N rows, period ~ N / batch and constant rates: O(sqrt(N) eps^-1) samples,
which matches the lower bound. The paper projects v onto a ball (from memory); here v is free, as in public code.
Constraint, several tasks and weights are our extension, without a theorem.

Reference: Dagréou, Moreau, Vaiter, Ablin, "A lower bound and a near-optimal algorithm for bilevel empirical risk
minimization", AISTATS 2024.
"""

from __future__ import annotations

import jax

from bilevel._core import values
from bilevel._core.module import part
from bilevel.problem.problem import Problem
from bilevel.solvers._base.solver import Card
from bilevel.solvers._base.state import State
from bilevel.solvers.spaba import Recursive


@part
class SRBA(Recursive):
    """SRBA: SOBA along directions kept exact by differences, refreshed every `period` steps.

    Options as for `SOBA`, and:

    Args:
        refresh_batch: rows of a refresh; None = all the data.
        tracker: `Storm()`, or `Storm(per_task=True)` for one direction per task (memory n d_x).
        period: steps from one refresh to the next.
    """

    period: int = 16

    card = Card(
        loops="single",
        keeps="v (n d_y), the last point, its directions (2 n d_y + d_x; per task 2 n d_y + n d_x)",
        rate="O(sqrt(N) eps^-1) on N rows",
        paper="Dagréou, Moreau, Vaiter, Ablin, AISTATS 2024",
        extension="constraint, several tasks, weights",
    )

    def check(self, problem: Problem) -> None:
        """As SOBA, and the period."""
        super().check(problem)
        values.whole("period", self.period, of="SRBA")

    def refreshes(self, state: State, key: jax.Array) -> jax.Array:
        """At the beginning of every period."""
        return state.step % self.period == 0
