"""AmIGO: amortized implicit gradient optimization, warm-started loops for y and for the linear system.

Step k, with T lower steps and N steps on v:

    (1)  T times  y <- y - beta grad_y g(x^k, y; fresh rows)
    (2)  N times  v <- v - rho (A(x^k, y^{k+1}; fresh rows) v - f_y),   f_y on one batch for all N
    (3)  x^{k+1} = proj_X (x^k - alpha (f_x - J v))   at (x^k, y^{k+1}, v),   f_x on that batch too, J on fresh rows

Both loops start from where the last step left them. These are MORBiT's updates with more lower steps and several steps
of the `Tracked` estimator, and are written so.

Published for one task without constraint, with constant rates, T, N ~ kappa and batches that grow as 1/eps: O(eps^-2)
samples (the power of kappa is not confirmed). Constraint, several tasks and weights are our extension.

Reference: Arbel, Mairal, "Amortized implicit differentiation for stochastic bilevel optimization", ICLR 2022.
"""

from __future__ import annotations

from bilevel._core.module import part
from bilevel.hypergradients import Tracked
from bilevel.hypergradients.hypergradient import Hypergradient
from bilevel.solvers._base.solver import Card
from bilevel.solvers.morbit import MORBiT
from bilevel.weightings import Average
from bilevel.weightings.base import Weighting


@part
class AmIGO(MORBiT):
    """AmIGO: several lower steps, several steps on the linear system, then x. Options as for `MORBiT`."""

    hypergradient: Hypergradient = Tracked(steps=10)
    weighting: Weighting = Average()
    lower_steps: int = 10

    card = Card(
        loops="double",
        keeps="v (n d_y)",
        rate="O(eps^-2)",
        paper="Arbel, Mairal, ICLR 2022",
        extension="constraint, several tasks, weights",
    )
