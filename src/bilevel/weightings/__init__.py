"""How much each task counts: weights on the simplex, moved by the tasks' losses.

`Weighting` is the base to write one's own from, and says what it must do; `bl.testing.check_weighting` checks it.
"""

from bilevel.weightings.average import Average
from bilevel.weightings.base import Weighting
from bilevel.weightings.cvar import CVaR
from bilevel.weightings.exponentiated import Exponentiated
from bilevel.weightings.fixed import Fixed
from bilevel.weightings.simplex_ascent import SimplexAscent
from bilevel.weightings.watched import Watched

__all__ = ["Average", "CVaR", "Exponentiated", "Fixed", "SimplexAscent", "Watched", "Weighting"]
