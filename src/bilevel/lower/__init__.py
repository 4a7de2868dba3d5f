"""How lower problems are solved: y_i*(x) = argmin over y of g_i(x, y), one task at a time, on all its rows.

`Newton` is what a run takes unless it is told otherwise; `LBFGS` needs no second derivatives. `Lower` is the base to
write one's own from.
"""

from bilevel.lower.lbfgs import LBFGS
from bilevel.lower.newton import Newton
from bilevel.lower.solver import Lower, Solved

__all__ = ["LBFGS", "Lower", "Newton", "Solved"]
