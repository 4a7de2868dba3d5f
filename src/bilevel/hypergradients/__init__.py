"""Hypergradient estimators, each a surrogate: a scalar whose value is f_i and whose x-gradient is the estimate.

The gradient that all of them estimate, with y_i* moving as x moves, is

    grad l_i(x) = f_x - J A^-1 f_y        at y = y_i*(x),   A = d2g/dy2,  J = d2g/dxdy.

Because each estimator returns a scalar, the direction shared by all tasks is one reverse pass through
sum_i weights_i surrogate_i(x): memory O(d_x), not O(n d_x). `Hypergradient` is the base to write one's own from.

Every estimator says whether it is unbiased on batches: whether, given y and what is carried from the last step, its
mean over all batches is what it would be on all the data. `benchmarks/estimator_bias.py` measures it.
"""

from bilevel.hypergradients.exact import ConjugateGradient, Exact
from bilevel.hypergradients.hypergradient import Hypergradient
from bilevel.hypergradients.neumann import Neumann, RandomNeumann
from bilevel.hypergradients.penalty import Penalty
from bilevel.hypergradients.tracked import Tracked
from bilevel.hypergradients.unrolled import Direct, Unrolled

__all__ = [
    "ConjugateGradient",
    "Direct",
    "Exact",
    "Hypergradient",
    "Neumann",
    "Penalty",
    "RandomNeumann",
    "Tracked",
    "Unrolled",
]
