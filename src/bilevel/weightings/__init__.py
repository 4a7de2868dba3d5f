"""How much each task counts: weights on the simplex, moved by the tasks' losses.

`Average`, `SimplexAscent`, `Exponentiated`, `CVaR` and `Fixed` move weights. Around any of them: `Regret`, `Ratio`,
`UpperBound` and `Shrunk` compare the tasks by something else than their losses, `Folds` puts the folds of cross-fitted
tasks together, `Watched` leaves tasks out. They can be nested.

Inherit from `Weighting` to write your own; it says what a weighting must do, and `bl.testing.check_weighting` checks
it.
"""

from bilevel.weightings.base import Weighting
from bilevel.weightings.baselines import Ratio, Regret
from bilevel.weightings.cvar import CVaR
from bilevel.weightings.fixed import Average, Fixed
from bilevel.weightings.min_max import Exponentiated, SimplexAscent
from bilevel.weightings.noise import Shrunk, UpperBound
from bilevel.weightings.task_groups import Folds, Watched

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
