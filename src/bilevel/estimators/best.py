"""Which point of a run is taken: that with the lowest of what the run minimises, on selection rows.

A run for the mean is judged by the mean, one for the worst task by the mean and the worst of the losses as its
weighting compares them: regrets, or losses that are shrunk to their mean as far as they are noise. The worst of many
plain losses is that of the task with the noisiest rows, and says little of where to stop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from bilevel.weightings.base import Weighting
from bilevel.weightings.cvar import CVaR
from bilevel.weightings.wrapper import Wrapper

Criterion = Callable[[np.ndarray], float]  # of the tasks' losses


def criterion(weighting: Weighting) -> Criterion:
    """Half of what a weighting minimises, the mean over the worst share of what it compares, and half the mean of all.

    Where to stop is much the same for all tasks, and the mean of all says it with less noise.
    """
    inside = weighting
    while isinstance(inside, Wrapper):
        inside = inside.weighting
    share = inside.fraction if isinstance(inside, CVaR) else 1.0 if not inside.moves else 0.0

    def found(losses: np.ndarray) -> float:
        seen = -np.sort(-np.asarray(weighting.compared(np.asarray(losses, np.float64))))
        size = float(np.clip(share * len(seen), 1, len(seen)))
        weights = np.clip(size - np.arange(len(seen)), 0, 1) / size
        return float(weights @ seen + np.mean(seen)) / 2

    return found


@dataclasses.dataclass
class Best:
    """A callback of `bl.solve` that keeps the best point, and ends the run where none is better for long."""

    judge: Criterion
    patience: int | None
    x: Any = None
    weights: Any = None
    lowest: float = np.inf
    since: int = 0

    def __call__(self, seen: Mapping[str, Any]) -> bool:
        """Whether to stop."""
        value = self.judge(seen["selection"])
        self.since += 1
        if self.x is None or value < self.lowest:
            self.x, self.weights = jax.device_get(seen["x"]), np.asarray(seen["weights"])
            self.lowest, self.since = value, 0
        return self.patience is not None and self.since >= self.patience
