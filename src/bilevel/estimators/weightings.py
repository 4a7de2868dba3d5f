"""`weighting=` of an estimator."""

from __future__ import annotations

from typing import Any

import numpy as np

from bilevel._core import values
from bilevel.weightings.base import Weighting
from bilevel.weightings.cvar import CVaR
from bilevel.weightings.regret import Regret
from bilevel.weightings.shrunk import Shrunk

NAMES = ("min-max", "min-avg", "regret")


def weighting_of(
    owner: str, given: Any, count: int, baseline: np.ndarray | None = None, errors: np.ndarray | None = None
) -> Weighting:
    """What moves the weights of `count` tasks.

    All but objects are one kind, the mean over the worst share of the tasks, compared by what their losses exceed
    baselines by, as far as that is more than noise; share, baselines and errors are data: min-avg and min-max are one
    compiled program.

    Args:
        owner: whom errors name.
        given: what the user gave.
        count: of the tasks.
        baseline: for "regret", what each task reaches alone; 0 = its loss counts.
        errors: standard errors of what is compared; 0 = it is taken as it is.

    >>> weighting_of("Model", "min-max", 4).weighting.weighting
    CVaR(fraction=0.25, lr=None)
    """
    if isinstance(given, Weighting):
        return given
    named = isinstance(given, str) and given in NAMES
    if not named and (isinstance(given, str) or not values.is_number(given) or not 0 < given <= 1):
        raise ValueError(
            f'{owner}(weighting={given!r}): it needs "min-max", "min-avg", "regret", the share of the worst tasks '
            "whose mean counts, a number above 0, up to 1, or an object of bl.weightings."
        )
    none = np.zeros(count, np.float32)
    kept = none if baseline is None or given != "regret" else baseline
    return Regret(kept, Shrunk(none if errors is None else errors, CVaR(max(share_of(given), 1 / count))))


def share_of(given: Any) -> float:
    """The share of the tasks, the worst ones, that counts; 0 = the worst alone.

    >>> share_of("min-avg"), share_of(0.3), share_of("regret")
    (1.0, 0.3, 0.0)
    """
    if isinstance(given, Weighting):
        return 0.0 if given.moves else 1.0
    return float(given == "min-avg") if isinstance(given, str) else float(given)
