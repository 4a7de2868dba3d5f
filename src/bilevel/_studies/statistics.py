"""Intervals over trials, and what they say about a claim."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
HOLDS, REFUTED, INCONCLUSIVE = "holds", "does not hold", "inconclusive"


class Interval(NamedTuple):
    """A mean over trials and where, with some confidence, it lies (Student's t)."""

    mean: float
    low: float
    high: float
    trials: int

    def within(self, low: float, high: float) -> str:
        """Whether the number lies between two others: all of the interval, none of it, or neither."""
        if not np.isfinite([self.low, self.high]).all():
            return INCONCLUSIVE
        if low <= self.low and self.high <= high:
            return HOLDS
        return REFUTED if self.high < low or self.low > high else INCONCLUSIVE

    def below(self, high: float) -> str:
        """Whether the number is lower than another."""
        return self.within(-np.inf, high)

    def trials_to(self, distance: float) -> int | None:
        """About how many trials would make the interval reach no farther than this, with the spread it has."""
        reach = (self.high - self.low) / 2
        if not np.isfinite(reach) or not distance > 0:
            return None
        return int(np.ceil(self.trials * (reach / distance) ** 2))

    def trials_to_decide(self, low: float, high: float) -> int | None:
        """About how many trials would say on which side of these bounds the mean lies, if it is where it seems."""
        return self.trials_to(min(abs(self.mean - low), abs(self.mean - high)))

    def text(self, digits: int = 3, sign: str = "") -> str:
        """mean [low, high]."""
        return f"{self.mean:{sign}.{digits}f} [{self.low:{sign}.{digits}f}, {self.high:{sign}.{digits}f}]"


def interval(values: np.ndarray, confidence: float = CONFIDENCE) -> Interval:
    """The interval of the mean of values, of which those that are not finite are left out."""
    from scipy.stats import t

    known = np.asarray(values, float)
    known = known[np.isfinite(known)]
    n = len(known)
    if n < 2:
        return Interval(float(known.mean()) if n else float("nan"), -np.inf, np.inf, n)
    reach = float(t.ppf(0.5 + confidence / 2, n - 1)) * known.std(ddof=1) / n**0.5
    return Interval(float(known.mean()), float(known.mean() - reach), float(known.mean() + reach), n)


def variance_ratio(first: np.ndarray, second: np.ndarray, confidence: float = CONFIDENCE) -> Interval:
    """The variance of `second` over that of `first`, paired by trial, and its interval.

    References: Pitman, "A note on normal correlation", Biometrika 1939; Morgan, "A test for the significance of the
    difference between the two variances in a sample from a normal bivariate population", Biometrika 1939.
    """
    from scipy.stats import t

    n = len(first)
    ratio = float(np.var(second) / np.var(first)) if n > 1 else float("nan")
    if n < 3:
        return Interval(ratio, 0.0, np.inf, n)
    shared = np.corrcoef(first, second)[0, 1] ** 2
    k = 1 + 2 * (1 - shared) * float(t.ppf(0.5 + confidence / 2, n - 2)) ** 2 / (n - 2)
    wide = k + (k**2 - 1) ** 0.5
    return Interval(ratio, ratio / wide, ratio * wide, n)


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """The exponent p of the power law y ~ x^p, by least squares of the logarithms."""
    known = (x > 0) & (y > 0) & np.isfinite(y)
    if known.sum() < 2:
        return float("nan")
    return float(np.polyfit(np.log(x[known]), np.log(y[known]), 1)[0])
