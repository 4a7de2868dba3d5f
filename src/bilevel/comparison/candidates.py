"""Solvers that ran: their runs, what a run costs, how it ended, and who ranks where.

An oracle call is one value, gradient or product of one task on one row of data, as papers count them: a full pass over
N rows is N calls. A value that comes with a gradient is free (see `bl.cost`). All that a run asks for counts: first
values and tables, loops that grow, and what automatic rates measure. Evaluations on all the data do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bilevel._cost.run_cost import RunCost
from bilevel._studies import measures
from bilevel._studies.records import Record

EVALUATIONS = 50  # of a run
RESAMPLES = 2000  # of the seeds
CONFIDENCE = 0.95
ROUNDING = 1e-6  # a loss is lower by more than this share of it


class Used(NamedTuple):
    """Oracle calls per task along a run, as a table of steps."""

    steps: np.ndarray  # 0, then those that are evaluated
    calls: np.ndarray  # up to each of them
    besides: float  # of all these, not in steps: first values, tables, rates that are measured

    @classmethod
    def of(cls, cost: RunCost) -> Used:
        """The calls at the steps at which a run of this length is evaluated."""
        steps = np.arange(0, cost.length + 1, max(1, cost.length // EVALUATIONS))
        steps = np.union1d(steps, [cost.length])
        return cls(steps, cost.rows[steps], cost.start.rows + cost.measuring.rows)


class Profile(NamedTuple):
    """Cost of a run."""

    calls: float  # per step and task, on average; NaN for problems that are not bilevel, where they are not counted
    seconds: float  # per step, alone on the machine
    bytes: int  # of the solver's state
    used: Used | None = None  # along the run; None = the average in every step

    def calls_at(self, steps: Any) -> Any:
        """Calls per task up to these steps."""
        return steps * self.calls if self.used is None else np.interp(steps, self.used.steps, self.used.calls)


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
        """The column that ranks candidates: of rows that x was not fitted to, if the problem has any."""
        return next((name for name in ("worst_selection", "worst_test") if self.has(name)), "worst_validation")

    def at_best(self, column: str) -> np.ndarray:
        """A column at the best evaluation of each run, as in `result.best`; infinite where it diverged."""
        found = [measures.at_best(record, column) for record in self.runs.values()]
        return np.where(self.diverged, np.inf, found)

    def usual_task(self, column: str) -> int | None:
        """The task that a column names most often at the ends of the runs; None without such a column."""
        ends = [record[column][-1] for record in self.runs.values() if measures.has(record, column)]
        return Counter(int(end) for end in ends).most_common(1)[0][0] if ends else None

    @property
    def worst(self) -> float:
        """The final worst validation loss: the mean over the runs, or the median where some diverged."""
        return float(typical(self.ends("worst_validation")))

    @property
    def order(self) -> tuple[float, float]:
        """The key that sorts candidates: those that diverge more often come last."""
        return float(self.diverged.mean()), float(typical(self.ends(self.ranked_by)))


class Rank(NamedTuple):
    """A place, from 1, and where it lies in 95 % of the resamples of the seeds; NaN with fewer than two seeds."""

    place: int
    low: float
    high: float

    def ties(self, other: Rank) -> bool:
        """Whether the places are the same, or their intervals overlap."""
        return self.place == other.place or (self.low <= other.high and other.low <= self.high)


def typical(losses: np.ndarray) -> np.ndarray:
    """The mean over the last axis; the median where some are infinite, because their runs diverged."""
    return np.where(np.isinf(losses).any(axis=-1), np.median(losses, axis=-1), losses.mean(axis=-1))


def places(losses: np.ndarray) -> np.ndarray:
    """Places of solvers by their losses, (solvers, ..., seeds): first fewer diverged runs, then lower losses.

    Solvers whose losses are equal up to rounding share the first of their places.
    """
    diverged, loss = np.isinf(losses).mean(axis=-1), typical(losses)
    fewer = diverged[None] < diverged[:, None]
    below = np.where(np.isinf(loss), loss, loss - ROUNDING * np.abs(np.where(np.isinf(loss), 0, loss)))
    lower = (diverged[None] == diverged[:, None]) & (loss[None] < below[:, None])
    return 1 + (fewer | lower).sum(axis=1)


def ranks(losses: np.ndarray) -> list[Rank]:
    """The rank of every solver from its losses, (solvers, seeds); infinite where a run diverged.

    All solvers have the same seeds, and a resample draws the same seeds for all of them. A hard seed is hard for all,
    so that it cancels.
    """
    seeds = losses.shape[1]
    place = places(losses)
    if seeds < 2:
        return [Rank(int(p), float("nan"), float("nan")) for p in place]
    drawn = np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds))
    again = places(losses[:, drawn])
    low, high = np.quantile(again, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2], axis=1, method="nearest")
    return [Rank(int(p), float(a), float(b)) for p, a, b in zip(place, low, high, strict=True)]


def ranked(losses: Sequence[Sequence[float]]) -> list[Rank]:
    """`ranks` of rows that may differ in length, on the first seeds, which all of them have."""
    if not losses:
        return []
    seeds = min(map(len, losses))
    return ranks(np.array([row[:seeds] for row in losses], float))
