"""The numbers that tables, claims and figures take from finished runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bilevel._core.averages import mean
from bilevel._studies.records import Record
from bilevel._studies.statistics import slope

END = 0.1  # the fraction of a run, at its end, that its final numbers are means over: single evaluations are noisy
BURN_IN = 0.01  # the fraction of a run that is left out where exponents are fitted
FAR = 10.0  # times the first loss: a run that ends above diverged


def final(record: Record, column: str) -> float:
    """The mean over the end of the run."""
    last = record["step"] >= (1 - END) * record["step"][-1]
    return float(mean(record[column][last]))


def diverged(record: Record, steps: int) -> bool:
    """Whether a run planned for `steps` steps ended early, without a finite loss, or far above where it began.

    Far above is above ten times the first worst validation loss; for a negative loss, as far from it as that. A first
    loss of 0 gives no scale.
    """
    first, last = record["worst_validation"][0], final(record, "worst_validation")
    if record["step"][-1] < steps or not np.isfinite(last):
        return True
    return bool(first != 0 and last > first + (FAR - 1) * abs(first))


def has(record: Record, column: str) -> bool:
    """Whether a column is there, and not empty."""
    return column in record.columns and bool(np.isfinite(record[column]).any())


def chosen_by(record: Record) -> str:
    """The column that rates are tuned by: selection rows, which x never saw, or else validation rows."""
    return "worst_selection" if has(record, "worst_selection") else "worst_validation"


def score(record: Record | None, steps: int) -> float:
    """The final worst loss that choices go by of a run of `steps` steps; infinite for none and for one that diverged.

    So no tuner can prefer rates whose runs end early at a loss that is still low.
    """
    if record is None or diverged(record, steps):
        return float("inf")
    found = final(record, chosen_by(record))
    return found if np.isfinite(found) else float("inf")


def at_best(record: Record, column: str) -> float:
    """The value of a column at the evaluation with the lowest worst loss that choices go by, as in `result.best`."""
    by = record[chosen_by(record)]
    return float(record[column][np.argmin(np.where(np.isnan(by), np.inf, by))])


def last(record: Record, column: str) -> float:
    """The last value of the run."""
    return float(record[column][-1])


def noise(record: Record, column: str) -> float:
    """The standard deviation of the noise between evaluations, from second differences, which trends do not move."""
    after = record["step"] >= END * record["step"][-1]
    return float(np.sqrt(np.mean(np.diff(record[column][after], 2) ** 2) / 6))


def decay(record: Record, column: str) -> float:
    """The exponent p of column ~ step^p."""
    after = record["step"] >= max(1.0, BURN_IN * record["step"][-1])
    return slope(record["step"][after], record[column][after])


def paired(first: Mapping[int, Record], second: Mapping[int, Record]) -> list[int]:
    """The seeds that both have finished."""
    return sorted(set(first) & set(second))
