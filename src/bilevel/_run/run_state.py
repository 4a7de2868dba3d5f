"""What a run has reached: the value that the driver goes on from, its history so far, and its best iterate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bilevel._core.averages import mean, worst
from bilevel._run.divergence import DIVERGED as DIVERGED
from bilevel._run.loop import Carry, Variables
from bilevel.results.history import Divergence, in_words, of_distribution, tail_mean

if TYPE_CHECKING:
    from bilevel._run.run import Run

RUNNING, FINISHED, STOPPED, INTERRUPTED = "running", "finished", "stopped early", "interrupted"
CONVERGED = "converged"
CALLBACK_FAILED = "callback failed"


class Row(NamedTuple):
    """One evaluation: a row of the history."""

    step: int
    seconds: float
    validation: np.ndarray
    selection: np.ndarray | None
    test: np.ndarray | None
    weights: np.ndarray
    direction_norm: float
    upper_rate: float
    lower_rate: np.ndarray
    weights_rate: float
    weights_travel: float
    weights_swing: float
    fitted: bool  # whether the losses are at y that is fitted to x
    lag: float  # about how far they may still be off, as a share of the worst; NaN where y is not fitted
    metrics: Mapping[str, np.ndarray] = MappingProxyType({})  # one number a task, by "validation accuracy"
    tasks: np.ndarray | None = None  # the numbers of the tasks in the arrays; None = all
    largest: float | None = None  # the largest validation loss among these and the heaviest tasks; None = among all
    largest_task: int | None = None

    @property
    def worst(self) -> float:
        """The largest validation loss."""
        return worst(self.validation, self.largest)

    @property
    def mean(self) -> float:
        """The mean validation loss."""
        return float(mean(self.validation))

    @property
    def chosen_by(self) -> float:
        """The lower, the better the iterate."""
        return _chosen_by(self)


class Evaluated(NamedTuple):
    """A point and its losses."""

    point: Variables
    validation: np.ndarray
    selection: np.ndarray | None
    test: np.ndarray | None
    metrics: dict[str, np.ndarray]

    @property
    def chosen_by(self) -> float:
        """The lower, the better the iterate."""
        return _chosen_by(self)


def _chosen_by(evaluated: Row | Evaluated) -> float:
    """The worst selection loss, or else the worst validation loss; NaN is worse than anything."""
    if isinstance(evaluated, Row) and evaluated.selection is None and evaluated.largest is not None:
        losses = np.asarray(evaluated.largest)
    else:
        losses = evaluated.validation if evaluated.selection is None else evaluated.selection
    return float(np.max(np.where(np.isnan(losses), np.inf, losses)))


class Reached(NamedTuple):
    """All that a run has reached; with the `Run` itself it says everything that is still to come."""

    carry: Carry
    step: int
    rows: tuple[Row, ...]  # the history so far
    best: Evaluated
    since_best: int  # evaluations since then
    seconds: float
    compile_seconds: float  # of these
    steps_per_second: float | None = None  # None before the first call; it only decides how calls are cut
    passes: int = 0  # over all training rows, that fits of y took at evaluations
    seen: Variables | None = None  # where the last row was evaluated, its y fitted; None = not known any more
    status: str = RUNNING
    message: str = ""
    divergences: tuple[Divergence, ...] = ()
    safe: Carry | None = None  # where to go back to from a divergence; None where that ends the run

    @property
    def scale(self) -> float:
        """What the solver's rates are multiplied by."""
        return math.prod(event.factor for event in self.divergences if event.factor is not None)

    @property
    def running(self) -> bool:
        """Whether there is more to do."""
        return self.status == RUNNING

    def ended(self, status: str, message: str = "") -> Reached:
        """The same, with the run at its end."""
        return self._replace(status=status, message=message)


def score(run: Run, evaluated: Row | Evaluated) -> float:
    """The lower, the better: the worst loss, or of tasks from a distribution what is minimised."""
    fraction = of_distribution(run.solver)
    if fraction is None:
        return evaluated.chosen_by
    losses = evaluated.validation if evaluated.selection is None else evaluated.selection
    return tail_mean(np.where(np.isnan(losses), np.inf, losses), fraction)


def judged_by(run: Run) -> str:
    """The same in words."""
    fraction = of_distribution(run.solver)
    return f"worst {run.best_by} loss" if fraction is None else in_words(fraction, run.best_by)
