"""Rates that are tried: one grid for all solvers. What a solver was given is kept, and only what is None is tuned."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from bilevel._core.schedules import Rate
from bilevel._cost.given_rates import GivenRates, field_names, has_weights_rate, rates_of, with_rates
from bilevel.solvers._base.solver import Solver

AUTOMATIC, AS_GIVEN = "automatic", "as given"


class Grid(NamedTuple):
    """The rates that every solver is tried with; where the best lies on an edge, more are tried beyond it.

    A variable with a single rate has no edge.
    """

    upper: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 1.0)
    lower: tuple[float, ...] = (1e-2, 1e-1, 4e-1)
    weights: tuple[float, ...] = (1e-2, 1e-1)

    def rates(self) -> dict[str, tuple[float, float, float]]:
        """(upper, lower, weights) by the text that a table shows."""
        return {f"{a:g} {b:g} {c:g}": (a, b, c) for a, b, c in itertools.product(*self)}


class Tunable(NamedTuple):
    """Which rates of a solver are None and could be numbers."""

    upper: bool
    lower: bool
    weights: bool


def tunable(solver: Solver) -> Tunable:
    """The rates of a solver that can be tuned; none of a solver without fields for them.

    >>> import bilevel as bl
    >>> tunable(bl.MORBiT(upper_lr=0.1, weighting=bl.weightings.Average()))
    Tunable(upper=False, lower=True, weights=False)
    """
    given = rates_of(solver)
    return Tunable(
        "upper_lr" in field_names(solver) and given.upper is None,
        "lower_lr" in field_names(solver) and given.lower is None,
        has_weights_rate(solver) and given.weights is None,
    )


def tuned_on(grid: Grid, solver: Solver) -> dict[str, Solver]:
    """The solver with every combination of rates of the grid, by the text that a table shows.

    An estimator's rate, where it is None, is tuned together with y's.
    """
    open_, given = tunable(solver), rates_of(solver)
    choices = [rates if free else (None,) for rates, free in zip(grid, open_, strict=True)]
    found = {}
    for upper, lower, weights in itertools.product(*choices):
        estimator = lower if given.estimator is None else None
        tried = with_rates(solver, GivenRates(upper, lower, weights, estimator))
        found[" ".join(map(_text, rates_of(tried)[:3]))] = tried
    return found


def label(solver: Solver) -> str:
    """What a table calls the rates of a solver that is not tuned."""
    return AUTOMATIC if tunable(solver).upper else AS_GIVEN


def _text(rate: Rate) -> str:
    if rate is None:
        return "-"
    return "schedule" if callable(rate) else f"{float(rate):g}"
