"""State of a run: what the driver continues from, the history so far, and the best iterate."""

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
    lag: float  # estimated error of the losses, as a share of the worst; NaN where y is not fitted
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


class Evaluated(NamedTuple):
    """A point and its losses."""

    point: Variables
    validation: np.ndarray
    selection: np.ndarray | None
    test: np.ndarray | None
    metrics: dict[str, np.ndarray]


class RunState(NamedTuple):
    """Everything that a run has reached. Together with the `Run` it determines all that follows."""

    carry: Carry
    step: int
    rows: tuple[Row, ...]  # the history so far
    best: Evaluated
    since_best: int  # evaluations since then
    seconds: float
    compile_seconds: float  # of these
    steps_per_second: float | None = None  # None before the first call; it only decides how many steps a call takes
    passes: int = 0  # over all training rows, that fits of y took at evaluations
    seen: Variables | None = None  # the point of the last row, with fitted y; None = no longer known
    status: str = RUNNING
    message: str = ""
    divergences: tuple[Divergence, ...] = ()
    safe: Carry | None = None  # the point to return to after a divergence; None if a divergence ends the run

    @property
    def scale(self) -> float:
        """The factor of all the solver's rates."""
        return math.prod(event.factor for event in self.divergences if event.factor is not None)

    @property
    def running(self) -> bool:
        """Whether the run has not ended."""
        return self.status == RUNNING

    def ended(self, status: str, message: str = "") -> RunState:
        """The same state, with the run ended."""
        return self._replace(status=status, message=message)


def score(run: Run, evaluated: Row | Evaluated) -> float:
    """The number by which iterates are compared: the worst loss, or the objective for tasks from a distribution.

    Of selection rows where there are some, else of validation rows. NaN is worse than anything.
    """
    fraction = of_distribution(run.solver)
    losses = evaluated.validation if evaluated.selection is None else evaluated.selection
    if (
        fraction is None
        and evaluated.selection is None
        and isinstance(evaluated, Row)
        and evaluated.largest is not None
    ):
        losses = evaluated.largest
    losses = np.where(np.isnan(losses), np.inf, losses)
    return float(np.max(losses)) if fraction is None else tail_mean(losses, fraction)


def judged_by(run: Run) -> str:
    """What iterates are compared by, in words."""
    fraction = of_distribution(run.solver)
    return f"worst {run.best_by} loss" if fraction is None else in_words(fraction, run.best_by)
