"""SPABA: stochastic probabilistic averaging bilevel algorithm, single loop, PAGE on x, y and the linear system.

With G(x, y, v) = (grad_y g,  A v - f_y,  f_x - J v) and the losses f, all at one point, step k:

    (1)  G^k = G(x^k, y^k, v^k) on all the data with probability p, otherwise
         G^k = G^{k-1} + G(x^k, y^k, v^k; rows) - G(x^{k-1}, y^{k-1}, v^{k-1}; the same rows)
    (2)  y, v, x each one step along their part of G^k; lambda from the losses in it

With several tasks the third part is sum_i lambda_i (f_x - J v_i), and the old weights belong to the old point. With
exact oracles G^k is exact for every k and p. Constant rates converge on finite data: the noise vanishes there.

Published for one task without constraint, finite data or streams: the optimal O(sqrt(N) eps^-1) and O(eps^-1.5)
samples. Constraint, several tasks and weights are our extension, without a theorem; the losses that drive the weights
are variance-reduced with the rest, without which the method stalls.

Reference: Chu, Xu, Yao, Zhang, "SPABA: a single-loop and probabilistic stochastic bilevel algorithm achieving optimal
sample complexity", ICML 2024.
"""

from __future__ import annotations

import jax

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel.problem.problem import Problem
from bilevel.solvers._base.card import Card
from bilevel.solvers._base.recursive import Recursive
from bilevel.solvers._base.state import State


@part
class SPABA(Recursive):
    """SPABA: SOBA along directions kept exact by differences, refreshed at random.

    Options as for `SOBA`, and:

    Args:
        refresh_batch: rows of a refresh; None = all the data.
        tracker: `Storm()`, or `Storm(per_task=True)` for one direction per task (memory n d_x).
        probability: of a refresh in each step.
    """

    probability: float = leaf(default=0.1)  # p

    card = Card(
        loops="single",
        keeps="v (n d_y), the last point, its directions (2 n d_y + d_x; per task 2 n d_y + n d_x)",
        rate="O(sqrt(N) eps^-1) on N rows, O(eps^-1.5) on streams",
        paper="Chu, Xu, Yao, Zhang, ICML 2024",
        extension="constraint, several tasks, weights",
    )

    def check(self, problem: Problem) -> None:
        """As SOBA, and the probability."""
        super().check(problem)
        values.share("probability", self.probability, of="SPABA")

    def refreshes(self, state: State, key: jax.Array) -> jax.Array:
        """With probability p."""
        return jax.random.bernoulli(key, self.probability)
