"""MORMA-SOBA: MA-SOBA for min-max problems of many tasks, single loop; made for exactly our problem.

Step k, everything at (x^k, y^k, v^k, lambda^k), with h_x^k and h_lambda^k the averages so far:

    (1)  x^{k+1}      = x^k + a (proj_X (x^k - tau_x h_x^k) - x^k)
    (2)  lambda^{k+1} = lambda^k + a (proj_simplex (lambda^k + tau_lambda h_lambda^k) - lambda^k)
    (3)  y, v as in SOBA
    (4)  h_x^{k+1} = (1 - theta) h_x^k + theta sum_i lambda_i D_i,   h_lambda likewise of f_i - mu (lambda_i - 1/n)

`upper_lr` is a tau_x, `damping` is a, the weighting's lr is a tau_lambda and its pull is mu / 2. The pull to uniform
weights enters (2) at the present weights instead of being averaged with the losses in (4): it is known exactly. With
other weightings than `SimplexAscent`, (2) is a fraction a of the way to what they would do.

Published for this problem with mu > 0; the paper claims fewer samples than MORBiT. The updates are from memory and the
exact complexity in n and mu is not confirmed. pull = 0 and other weightings are our extension.

Reference: Chen, Xiao, Balasubramanian, "Optimal algorithms for stochastic bilevel optimization under relaxed smoothness
conditions", JMLR 2024.
"""

from __future__ import annotations

from typing import Any

import jax

from bilevel._core.module import leaf, part
from bilevel.solvers._base.solver import Card
from bilevel.solvers._base.state import State
from bilevel.solvers.masoba import MASOBA
from bilevel.weightings import SimplexAscent
from bilevel.weightings.base import Weighting


@part
class MORMASOBA(MASOBA):
    """MORMA-SOBA: moving averages of direction and losses, damped steps of x and the weights.

    Options as for `MASOBA`; the default weighting is min-max.
    """

    weighting: Weighting = SimplexAscent()
    damping: float = leaf(default=0.5)  # a

    card = Card(
        loops="single",
        keeps="v (n d_y), h_x (d_x; per task n d_x), h_lambda (n)",
        rate="O(eps^-2) for min-max with a pull; dependence on n not confirmed",
        paper="Chen, Xiao, Balasubramanian, JMLR 2024",
        extension="no pull; weightings other than SimplexAscent",
        constraint="damped projection",
    )

    def weights_rate(self, state: State, losses: jax.Array) -> tuple[State, jax.Array]:
        """Slower where it is chosen, as the averages lag."""
        state, gamma = super().weights_rate(state, losses)
        return state, gamma * self.lag_share(state, self.weighting.lr)

    def update_weights(
        self, weights: jax.Array, losses: jax.Array, weighting: Any, rate: jax.Array
    ) -> tuple[jax.Array, Any]:
        """The damped step (2); the weights' sets are convex, so that it stays inside."""
        new, weighting = super().update_weights(weights, losses, weighting, rate / self.damping)
        return weights + (self.damping * (new - weights)).astype(weights.dtype), weighting
