"""TTSA: two-timescale stochastic approximation, for one task or the average of several.

Step k, with alpha and beta the rates of x and y:

    (1)  y^{k+1} = y^k - beta h,               h    ~ grad_y g(x^k, y^k)
    (2)  x^{k+1} = proj_X (x^k - alpha h_x),   h_x  ~ D(x^k, y^{k+1})

D = f_x - J A^-1 f_y is estimated by the hypergradient, on fresh samples. With several tasks h_x is their average. This
is MORBiT with weights that do not move, and is written so.

Theory: O(K^{-2/5}) for one task, with alpha ~ K^{-3/5} and beta ~ K^{-2/5}.

Reference: Hong, Wai, Wang, Yang, "A two-timescale stochastic algorithm framework for bilevel optimization: complexity
analysis and application to actor-critic", SIAM Journal on Optimization, 2023.
"""

from __future__ import annotations

from bilevel._core.module import part
from bilevel.solvers._base.solver import Card
from bilevel.solvers.morbit import MORBiT
from bilevel.weightings import Average
from bilevel.weightings.base import Weighting


@part
class TTSA(MORBiT):
    """TTSA: y first, then x at the new y; the tasks are averaged. Options as for `MORBiT`."""

    weighting: Weighting = Average()

    card = Card(
        loops="single",
        keeps="nothing (v with the Tracked estimator, n d_y)",
        rate="O~(eps^-2.5)",
        paper="Hong, Wai, Wang, Yang, SIAM J. Optim. 2023",
        extension="several tasks, weights; estimators other than RandomNeumann",
    )
