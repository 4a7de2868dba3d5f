"""How much each task counts: weights on the simplex, moved by the tasks' losses.

A weighting is a part with `lr` (gamma; None = chosen by the solver), `init(n, dtype) -> (weights, state)` and
`update(weights, losses, state, rate) -> (weights, state)`.
"""

from bilevel.weightings.average import Average
from bilevel.weightings.cvar import CVaR
from bilevel.weightings.exponentiated import Exponentiated
from bilevel.weightings.fixed import Fixed
from bilevel.weightings.simplex_ascent import SimplexAscent
from bilevel.weightings.watched import Watched

__all__ = ["Average", "CVaR", "Exponentiated", "Fixed", "SimplexAscent", "Watched"]
