"""A solver that ran: its rates, its runs, and how well they ended."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from bilevel._studies import measures
from bilevel._studies.records import Record
from bilevel.comparison.profiles import Profile
from bilevel.comparison.ranks import typical


class Candidate(NamedTuple):
    """A solver that ran."""

    name: str
    profile: Profile
    rates: str  # of x, y and the weights, as tuned; "automatic"; "as given"
    runs: dict[int, Record]  # by seed
    steps: int  # that each run was to make
    edges: tuple[str, ...] = ()  # where tuned rates are the largest or smallest that were tried: "largest x"

    @property
    def diverged(self) -> np.ndarray:
        """Which runs ended early, without a finite loss, or far above where they began."""
        return np.array([measures.diverged(record, self.steps) for record in self.runs.values()], bool)

    def ends(self, column: str) -> np.ndarray:
        """The final values of a column, one per run; infinite where it diverged."""
        found = [measures.final(record, column) for record in self.runs.values()]
        return np.where(self.diverged, np.inf, found)

    def has(self, column: str) -> bool:
        """Whether any run has a column; not every problem has selection and test rows."""
        return any(measures.has(record, column) for record in self.runs.values())

    @property
    def ranked_by(self) -> str:
        """The column that candidates are ranked by: the first that there is, of rows that x was not fitted to."""
        return next((name for name in ("worst_selection", "worst_test") if self.has(name)), "worst_validation")

    def at_best(self, column: str) -> np.ndarray:
        """A column at the evaluation that choices go by, as `result.best` has it; infinite where a run diverged."""
        found = [measures.at_best(record, column) for record in self.runs.values()]
        return np.where(self.diverged, np.inf, found)

    def usual_task(self, column: str) -> int | None:
        """The task that a column of their numbers has most often at the ends of the runs; None where there is none."""
        ends = [record[column][-1] for record in self.runs.values() if measures.has(record, column)]
        return Counter(int(end) for end in ends).most_common(1)[0][0] if ends else None

    @property
    def worst(self) -> float:
        """The final worst validation loss: the mean over the runs; where some diverged, the median, they being last."""
        return float(typical(self.ends("worst_validation")))

    @property
    def order(self) -> tuple[float, float]:
        """Candidates are ordered by it: those that diverge more often come last."""
        return float(self.diverged.mean()), float(typical(self.ends(self.ranked_by)))
