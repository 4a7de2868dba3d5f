"""MA-SOBA: SOBA with a moving average of the upper direction, single loop.

Step k, everything at (x^k, y^k, v^k) and with h^k the average so far:

    (1)  x^{k+1} = x^k + a (proj_X (x^k - tau h^k) - x^k),         without constraint x^k - a tau h^k
    (2)  y^{k+1} = y^k - rho grad_y g,   v^{k+1} = v^k - rho (A v^k - f_y)
    (3)  h^{k+1} = (1 - theta) h^k + theta sum_i lambda_i (f_x - J v^k)
    (4)  lambda^{k+1} from losses averaged in the same way

x moves along the average before this step's direction enters it. `upper_lr` is a tau, `damping` is a: 1 is the plain
projected step, and smaller values go only a fraction of the way to a point that is projected from farther out.

Published for one task, with or without constraint, a, rho, theta ~ K^{-1/2}: O(eps^-2) samples under standard
smoothness. The updates are from memory and third-party code, not from the paper's text. Several tasks and weights (4)
are the subject of `MORMASOBA`.

Reference: Chen, Xiao, Balasubramanian, "Optimal algorithms for stochastic bilevel optimization under relaxed smoothness
conditions", JMLR 2024.
"""

from __future__ import annotations

from bilevel._core.module import part
from bilevel.solvers._base.card import Card
from bilevel.solvers._base.moving_average import MovingAverage


@part
class MASOBA(MovingAverage):
    """MA-SOBA: SOBA along a moving average.

    Options as for `SOBA`, and:

    Args:
        momentum: theta, the weight of the fresh direction in the average: a number in (0, 1] or a schedule.
        damping: the fraction of the way to the projected point that x goes.
        tracker: `Momentum()`, or `Momentum(per_task=True)` for one average per task (memory n d_x, less lag).
    """

    card = Card(
        loops="single",
        keeps="v (n d_y), h (d_x; per task n d_x)",
        rate="O(eps^-2)",
        paper="Chen, Xiao, Balasubramanian, JMLR 2024",
        extension="several tasks, weights (but see MORMASOBA)",
        constraint="damped projection",
    )
