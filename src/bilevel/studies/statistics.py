"""Numbers of finished runs, and intervals of them over trials: for tables, claims and figures."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bilevel._core.averages import mean
from bilevel.studies.records import Record

CONFIDENCE = 0.95
END = 0.1  # final numbers are means over this last part of a run: single evaluations are noisy
BURN_IN = 0.01  # fits of exponents leave out this first part of a run
FAR = 10.0  # a run that ends above this many times its first loss diverged
HOLDS, REFUTED, INCONCLUSIVE = "holds", "does not hold", "inconclusive"


class Interval(NamedTuple):
    """A mean over trials and where, with some confidence, it lies (Student's t)."""

    mean: float
    low: float
    high: float
    trials: int

    def within(self, low: float, high: float) -> str:
        """Whether the mean lies between two numbers: the whole interval does, none of it, or neither."""
        if not np.isfinite([self.low, self.high]).all():
            return INCONCLUSIVE
        if low <= self.low and self.high <= high:
            return HOLDS
        return REFUTED if self.high < low or self.low > high else INCONCLUSIVE

    def trials_to(self, distance: float) -> int | None:
        """About how many trials of this spread would shrink the interval to this distance from its mean."""
        reach = (self.high - self.low) / 2
        if not np.isfinite(reach) or not distance > 0:
            return None
        return int(np.ceil(self.trials * (reach / distance) ** 2))

    def text(self, digits: int = 3, sign: str = "") -> str:
        """mean [low, high]."""
        return f"{self.mean:{sign}.{digits}f} [{self.low:{sign}.{digits}f}, {self.high:{sign}.{digits}f}]"


def interval(values: np.ndarray, confidence: float = CONFIDENCE) -> Interval:
    """The interval of the mean of the finite values."""
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


def final(record: Record, column: str) -> float:
    """The mean of a column over the end of the run."""
    last = record["step"] >= (1 - END) * record["step"][-1]
    return float(mean(record[column][last]))


def diverged(record: Record, steps: int = 0) -> bool:
    """Whether a run ended before it had made `steps` steps, without a finite loss, or far above its first loss.

    Far above means above ten times the first worst validation loss; for a negative loss, nine times its size above it.
    A first loss of 0 gives no scale.
    """
    first, last = record["worst_validation"][0], final(record, "worst_validation")
    if record["step"][-1] < steps or not np.isfinite(last):
        return True
    return bool(first != 0 and last > first + (FAR - 1) * abs(first))


def has(record: Record, column: str) -> bool:
    """Whether a column is there, and not empty."""
    return column in record.columns and bool(np.isfinite(record[column]).any())


def chosen_by(record: Record) -> str:
    """The column that tunes rates: of selection rows, which x never saw, or else of validation rows."""
    return "worst_selection" if has(record, "worst_selection") else "worst_validation"


def score(record: Record | None, steps: int) -> float:
    """The final worst loss of a run of `steps` steps, which tuning minimises; infinite if missing or diverged.

    Otherwise tuning would prefer rates whose runs end early at a low loss.
    """
    if record is None or diverged(record, steps):
        return float("inf")
    found = final(record, chosen_by(record))
    return found if np.isfinite(found) else float("inf")


def at_best(record: Record, column: str) -> float:
    """A column at the evaluation with the lowest worst loss, as in `result.best`."""
    by = record[chosen_by(record)]
    return float(record[column][np.argmin(np.where(np.isnan(by), np.inf, by))])


def last(record: Record, column: str) -> float:
    """The last value of the run."""
    return float(record[column][-1])


def noise(record: Record, column: str) -> float:
    """The standard deviation of the noise between evaluations, from second differences, which ignore trends."""
    after = record["step"] >= END * record["step"][-1]
    return float(np.sqrt(np.mean(np.diff(record[column][after], 2) ** 2) / 6))


def decay(record: Record, column: str) -> float:
    """The exponent p of column ~ step^p."""
    after = record["step"] >= max(1.0, BURN_IN * record["step"][-1])
    return slope(record["step"][after], record[column][after])
