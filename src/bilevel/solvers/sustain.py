"""SUSTAIN: single-timescale double-momentum, single loop, STORM at both levels.

Step k, everything at (x^k, y^k), with alpha, beta the rates of x and y, and eta the momentum:

    (1)  u^k     = STORM_eta of grad_y g(x, y)
    (2)  d^k     = STORM_eta of D(x, y),   D by `RandomNeumann`, both points with the same random power and rows
    (3)  x^{k+1} = proj_X (x^k - alpha d^k),   y^{k+1} = y^k - beta u^k     (simultaneous)

This is MRBO with the random series in place of the summed one. The high variance of the random
series is inherited.

Published for one task without constraint, with alpha, beta ~ (w + k)^{-1/3} and eta ~ alpha^2: O~(eps^-1.5) samples.
Constraint, several tasks and weights are our extension, without a theorem.

Reference: Khanduri, Zeng, Hong, Wai, Wang, Yang, "A near-optimal algorithm for stochastic bilevel optimization via
double-momentum", NeurIPS 2021.
"""

from __future__ import annotations

from bilevel._core.module import part
from bilevel.hypergradients import RandomNeumann
from bilevel.hypergradients.hypergradient import Hypergradient
from bilevel.solvers._base.solver import Card
from bilevel.solvers.mrbo import MRBO


@part
class SUSTAIN(MRBO):
    """SUSTAIN: MRBO with one random term of the Neumann series. Options as for `MRBO`."""

    hypergradient: Hypergradient = RandomNeumann()

    card = Card(
        loops="single",
        keeps="the last point, u (n d_y), d (d_x; per task n d_x)",
        rate="O~(eps^-1.5)",
        paper="Khanduri et al., NeurIPS 2021",
        extension="constraint, several tasks, weights",
    )
