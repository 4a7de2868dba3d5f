"""Means of numbers that may be as large as numbers can be, as the losses of a run that diverges are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def mean(numbers: Any, axis: int | None = None) -> Any:
    """`np.mean`, bit for bit, where the sum is a number; where it would not be, the mean all the same.

    >>> float(mean(np.float32([3e38, 3e38]))) > 2.9e38
    True
    """
    values = np.asarray(numbers)
    if values.size == 0 or not np.issubdtype(values.dtype, np.floating):
        return np.mean(values, axis)
    largest = np.max(np.abs(values), initial=0, where=np.isfinite(values))
    if largest <= np.finfo(values.dtype).max / values.size:
        return np.mean(values, axis)
    scale = 2.0 ** math.ceil(math.log2(values.size))  # a power of two: nothing is rounded
    return np.mean(values / values.dtype.type(scale), axis) * values.dtype.type(scale)
