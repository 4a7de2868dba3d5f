"""What a run minimises, as a curve: where it is, how noisy it is, and where it goes.

Curves are drawn over the time of a gradient flow, the sum of the rates of x up to each evaluation, not over steps.
Where rates fall over a run, as automatic ones do, or have ended before it, steps at its end count for little: a curve
that is flat there says nothing. A longer run has more of this time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bilevel.results.tail import of_distribution, tail_mean
from bilevel.weightings.base import Weighting

if TYPE_CHECKING:
    from bilevel.results.result import Result

ENOUGH = 20  # with fewer evaluations nothing is said of a curve
EARLY = 0.05  # of the evaluations: the first are about where the start was, which may be anywhere
SURE = 0.9  # of two-sided intervals
OF_GAIN = 0.03  # what is small: this share of what a run has gained
NOISY = 0.05  # a curve is noisy where its noise is this share of the loss, and `OF_GAIN` of the gain
CHANCE = 0.01  # that the lowest of as many evaluations, were they noise alone, is lower still


class Compared(NamedTuple):
    """What the weights compare the tasks by, or what is minimised of it."""

    values: np.ndarray  # (evaluations, tasks); of what is minimised, (evaluations,)
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
        """How far it has come since the first steps, from wherever it was highest; not less than 0."""
        return max(0.0, float(self.values[max(1, int(EARLY * len(self.values))) :].max() - self.level))

    def trend(self, start: float, end: float = 1.0) -> Trend:
        """How it falls in this part of the time: the median of the slopes between all pairs of evaluations.

        Its interval is Sen's, widened by what evaluations have in common with the one before: as many that are
        correlated by r tell as much as (1 - r) / (1 + r) of their number.

        Reference: Sen, "Estimates of the regression coefficient based on Kendall's tau", 1968.
        """
        from scipy.stats import theilslopes  # here, as importing bilevel is to stay fast

        inside = (self.time >= start) & (self.time <= end)
        t, first = np.unique(self.time[inside], return_index=True)  # rates may have ended, and with them the time
        values = self.values[inside][first]
        if len(t) < 4 or np.ptp(t) < 1e-6:
            return Trend(0.0, 0.0, 0.0)
        slope, offset, low, high = np.asarray(theilslopes(values, t, SURE), float)
        common = autocorrelation(values - slope * t - offset)
        wider = np.sqrt((1 + common) / (1 - common))
        return Trend(float(-slope), float(-slope - wider * (high - slope)), float(-slope + wider * (slope - low)))


def end_of(values: np.ndarray) -> tuple[float, float]:
    """The median of the last quarter of the evaluations, and the standard deviation of their noise."""
    late = np.asarray(values[-max(5, len(values) // 4) :], float)
    return float(np.median(late)), noise_of(late)


def is_noisy(own: Curve) -> bool:
    """Whether the last evaluations differ by more than is small."""
    _, noise = end_of(own.values)
    return noise > NOISY * abs(own.level) and noise > OF_GAIN * own.gained


def noise_of(values: np.ndarray) -> float:
    """The standard deviation of noise in evaluations that follow each other.

    It is that of the differences to the mean of both neighbours, over sqrt(3/2), which independent noise makes, by
    their median size, which one outlier does not move; a curve that falls or bends has hardly any.
    """
    between = np.abs(values[1:-1] - (values[:-2] + values[2:]) / 2)
    return float(np.median(between) / 0.6745 / np.sqrt(1.5))  # half of all normal numbers are within 0.6745


def lowest_of(count: int) -> float:
    """How far below their mean, in standard deviations, the lowest of so many normal numbers is but for `CHANCE`."""
    from scipy.special import ndtri  # here, as importing bilevel is to stay fast

    return float(ndtri((1 - CHANCE) ** (1 / count)))


def middle_of_three(values: np.ndarray) -> np.ndarray:
    """The median of every value and its two neighbours; both ends as they are. One outlier is no minimum of it."""
    inside = np.median(np.stack([values[:-2], values[1:-1], values[2:]]), axis=0)
    return np.concatenate([values[:1], inside, values[-1:]])


class Trend(NamedTuple):
    """How a part of a curve falls: by so much in a time as long as the whole run."""

    fall: float
    low: float  # an interval of it
    high: float


def autocorrelation(residuals: np.ndarray) -> float:
    """Of residuals with those before them; from 0 to 0.9, as few evaluations do not tell more."""
    own = residuals - residuals.mean()
    return float(np.clip(own[1:] @ own[:-1] / max(own @ own, np.finfo(float).tiny), 0.0, 0.9))


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """The mean of evaluations and its standard error, which counts correlated ones for what they tell."""
    common = autocorrelation(values)
    count = len(values) * (1 - common) / (1 + common)
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(max(count, 1.0)))


def curve(result: Result, losses: np.ndarray | None = None) -> Curve | None:
    """That of a run, or of other losses along it.

    None where there are too few evaluations, or its losses say nothing of how good an iterate is.
    """
    history = result.history
    if history.evaluations < ENOUGH or not np.all(np.isfinite(history.validation)):
        return None
    if not getattr(result.problem, "comparable_losses", True) or result.best_by == "last":
        return None
    values, name = objective(result, losses)
    return Curve(name, values, _time(result))


def objective(result: Result, losses: np.ndarray | None = None) -> Compared:
    """What is minimised, of losses (evaluations, tasks): the worst where weights move, otherwise the weighted mean.

    Of tasks from a distribution, whose weights are not those of the tasks that are evaluated: the mean of the tail.
    """
    values, name = compared(result, losses)
    weights, fraction = np.asarray(result.history.weights, float), of_distribution(result.solver)
    if fraction is not None and fraction < 1:
        return Compared(np.array([tail_mean(row, fraction) for row in values]), f"tail {name}")
    if np.ptp(weights, axis=0).max() > 0:
        return Compared(values.max(axis=1), f"worst {name}")
    is_mean = np.ptp(weights[0]) <= 1e-6 * weights[0].max()
    return Compared(values @ weights[0] / weights[0].sum(), f"{'mean' if is_mean else 'weighted'} {name}")


def _time(result: Result) -> np.ndarray:
    steps = np.asarray(result.history.step, float)
    rates = np.asarray(result.history.upper_rate, float)[1:]
    time = np.concatenate([[0.0], np.cumsum(rates * np.diff(steps))])
    time = time if np.all(np.isfinite(time)) and np.all(rates >= 0) and time[-1] > 0 else steps
    return time / max(time[-1], np.finfo(float).tiny)
