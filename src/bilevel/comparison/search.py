"""The search for rates: a grid that widens while its best lies on an edge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bilevel._core.schedules import Rate
from bilevel._cost.given_rates import rates_of
from bilevel.comparison.tuning import Grid, tunable, tuned_on
from bilevel.solvers._base.solver import Solver

WIDENINGS = 4  # of every side of the grid
FINALISTS = 3  # the best of the short runs, which are compared in whole runs
AXES = ("x", "y", "weights")
SMALLER = ("smallest", "smallest", "")  # sides to widen where every run diverges

Scores = Callable[[Mapping[str, Solver]], dict[str, float]]


class Chosen(NamedTuple):
    """The rates that did best."""

    rates: str  # as a table shows them
    solver: Solver
    edges: tuple[str, ...]  # where they are the largest or the smallest that were tried: "largest x"


class Axis(NamedTuple):
    """The rates that are tried of one variable, from the smallest, and how many were added below and above."""

    rates: tuple[float | None, ...]
    below: int = 0
    above: int = 0

    def side(self, rate: Rate) -> str:
        """Whether a rate is the smallest or the largest here; "" where it is neither, or the only one."""
        if len(self.rates) == 1:
            return ""
        return "smallest" if rate == self.rates[0] else "largest" if rate == self.rates[-1] else ""

    def can_widen(self, side: str) -> bool:
        """Whether there may be one rate more on this side."""
        if not side or len(self.rates) == 1:
            return False
        return (self.below if side == "smallest" else self.above) < WIDENINGS

    def widened(self, side: str) -> Axis:
        """One rate more, as far from its neighbour as the next two are apart."""
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

    All of a grid are tried in short runs. While the best lies on an edge the grid gets one rate more there, by its own
    ratio, and where every run diverges one smaller rate of x and of y; at most four on each side. The best three are
    compared in whole runs, or the next three where these diverge. Where the winner lies on an edge, the grid widens and
    the best are compared again.
    """

    def __init__(self, solver: Solver, grid: Grid, short: Scores, whole: Scores):
        self.solver, self.short, self.whole = solver, short, whole
        open_ = tunable(solver)
        self.axes = [Axis(tuple(sorted(rates)) if free else (None,)) for rates, free in zip(grid, open_, strict=True)]

    def run(self) -> Chosen:
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
            best = next(iter(order or tried)) if best is None else best  # which diverges
            sides = zip(self._sides(tried[best]), AXES, strict=True)
            return Chosen(best, tried[best], tuple(f"{side} {name}" for side, name in sides if side))

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
        """Of every axis, the side that a solver's rate lies on."""
        return [axis.side(rate) for axis, rate in zip(self.axes, rates_of(solver), strict=False)]

    def _widen(self, sides: Sequence[str]) -> bool:
        """One rate more on these sides, where that is allowed; whether it was anywhere."""
        grown = [
            axis.widened(side) if axis.can_widen(side) else axis for axis, side in zip(self.axes, sides, strict=True)
        ]
        changed, self.axes = grown != self.axes, grown
        return changed
