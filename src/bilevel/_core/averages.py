"""The worst and the mean of losses, also of losses near the largest number, as in a run that diverges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def worst(losses: ArrayLike, largest: float | None = None) -> float:
    """The largest loss. Where the losses are those of some tasks only, `largest` is known from more of them.

    >>> worst([0.5, 2.0]), worst([0.5, 2.0], largest=3.0)
    (2.0, 3.0)
    """
    return float(np.max(losses)) if largest is None else largest


def mean(numbers: ArrayLike, axis: int | None = None) -> Any:
    """`np.mean`, bit for bit. If its sum would overflow, the mean is found on smaller numbers.

    >>> float(mean(np.float32([3e38, 3e38]))) > 2.9e38
    True
    """
    values = np.asarray(numbers)
    if values.size == 0 or not np.issubdtype(values.dtype, np.floating):
        return np.mean(values, axis)
    largest = np.max(np.abs(values), initial=0, where=np.isfinite(values))
    if largest <= np.finfo(values.dtype).max / values.size:
        return np.mean(values, axis)
    scale = 2.0 ** math.ceil(math.log2(values.size))  # a power of two, so that nothing is rounded
    return np.mean(values / values.dtype.type(scale), axis) * values.dtype.type(scale)
