"""F2SA: fully first-order stochastic approximation: no second derivatives.

Step k, with s_k the strength of the penalty, T lower steps:

    (1)  T times  z <- z - beta grad_y g(x^k, z)                              z follows argmin g
    (2)  T times  p <- p - rho (f_y + s_k g_y)(x^k, p)                        p follows argmin f + s_k g
    (3)  x^{k+1} = proj_X (x^k - alpha (f_x(x^k, p) + s_k (g_x(x^k, p) - g_x(x^k, z))))
    (4)  lambda^{k+1} from the penalised losses f_i(x^k, p_i) + s_k (g_i(x^k, p_i) - g_i(x^k, z_i))

z is the y of the result. These are MORBiT's updates with the `Penalty` estimator, and are written so. Both g of (3) see
the same rows, or s_k would multiply their noise.

Published for one task without constraint, s_k ~ k^{1/7}, rho ~ k^{-5/7}, beta ~ k^{-4/7}: O(eps^-3.5) samples when both
levels are noisy. `growing` is that strength. Constraint, several tasks and weights (4) are our extension, without a
theorem; with a fixed strength the solution is that of the penalised problem, O(1 / strength) away.

Reference: Kwon, Kwon, Wright, Nowak, "A fully first-order method for stochastic bilevel optimization", ICML 2023.
"""

from __future__ import annotations

import jax

from bilevel._core.module import part
from bilevel.hypergradients import Penalty
from bilevel.hypergradients.base import Hypergradient
from bilevel.problem.problem import Problem
from bilevel.solvers._base.card import Card
from bilevel.solvers.morbit import MORBiT
from bilevel.weightings import Average
from bilevel.weightings.base import Weighting


def growing(step: jax.Array) -> jax.Array:
    """10 (1 + k)^{1/7}, for `Penalty(strength=growing)`."""
    return 10 * (1.0 + step) ** (1 / 7)


@part
class F2SA(MORBiT):
    """F2SA: lower steps on g and on f + s g, then x along first derivatives.

    Options as for `MORBiT`; the estimator is `Penalty(strength, lr, steps)`.
    """

    hypergradient: Hypergradient = Penalty(strength=growing, steps=10)
    weighting: Weighting = Average()
    lower_steps: int = 10

    card = Card(
        loops="double",
        keeps="p (n d_y)",
        rate="O(eps^-3.5)",
        paper="Kwon, Kwon, Wright, Nowak, ICML 2023",
        extension="constraint, several tasks, weights, automatic rates",
    )

    def check(self, problem: Problem) -> None:
        """As MORBiT, and the estimator that it is about."""
        super().check(problem)
        if not isinstance(self.hypergradient, Penalty):
            raise ValueError(f"F2SA(hypergradient={self.hypergradient}): F2SA needs Penalty(strength, lr, steps).")
