"""What a run minimises, as a curve: where it is, how noisy it is, and where it goes.

Curves are drawn over the time of a gradient flow, the sum of the rates of x up to each evaluation, not over steps.
Where rates fall over a run, as automatic ones do, or have ended before it, steps at its end count for little: a curve
that is flat there says nothing. A longer run has more of this time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bilevel.weightings.base import Weighting

if TYPE_CHECKING:
    from bilevel.results.result import Result

ENOUGH = 20  # with fewer evaluations nothing is said of a curve
LUCK = 3.0  # standard deviations: the lowest of some dozens of evaluations is two to three below their mean
EARLY = 0.05  # of the evaluations: the first are about where the start was, which may be anywhere


class Compared(NamedTuple):
    """What the weights compare the tasks by."""

    values: np.ndarray  # (evaluations, tasks)
    name: str  # "loss", "regret" or "ratio"


def compared(result: Result, losses: np.ndarray | None = None) -> Compared:
    """Validation losses, or others, or what the weighting makes of them."""
    losses = np.asarray(result.history.validation if losses is None else losses, float)
    weighting = getattr(result.solver, "weighting", None)
    some = result.history.tasks is not None  # and what a weighting knows is of all tasks
    if some or not isinstance(weighting, Weighting) or weighting.compares == "loss":
        return Compared(losses, "loss")
    return Compared(np.stack([weighting.compared(row) for row in losses]), weighting.compares)


class Curve(NamedTuple):
    """What is minimised, at every evaluation."""

    name: str  # "worst loss", "mean loss"
    values: np.ndarray
    time: np.ndarray  # from 0 at the start to 1 at the end

    @property
    def level(self) -> float:
        """Where it is at the end: the median of the last tenth of the evaluations."""
        return float(np.median(self.values[-max(1, len(self.values) // 10) :]))

    @property
    def gained(self) -> float:
        """How far it has come since the first steps; not less than 0."""
        return max(0.0, float(self.values[max(1, int(EARLY * len(self.values)))] - self.level))

    def trend(self, start: float, end: float = 1.0) -> Trend:
        """The straight line, over the logarithm of the time, that is nearest to this part of it."""
        inside = (self.time >= start) & (self.time <= end) & (self.time > 0)
        t, values = np.log2(self.time[inside]), self.values[inside]
        if len(t) < 3 or np.ptp(t) < 1e-6:  # rates that have ended
            return Trend(0.0, 0.0)
        slope, offset = np.polyfit(t, values, 1)
        return Trend(float(-slope), float(np.std(values - slope * t - offset) * np.sqrt(len(t) / (len(t) - 2))))


def end_of(values: np.ndarray) -> tuple[float, float]:
    """The median of the last quarter of the evaluations, and the standard deviation of their noise.

    It is that of the differences to the mean of both neighbours, over sqrt(3/2), which independent noise makes; a curve
    that falls or bends has hardly any.
    """
    late = np.asarray(values[-max(5, len(values) // 4) :], float)
    between = late[1:-1] - (late[:-2] + late[2:]) / 2
    return float(np.median(late)), float(np.sqrt(np.mean(between**2) / 1.5))


def middle_of_three(values: np.ndarray) -> np.ndarray:
    """The median of every value and its two neighbours; both ends as they are. One outlier is no minimum of it."""
    inside = np.median(np.stack([values[:-2], values[1:-1], values[2:]]), axis=0)
    return np.concatenate([values[:1], inside, values[-1:]])


class Trend(NamedTuple):
    """Of a part of a curve."""

    fall: float  # while the time doubles
    noise: float  # the standard deviation around the line


def curve(result: Result, losses: np.ndarray | None = None) -> Curve | None:
    """That of a run, or of other losses along it.

    None where there are too few evaluations, or its losses say nothing of how good an iterate is.
    """
    history = result.history
    if history.evaluations < ENOUGH or not np.all(np.isfinite(history.validation)):
        return None
    if not getattr(result.problem, "comparable_losses", True) or result.best_by == "last":
        return None
    values, name = compared(result, losses)
    weights = np.asarray(history.weights, float)
    if np.ptp(weights, axis=0).max() > 0:
        return Curve(f"worst {name}", values.max(axis=1), _time(result))
    is_mean = np.ptp(weights[0]) <= 1e-6 * weights[0].max()
    return Curve(f"{'mean' if is_mean else 'weighted'} {name}", values @ weights[0] / weights[0].sum(), _time(result))


def _time(result: Result) -> np.ndarray:
    steps = np.asarray(result.history.step, float)
    rates = np.asarray(result.history.upper_rate, float)[1:]
    time = np.concatenate([[0.0], np.cumsum(rates * np.diff(steps))])
    time = time if np.all(np.isfinite(time)) and np.all(rates >= 0) and time[-1] > 0 else steps
    return time / max(time[-1], np.finfo(float).tiny)
