"""A finding about a run, and the curve that findings are read off: its level, its noise and its trend.

The curve is the objective of the run. Its time is that of a gradient flow, not the step: the sum of the rates of x up
to each evaluation. Late steps with small rates count for little on this axis, so that a run whose rates have fallen
does not look settled just because it hardly moves. A longer run has more of this time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bilevel.results.history import of_distribution, tail_mean
from bilevel.weightings.base import Weighting

if TYPE_CHECKING:
    from bilevel.results.result import Result

Number = float | int | str

ENOUGH = 20  # evaluations that a curve needs; with fewer there are no findings
EARLY = 0.05  # share of the first evaluations that is left out: they depend on the start, which may be anywhere
SURE = 0.9  # coverage of two-sided intervals
OF_GAIN = 0.03  # a change is small below this share of what a run has gained
NOISY = 0.05  # a curve is noisy where its noise is this share of the loss, and `OF_GAIN` of the gain
CHANCE = 0.01  # probability that pure noise has a lower minimum over as many evaluations


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that a run shows, with a remedy; `str(finding)` is its sentence.

    Attributes:
        kind: in two or three words, the same for all findings of one check: "overfitting", "still falling".
        text: a sentence with the numbers and what to do.
        numbers: the evidence by name: plain numbers, and names of tasks.
    """

    kind: str
    text: str
    numbers: Mapping[str, Number] = dataclasses.field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, kind: str, text: str, **numbers: object) -> Finding:
        """A finding from numbers of any type. JSON has no infinite numbers, so they are left out."""
        plain = {name.replace("_", " "): _plain(value) for name, value in numbers.items()}
        return cls(kind, text, {name: value for name, value in plain.items() if value is not None})

    def __str__(self) -> str:
        return self.text


def _plain(value: Any) -> Number | None:
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int) else str(value)


class ComparedLosses(NamedTuple):
    """The scores by which the weighting compares tasks, or their objective."""

    values: np.ndarray  # (evaluations, tasks); of an objective, (evaluations,)
    name: str  # "loss", "regret" or "ratio"


def compared(result: Result, losses: np.ndarray | None = None) -> ComparedLosses:
    """The losses (validation losses unless given), or the regrets or ratios that the weighting makes of them."""
    losses = np.asarray(result.history.validation if losses is None else losses, float)
    weighting = getattr(result.solver, "weighting", None)
    partial = result.history.tasks is not None  # a weighting knows baselines of all tasks, not of these columns
    if partial or not isinstance(weighting, Weighting) or weighting.compares == "loss":
        return ComparedLosses(losses, "loss")
    return ComparedLosses(np.stack([weighting.compared(row) for row in losses]), weighting.compares)


class Curve(NamedTuple):
    """The objective at every evaluation."""

    name: str  # "worst loss", "mean loss"
    values: np.ndarray
    time: np.ndarray  # from 0 at the start to 1 at the end

    @property
    def level(self) -> float:
        """Its value at the end: the median of the last tenth of the evaluations."""
        return float(np.median(self.values[-max(1, len(self.values) // 10) :]))

    @property
    def gained(self) -> float:
        """How far it has fallen from its highest value after the first steps; at least 0."""
        return max(0.0, float(self.values[max(1, int(EARLY * len(self.values))) :].max() - self.level))

    def trend(self, start: float, end: float = 1.0) -> Trend:
        """How fast it falls in this part of the time: the median slope over all pairs of evaluations.

        The interval is Sen's, widened because neighbouring evaluations are correlated: n evaluations with correlation r
        are worth n (1 - r) / (1 + r) independent ones.

        Reference: Sen, "Estimates of the regression coefficient based on Kendall's tau", 1968.
        """
        from scipy.stats import theilslopes  # imported here, so that importing bilevel stays fast

        inside = (self.time >= start) & (self.time <= end)
        t, first = np.unique(self.time[inside], return_index=True)  # time does not pass while rates are 0
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
    """Whether the noise of the last evaluations is more than small."""
    _, noise = end_of(own.values)
    return noise > NOISY * abs(own.level) and noise > OF_GAIN * own.gained


def noise_of(values: np.ndarray) -> float:
    """The standard deviation of the noise in consecutive evaluations.

    It is measured on the differences between each evaluation and the mean of its neighbours, so that a trend or a bend
    adds hardly anything; independent noise makes these differences larger by sqrt(3/2). It uses their median size, so
    that one outlier does not count.
    """
    between = np.abs(values[1:-1] - (values[:-2] + values[2:]) / 2)
    # Half of a normal sample lies within 0.6745 standard deviations.
    return float(np.median(between) / 0.6745 / np.sqrt(1.5))


def lowest_of(count: int) -> float:
    """How many standard deviations the minimum of `count` normal numbers is below their mean, but for `CHANCE`."""
    from scipy.special import ndtri  # imported here, so that importing bilevel stays fast

    return float(ndtri((1 - CHANCE) ** (1 / count)))


def middle_of_three(values: np.ndarray) -> np.ndarray:
    """The median of every value and its two neighbours, so that one outlier is no minimum; both ends stay."""
    inside = np.median(np.stack([values[:-2], values[1:-1], values[2:]]), axis=0)
    return np.concatenate([values[:1], inside, values[-1:]])


class Trend(NamedTuple):
    """How fast a part of a curve falls, extrapolated to the time of the whole run."""

    fall: float
    low: float  # the ends of its interval
    high: float


def autocorrelation(residuals: np.ndarray) -> float:
    """The lag-one autocorrelation, clipped to [0, 0.9]: few evaluations do not support more."""
    own = residuals - residuals.mean()
    return float(np.clip(own[1:] @ own[:-1] / max(own @ own, np.finfo(float).tiny), 0.0, 0.9))


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """The mean of evaluations, and its standard error with their correlation allowed for."""
    common = autocorrelation(values)
    count = len(values) * (1 - common) / (1 + common)
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(max(count, 1.0)))


def curve(result: Result, losses: np.ndarray | None = None) -> Curve | None:
    """The curve of a run, or of other losses along it.

    None where there are too few evaluations, or where losses do not say how good an iterate is.
    """
    history = result.history
    if history.evaluations < ENOUGH or not np.all(np.isfinite(history.validation)):
        return None
    if not getattr(result.problem, "comparable_losses", True) or result.best_by == "last":
        return None
    steps, rates = np.asarray(history.step, float), np.asarray(history.upper_rate, float)[1:]
    time = np.concatenate([[0.0], np.cumsum(rates * np.diff(steps))])
    if not np.all(np.isfinite(time)) or np.any(rates < 0) or time[-1] <= 0:
        time = steps
    values, name = objective(result, losses)
    return Curve(name, values, time / max(time[-1], np.finfo(float).tiny))


def objective(result: Result, losses: np.ndarray | None = None) -> ComparedLosses:
    """The objective at losses (evaluations, tasks): the worst where weights move, otherwise the weighted mean.

    With tasks from a distribution the weights are not those of the evaluated tasks, and it is the mean of the tail.
    """
    values, name = compared(result, losses)
    weights, fraction = np.asarray(result.history.weights, float), of_distribution(result.solver)
    if fraction is not None and fraction < 1:
        return ComparedLosses(np.array([tail_mean(row, fraction) for row in values]), f"tail {name}")
    if np.ptp(weights, axis=0).max() > 0:
        return ComparedLosses(values.max(axis=1), f"worst {name}")
    is_mean = np.ptp(weights[0]) <= 1e-6 * weights[0].max()
    return ComparedLosses(values @ weights[0] / weights[0].sum(), f"{'mean' if is_mean else 'weighted'} {name}")
