"""How much each task counts: weights on the simplex, moved by the tasks' losses.

`Average`, `SimplexAscent`, `Exponentiated`, `CVaR` and `Fixed` move weights. Around any of them: `Regret`, `Ratio`,
`UpperBound` and `Shrunk` compare the tasks by something else than their losses, `Folds` puts the folds of cross-fitted
tasks together, `Watched` leaves tasks out. They can be put into each other.

`Weighting` is the base to write one's own from, and says what it must do; `bl.testing.check_weighting` checks it.
"""

from bilevel.weightings.average import Average
from bilevel.weightings.base import Weighting
from bilevel.weightings.cvar import CVaR
from bilevel.weightings.exponentiated import Exponentiated
from bilevel.weightings.fixed import Fixed
from bilevel.weightings.folds import Folds
from bilevel.weightings.ratio import Ratio
from bilevel.weightings.regret import Regret
from bilevel.weightings.shrunk import Shrunk
from bilevel.weightings.simplex_ascent import SimplexAscent
from bilevel.weightings.upper_bound import UpperBound
from bilevel.weightings.watched import Watched

__all__ = [
    "Average",
    "CVaR",
    "Exponentiated",
    "Fixed",
    "Folds",
    "Ratio",
    "Regret",
    "Shrunk",
    "SimplexAscent",
    "UpperBound",
    "Watched",
    "Weighting",
]
