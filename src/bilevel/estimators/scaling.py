"""Columns in units of their spread."""

from __future__ import annotations

import numpy as np

from bilevel.estimators.parts import PARTS
from bilevel.estimators.rows import CHUNK, Rows


def standard(X: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each column over training rows, and its standard deviation; 1 for a constant column."""
    trains = rows.part == PARTS.index("train")
    own = rows.take(trains) if trains.any() else rows
    total, columns = own.weight.sum(), X.shape[1]
    chunks = [slice(start, start + CHUNK) for start in range(0, len(own.place), CHUNK)]
    mean, square = np.zeros(columns), np.zeros(columns)
    for chunk in chunks:
        mean += own.weight[chunk] @ X[own.place[chunk]].astype(np.float64)
    mean /= total
    for chunk in chunks:
        square += own.weight[chunk] @ (X[own.place[chunk]] - mean) ** 2
    scale = np.sqrt(square / total)
    return mean, spread(scale, mean)


def spread(scale: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """The same, or 1 where it is nothing but rounding.

    >>> spread(np.array([2.0, 1e-17, 0.0]), np.array([5.0, 0.1, 0.0])).tolist()
    [2.0, 1.0, 1.0]
    """
    return np.where(scale > 10 * np.finfo(np.float64).eps * np.abs(mean), scale, 1)
