"""The run goes back and on, more slowly."""

from __future__ import annotations

from collections.abc import Sequence

from bilevel._core import values
from bilevel._core.module import part
from bilevel.divergence.base import Policy
from bilevel.results.divergences import Divergence


@part
class SmallerRates(Policy):
    """The run goes back to its best point, and on from there with all its rates times a factor.

    Args:
        factor: what the rates are multiplied by, each time.
        tries: how many times; a run that diverges once more ends as with `Stop`.

    All rates are: numbers, schedules, those that the solver chooses, that of the weighting. It goes on from the best
    point that was evaluated, at first the start, not from the last finite state, which is usually far off already
    (losses of 1e30, weights at a corner, moments of an optimiser to match). The steps in between are taken again, at
    the same draws, and are in the history once. So a run takes up to `1 + tries` times as long, and keeps a second
    state, in memory and in its checkpoints.

    A run also goes back where its objective, at an evaluation that fits y, is above the best by half of that and by
    half of all that was gained. Where rates are chosen, it may be above its best by a twentieth at its end, and not
    above its start: otherwise the best point is its end. Both need a solver with a `weighting`, which says what is
    minimised.

    A solver of your own has its rates in fields whose names end in `lr`, or says in `with_scaled_rates` what they are;
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
        """0 < factor < 1 and tries >= 1."""
        values.number("factor", self.factor, above=0, below=1, of="SmallerRates")
        values.whole("tries", self.tries, of="SmallerRates")

    def factor_after(self, before: Sequence[Divergence]) -> float | None:
        """The factor, `tries` times."""
        return float(self.factor) if len(before) < self.tries else None
