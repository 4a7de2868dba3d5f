"""StocBiO: stochastic bilevel optimizer, a double loop with a warm start and the summed Neumann series.

Step k, with alpha, beta the rates of x and y, T lower steps and Q + 1 terms:

    (1)  y^0 = y of the last step;  y^{t+1} = y^t - beta grad_y g(x^k, y^t; fresh rows),   t < T
    (2)  x^{k+1} = proj_X (x^k - alpha (f_x - J z)),   z = eta sum_{q=0}^{Q} prod_{j<=q} (I - eta A_j) f_y,
         at (x^k, y^T)

These are MORBiT's updates with more lower steps and the `Neumann` estimator, and are written so. The sum starts with
f_y itself and every term carries eta; public code misses both, which makes the direction about 1/eta too long.

Published for one task without constraint: O(eps^-2) samples, with batches that grow as 1/eps and T, Q ~ kappa log.
Constraint, several tasks and weights are our extension, without a theorem.

Reference: Ji, Yang, Liang, "Bilevel optimization: convergence analysis and enhanced design", ICML 2021.
"""

from __future__ import annotations

from bilevel._core.module import part
from bilevel.hypergradients import Neumann
from bilevel.hypergradients.hypergradient import Hypergradient
from bilevel.solvers._base.solver import Card
from bilevel.solvers.morbit import MORBiT
from bilevel.weightings import Average
from bilevel.weightings.base import Weighting


@part
class StocBiO(MORBiT):
    """StocBiO: several lower steps, then x along the summed Neumann series. Options as for `MORBiT`."""

    hypergradient: Hypergradient = Neumann(terms=11)  # Q = 10
    weighting: Weighting = Average()
    lower_steps: int = 10

    card = Card(
        loops="double",
        keeps="nothing",
        rate="O(eps^-2)",
        paper="Ji, Yang, Liang, ICML 2021",
        extension="constraint, several tasks, weights",
    )
