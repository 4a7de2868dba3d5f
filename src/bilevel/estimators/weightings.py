"""`weighting=` of an estimator."""

from __future__ import annotations

from typing import Any

from bilevel._core import values
from bilevel.weightings.base import Weighting
from bilevel.weightings.cvar import CVaR

NAMES = ("min-max", "min-avg")


def weighting_of(owner: str, given: Any, count: int) -> Weighting:
    """What moves the weights of `count` tasks.

    All but objects are one kind, the mean over the worst share of the tasks, whose share is data: min-avg and min-max
    are one compiled program.

    >>> weighting_of("Model", "min-max", 4), weighting_of("Model", "min-avg", 4)
    (CVaR(fraction=0.25, lr=None), CVaR(fraction=1.0, lr=None))
    """
    if isinstance(given, Weighting):
        return given
    if isinstance(given, str) and given in NAMES:
        return CVaR(1 / count if given == "min-max" else 1.0)
    if not isinstance(given, str) and values.is_number(given) and 0 < given <= 1:
        return CVaR(float(given))
    raise ValueError(
        f'{owner}(weighting={given!r}): it needs "min-max", "min-avg", the share of the worst tasks whose mean counts, '
        "a number above 0, up to 1, or an object of bl.weightings."
    )
