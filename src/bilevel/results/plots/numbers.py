"""The numbers that are drawn: medians, bands, and the limits of an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

BAND = (0.1, 0.9)  # the quantiles over runs between which the band lies


def over_steps(runs: Sequence[Any], values: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(steps, values): a row for every run, at all steps where one was evaluated; a run that ended keeps its last."""
    steps = np.unique(np.concatenate([run.history.step for run in runs]))
    rows = [np.interp(steps, run.history.step, np.asarray(own, float)) for run, own in zip(runs, values, strict=True)]
    return steps, np.stack(rows)


def spread(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Over the first axis: the median and the ends of the band, of what is finite."""
    known = np.where(np.isfinite(values), values, np.nan)
    gaps = np.isnan(known).any(axis=0)
    if len(known) == 1:
        return known[0], known[0], known[0]
    quantiles = (BAND[0], 0.5, BAND[1])
    low, middle, high = np.quantile(np.where(gaps, 0.0, known), quantiles, axis=0)
    for i in zip(*np.nonzero(gaps), strict=True):  # one by one, as numpy does it too, but only where it must
        own = known[:, *i]
        own = own[~np.isnan(own)]
        low[i], middle[i], high[i] = np.quantile(own, quantiles) if own.size else (np.nan,) * 3
    return middle, low, high


def padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of unequal length, stacked; NaN where there is nothing."""
    stacked = np.full((len(rows), max(map(len, rows))), np.nan)
    for row, values in zip(stacked, rows, strict=True):
        row[: len(values)] = values
    return stacked


def log_limits(values: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """The smallest and the largest loss; None unless they are positive and more than a factor of ten apart."""
    flat = np.concatenate([np.ravel(v) for v in values])
    flat = flat[np.isfinite(flat)]
    if flat.size == 0 or flat.min() <= 0 or flat.max() <= 10 * flat.min():
        return None
    return float(flat.min()), float(flat.max())
