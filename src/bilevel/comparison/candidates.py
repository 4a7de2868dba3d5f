"""A solver that ran: its rates, its runs, and how well they ended."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bilevel._studies import measures
from bilevel._studies.records import Record
from bilevel.comparison.profiles import Profile


class Candidate(NamedTuple):
    """A solver that ran."""

    name: str
    profile: Profile
    rates: str  # of x, y and the weights, as tuned; "automatic"; "as given"
    runs: dict[int, Record]  # by seed
    steps: int  # that each run was to make

    @property
    def diverged(self) -> np.ndarray:
        """Which runs ended early, without a finite loss, or far above where they began."""
        return np.array([measures.diverged(record, self.steps) for record in self.runs.values()], bool)

    @property
    def sound(self) -> list[Record]:
        """The runs that did not diverge."""
        return [record for record in self.runs.values() if not measures.diverged(record, self.steps)]

    @property
    def worst(self) -> float:
        """The final worst validation loss, on average over the runs that did not diverge; infinite if all did."""
        ends = [measures.final(record, "worst_validation") for record in self.sound]
        return float(np.mean(ends)) if ends else float("inf")

    @property
    def order(self) -> tuple[float, float]:
        """Candidates are ordered by it: those that diverge more often come last."""
        return float(self.diverged.mean()), self.worst
