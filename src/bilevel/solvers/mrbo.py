"""MRBO: momentum-based recursive bilevel optimizer, single loop, STORM at both levels.

Step k, everything at (x^k, y^k), with alpha, beta the rates of x and y, and eta the momentum:

    (1)  u_i^k   = STORM_eta of grad_y g_i(x, y_i)                     every task i
    (2)  d^k     = STORM_eta of sum_i lambda_i D_i(x, y_i)
    (3)  x^{k+1} = proj_X (x^k - alpha d^k),   y_i^{k+1} = y_i^k - beta u_i^k     (simultaneous)
    (4)  lambda^{k+1} from the losses f_i, tracked by STORM too

STORM evaluates at the old and the new point on the same sample; the old point includes the old weights and the
estimator's state of that time, so that with exact oracles u and d are exact for every eta.

The paper has a momentum for each level; here they are one.

Published for one task without constraint, with the Neumann estimator, alpha, beta ~ k^{-1/3} and eta ~ k^{-2/3}:
O~(eps^-1.5) samples. Constraint, several tasks and weights (4) are our extension, without a theorem.

Reference: Yang, Ji, Liang, "Provably faster algorithms for bilevel optimization", NeurIPS 2021.
"""

from __future__ import annotations

from bilevel._core.module import part
from bilevel.hypergradients import Neumann
from bilevel.hypergradients.base import Hypergradient
from bilevel.solvers._base.card import Card
from bilevel.solvers._base.recursive_momentum import RecursiveMomentum


@part
class MRBO(RecursiveMomentum):
    """MRBO: both levels move at once along variance-reduced directions.

    Options as for `MORBiT` without lower_steps, and:

    Args:
        momentum: the weight of the fresh value in STORM, a number in (0, 1] or a schedule.
        tracker: of the upper direction and losses; `Storm(per_task=True)` keeps one direction per task.
    """

    hypergradient: Hypergradient = Neumann()

    card = Card(
        loops="single",
        keeps="the last point, u (n d_y), d (d_x; per task n d_x)",
        rate="O~(eps^-1.5)",
        paper="Yang, Ji, Liang, NeurIPS 2021",
        extension="constraint, several tasks, weights",
    )
