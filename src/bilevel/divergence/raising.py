"""The run ends, and an error says so."""

from __future__ import annotations

from collections.abc import Sequence

from bilevel._core.module import part
from bilevel.divergence.base import DIVERGED, told
from bilevel.divergence.stop import Stop
from bilevel.results.result import Result


class Diverged(ArithmeticError):  # noqa: N818  (it says what happened)
    """Runs diverged; what they had reached is here.

    Attributes:
        result: of the first run that diverged, with its last finite state.
        results: of all runs that `solve` made, in the order of their seeds.
    """

    def __init__(self, message: str, results: Sequence[Result]):
        super().__init__(message)
        self.results = tuple(results)
        self.result = next(result for result in self.results if result.status == DIVERGED)


@part
class Raise(Stop):
    """The run ends with a `Diverged`, whose `result` holds its last finite state.

    Of several seeds the others run to their end first, and are in its `results`: nothing is lost.

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
        """Raises where any run ended diverged."""
        said = told(results)
        if said is not None:
            raise Diverged(said, results)
