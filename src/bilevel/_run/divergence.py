"""Policies for runs that diverge, for `solve(..., on_divergence=...)`.

`Stop` ends the run with a warning, `Raise` ends it with an error, and `SmallerRates` goes back and continues with
smaller rates.
Whatever the policy, `Result.divergences` says what happened.
"""

from __future__ import annotations

import abc
import warnings
from collections.abc import Sequence
from typing import ClassVar

from bilevel._core import values
from bilevel._core.module import part
from bilevel.results.history import Divergence
from bilevel.results.result import Result

__all__ = ["Diverged", "Divergence", "Policy", "Raise", "SmallerRates", "Stop"]

DIVERGED = "diverged"  # the status of a result


class Policy(abc.ABC):
    """Decides what happens when a run diverges, and what the user is told at the end.

    To write one, make a part (`bl.part`) that inherits from this class and has `factor_after`. That is all that a run
    asks for; what it then does is in `Result.divergences`.
    """

    goes_back: ClassVar[bool] = False  # whether runs may continue; if so they keep a point to return to

    def check(self) -> None:  # noqa: B027  (most have no options)
        """Raises if an option makes no sense; the message names it, its value and what it needs."""

    @abc.abstractmethod
    def factor_after(self, before: Sequence[Divergence]) -> float | None:
        """The factor of all rates from here on; None = the run ends. `before` has the earlier divergences."""

    def conclude(self, results: Sequence[Result]) -> None:
        """Called once by `solve` with the results of all its runs; warns about those that ended diverged."""
        said = told(results)
        if said is not None:
            warnings.warn(said, stacklevel=3)  # at the line that called `solve`


def told(results: Sequence[Result]) -> str | None:
    """A message about the runs that ended diverged; None where none did."""
    diverged = [result for result in results if result.status == DIVERGED]
    if not diverged:
        return None
    if len(results) == 1:
        return diverged[0].message
    seeds = ", ".join(str(result.seed) for result in diverged)
    return f"{len(diverged)} of {len(results)} runs diverged (seeds {seeds}). The first: {diverged[0].message}"


@part
class Stop(Policy):
    """The run ends with its last finite state. A warning says what diverged and which rate to make smaller."""

    def factor_after(self, before: Sequence[Divergence]) -> float | None:
        """None, so that the run ends."""
        return None


class Diverged(ArithmeticError):  # noqa: N818  (it says what happened)
    """One or more runs diverged; the error holds their results.

    Attributes:
        result: that of the first run that diverged, with its last finite state.
        results: those of all runs that `solve` made, in the order of their seeds.
    """

    def __init__(self, message: str, results: Sequence[Result]):
        super().__init__(message)
        self.results = tuple(results)
        self.result = next(result for result in self.results if result.status == DIVERGED)


@part
class Raise(Stop):
    """The run ends with a `Diverged`, whose `result` holds its last finite state.

    With several seeds the other runs go to their end first, and their results are in `results`: nothing is lost.

    >>> import bilevel as bl
    >>> known = bl.problems.opposed_slopes()
    >>> kind = bl.divergence.Raise()
    >>> try:
    ...     bl.solve(known.problem, bl.MORBiT(0.1, 9.0), known.x, steps=500, progress=False, on_divergence=kind)
    ... except bl.divergence.Diverged as error:
    ...     print(error.result.status, error.result.divergences[0].quantity)
    diverged loss
    """

    def conclude(self, results: Sequence[Result]) -> None:
        """Raises if any run ended diverged."""
        said = told(results)
        if said is not None:
            raise Diverged(said, results)


@part
class SmallerRates(Policy):
    """The run goes back to its best point, and continues from there with smaller rates.

    Args:
        factor: what all rates are multiplied by, each time.
        tries: how often; a run that diverges once more ends as with `Stop`.

    The factor applies to every rate: numbers, schedules, rates that the solver chooses, and that of the weighting. The
    run continues from the best evaluated point (at first the start) and not from the last finite state, which is
    usually far off already, with losses of 1e30, weights at a corner, and moments of an optimiser to match. The steps
    in between are taken again with the same draws, and are in the history once. A run takes up to `1 + tries` times as
    long, and keeps a second state in memory and in its checkpoints.

    A run also goes back if its objective, at an evaluation that fits y, exceeds the best one by half of the best and by
    half of all that was gained. A run with automatic rates may end up to a twentieth above its best and not above its
    start: otherwise the best point becomes its end. Both need a solver with a `weighting`, which defines the objective.

    A solver of your own has its rates in fields whose names end in `lr`, or applies the factor in `with_scaled_rates`;
    if it does neither, the run ends and says so.

    >>> import bilevel as bl
    >>> known = bl.problems.opposed_slopes()
    >>> kind = bl.divergence.SmallerRates()
    >>> result = bl.solve(known.problem, bl.MORBiT(0.1, 3.0), known.x, steps=500, progress=False, on_divergence=kind)
    >>> result.status, [event.factor for event in result.divergences]
    ('finished', [0.5, 0.5])
    """

    factor: float = 0.5
    tries: int = 5

    goes_back = True

    def check(self) -> None:
        """Raises unless 0 < factor < 1 and tries >= 1."""
        values.number("factor", self.factor, above=0, below=1, of="SmallerRates")
        values.whole("tries", self.tries, of="SmallerRates")

    def factor_after(self, before: Sequence[Divergence]) -> float | None:
        """The factor, up to `tries` times."""
        return float(self.factor) if len(before) < self.tries else None
