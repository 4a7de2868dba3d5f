"""Tuning of rates: one grid for all solvers, which widens while the best rates lie on an edge.

Rates that a solver was given stay; only those that are None are tuned.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bilevel._core.schedules import Rate
from bilevel._cost.given_rates import GivenRates, field_names, has_weights_rate, rates_of, with_rates
from bilevel.solvers._base.solver import Solver

AUTOMATIC, AS_GIVEN = "automatic", "as given"


class Grid(NamedTuple):
    """The rates that every solver is tried with. Where the best lies on an edge, more are tried beyond it.

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
    """The name, in a table, of the rates of a solver that is not tuned."""
    return AUTOMATIC if tunable(solver).upper else AS_GIVEN


def _text(rate: Rate) -> str:
    if rate is None:
        return "-"
    return "schedule" if callable(rate) else f"{float(rate):g}"


WIDENINGS = 4  # of every side of the grid
FINALISTS = 3  # the best of the short runs, which are compared in whole runs
AXES = ("x", "y", "weights")
SMALLER = ("smallest", "smallest", "")  # sides to widen where every run diverges

Scores = Callable[[Mapping[str, Solver]], dict[str, float]]


class TunedRates(NamedTuple):
    """The rates that did best."""

    rates: str  # as a table shows them
    solver: Solver
    edges: tuple[str, ...]  # where they are the largest or the smallest that were tried: "largest x"


class Axis(NamedTuple):
    """The rates that are tried for one variable, in increasing order, and how many were added below and above."""

    rates: tuple[float | None, ...]
    below: int = 0
    above: int = 0

    def side(self, rate: Rate) -> str:
        """The side that the rate lies on, "smallest" or "largest"; "" for neither, or for the only rate."""
        if len(self.rates) == 1:
            return ""
        return "smallest" if rate == self.rates[0] else "largest" if rate == self.rates[-1] else ""

    def can_widen(self, side: str) -> bool:
        """Whether one more rate may be added on this side."""
        if not side or len(self.rates) == 1:
            return False
        return (self.below if side == "smallest" else self.above) < WIDENINGS

    def widened(self, side: str) -> Axis:
        """With one more rate, at the ratio of its next two neighbours."""
        if side == "smallest":
            low, next_ = self.rates[:2]
            return self._replace(rates=(_shifted(low, next_), *self.rates), below=self.below + 1)
        next_, high = self.rates[-2:]
        return self._replace(rates=(*self.rates, _shifted(high, next_)), above=self.above + 1)


def _shifted(rate: float | None, neighbour: float | None) -> float:
    assert rate is not None
    assert neighbour is not None
    return float(f"{rate * (rate / neighbour):.6g}")  # 0.1, not 0.10000000000000002


class Search:
    """Finds the rates of a solver that were not given.

    Short runs try all rates of the grid. While the best lies on an edge, the grid gets one more rate there, at its own
    ratio; where every run diverges, it gets one smaller rate of x and of y; at most four on each side. Whole runs
    compare the best three, or the next three where these diverge. Where the winner lies on an edge, the grid widens and
    the best are compared again.
    """

    def __init__(self, solver: Solver, grid: Grid, short: Scores, whole: Scores):
        self.solver, self.short, self.whole = solver, short, whole
        open_ = tunable(solver)
        self.axes = [Axis(tuple(sorted(rates)) if free else (None,)) for rates, free in zip(grid, open_, strict=True)]

    def run(self) -> TunedRates:
        """The rates that did best."""
        while True:
            tried = tuned_on(Grid(*(axis.rates for axis in self.axes)), self.solver)  # type: ignore[arg-type]
            scores = self.short(tried)
            order = sorted((rates for rates in tried if np.isfinite(scores[rates])), key=lambda rates: scores[rates])
            if self._widen(self._sides(tried[order[0]]) if order else SMALLER):
                continue
            best = self._winner({rates: tried[rates] for rates in order})
            if self._widen(SMALLER if best is None else self._sides(tried[best])):
                continue
            best = next(iter(order or tried)) if best is None else best  # all diverge, this one too
            sides = zip(self._sides(tried[best]), AXES, strict=True)
            return TunedRates(best, tried[best], tuple(f"{side} {name}" for side, name in sides if side))

    def _winner(self, order: Mapping[str, Solver]) -> str | None:
        """The best of the first three in whole runs, or of the next three where these diverge; None if all do."""
        left = list(order)
        while left:
            finalists, left = left[:FINALISTS], left[FINALISTS:]
            scores = self.whole({rates: order[rates] for rates in finalists})
            best = min(scores, key=lambda rates: scores[rates])
            if np.isfinite(scores[best]):
                return best
        return None

    def _sides(self, solver: Solver) -> list[str]:
        """The side of each axis that the solver's rate lies on."""
        return [axis.side(rate) for axis, rate in zip(self.axes, rates_of(solver), strict=False)]

    def _widen(self, sides: Sequence[str]) -> bool:
        """Adds a rate on these sides, where that is allowed; whether any was added."""
        grown = [
            axis.widened(side) if axis.can_widen(side) else axis for axis, side in zip(self.axes, sides, strict=True)
        ]
        changed, self.axes = grown != self.axes, grown
        return changed
