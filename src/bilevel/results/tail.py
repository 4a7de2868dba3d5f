"""The worst fraction of the tasks' losses: what `CVaR` minimises, of a list of tasks or of a distribution."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from bilevel._core.averages import mean
from bilevel.weightings.cvar import CVaR


def tail_mean(losses: Any, fraction: float) -> float:
    """The mean over the worst `fraction` of the losses; the last of them counts in part where it is not a whole number.

    It is CVaR of the losses, min over t of  t + mean((losses - t)_+) / fraction.

    >>> tail_mean([1.0, 4.0, 2.0, 3.0], 0.5), tail_mean([1.0, 4.0, 2.0, 3.0], 0.375)
    (3.5, 3.6666666666666665)
    """
    worst = -np.sort(-np.asarray(losses, float))
    count = fraction * len(worst)
    if count >= len(worst):
        return float(mean(np.asarray(losses)))
    whole = int(np.floor(count))
    part = (count - whole) * worst[whole]
    return float((mean(worst[:whole]) * whole if whole else 0.0) / count + part / count)


def fraction_of(solver: Any) -> float | None:
    """The fraction of the solver's `CVaR`; None where it has another weighting. Of a loaded result, from its text."""
    if isinstance(solver, str):
        found = re.search(r"\bweighting=CVaR\(fraction=([0-9.e+-]+)", solver)
        return float(found[1]) if found else None
    weighting = getattr(solver, "weighting", None)
    return float(weighting.fraction) if isinstance(weighting, CVaR) else None


def of_distribution(solver: Any) -> float | None:
    """The fraction of a distribution of tasks whose mean the solver minimises, 1 for all; None of a list of tasks."""
    fresh = (
        "sampling=Fresh(" in solver
        if isinstance(solver, str)
        else getattr(getattr(solver, "sampling", None), "fresh", False)
    )
    return (fraction_of(solver) or 1.0) if fresh else None


def in_words(fraction: float, role: str) -> str:
    """What is minimised.

    >>> in_words(0.1, "validation"), in_words(1.0, "test")
    ('mean of the worst 10 % of validation losses', 'mean test loss')
    """
    return f"mean {role} loss" if fraction >= 1 else f"mean of the worst {100 * fraction:g} % of {role} losses"
