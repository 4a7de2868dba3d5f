"""What a policy for runs that diverge is."""

from __future__ import annotations

import abc
import warnings
from collections.abc import Sequence
from typing import ClassVar

from bilevel.results.divergences import Divergence
from bilevel.results.result import Result

DIVERGED = "diverged"  # the status of such a result


class Policy(abc.ABC):
    """Decides what happens when a run diverges, and how that is told at the end.

    To write one, make a part (`bl.part`) that inherits this and has `factor_after`. A run asks it for no more than
    that; what the run does then, it writes down in `Result.divergences`.
    """

    goes_back: ClassVar[bool] = False  # whether runs may go on: they then keep a point that they can go back to

    def check(self) -> None:  # noqa: B027  (most have no options)
        """Raises where an option makes no sense: names it, its value, what it needs."""

    @abc.abstractmethod
    def factor_after(self, before: Sequence[Divergence]) -> float | None:
        """What all rates are multiplied by, for the run to go on; None = it ends. `before` are earlier divergences."""

    def conclude(self, results: Sequence[Result]) -> None:
        """Called once, by `solve`, with the results of all its runs: warns of those that ended diverged."""
        said = told(results)
        if said is not None:
            warnings.warn(said, stacklevel=3)  # at the line that called `solve`


def told(results: Sequence[Result]) -> str | None:
    """What to say of the runs that ended diverged; None where none did."""
    diverged = [result for result in results if result.status == DIVERGED]
    if not diverged:
        return None
    if len(results) == 1:
        return diverged[0].message
    seeds = ", ".join(str(result.seed) for result in diverged)
    return f"{len(diverged)} of {len(results)} runs diverged (seeds {seeds}). The first: {diverged[0].message}"
