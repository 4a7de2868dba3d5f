"""How lower problems are solved, y_i*(x) = argmin over y of g_i(x, y), one task at a time, and how a step moves y.

`Newton` solves on all rows, and is what a run takes unless it is told otherwise; `LBFGS` needs no second derivatives.
`Gradient` and `RunningHessian` move y by one batch, in the steps of a single loop. `Lower` and `Move` are the bases to
write one's own from.
"""

from bilevel.lower.lbfgs import LBFGS
from bilevel.lower.moves import Gradient, Move, RunningHessian
from bilevel.lower.newton import Newton
from bilevel.lower.solver import Lower, Solved

__all__ = ["LBFGS", "Gradient", "Lower", "Move", "Newton", "RunningHessian", "Solved"]
