"""Which point of a run is taken: that at which the mean of the tasks' losses on selection rows is lowest.

Also where the run is for the worst task. That has few selection rows, its loss there is mostly noise, and the largest
of many such losses is that of the task with the noisiest rows, whatever x is. When what is shared begins to be learnt
by heart is much the same for all tasks, and their mean tells it with the least noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass
class Best:
    """A callback of `bl.solve` that keeps the best point, and ends the run where none is better for long.

    >>> best, seen = Best(patience=1), {"x": 3.0, "weights": [1.0], "selection": np.array([0.2, 0.4])}
    >>> best(seen), best(seen | {"x": 4.0, "selection": np.array([0.3, 0.4])})
    (False, True)
    >>> best.x, round(best.lowest, 3)
    (3.0, 0.3)
    """

    patience: int | None  # evaluations
    x: Any = None
    weights: Any = None
    lowest: float = np.inf
    since: int = 0

    def __call__(self, seen: Mapping[str, Any]) -> bool:
        """Whether to stop."""
        value = float(np.mean(seen["selection"]))
        self.since += 1
        if self.x is None or value < self.lowest:
            self.x, self.weights = jax.device_get(seen["x"]), np.asarray(seen["weights"])
            self.lowest, self.since = value, 0
        return self.patience is not None and self.since >= self.patience
