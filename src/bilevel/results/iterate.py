"""One point of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from bilevel._core.averages import mean
from bilevel.problem.task_names import TaskValues
from bilevel.results.tail import tail_mean
from bilevel.weightings.baselines import Baselines, WorstRegret


@dataclasses.dataclass(frozen=True, eq=False)
class Iterate:
    """One point of a run: x, every task's y, the weights, and the tasks' losses there."""

    x: Any
    y: TaskValues
    weights: np.ndarray
    losses: np.ndarray  # on all validation data, in the order of the tasks
    selection_losses: np.ndarray | None = dataclasses.field(default=None, kw_only=True)
    test_losses: np.ndarray | None
    metrics: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)  # as in `solve(metrics=...)`, by task

    @property
    def worst(self) -> float:
        """The largest validation loss."""
        return float(np.max(self.losses))

    @property
    def mean(self) -> float:
        """The mean validation loss."""
        return float(mean(self.losses))

    def tail(self, fraction: float) -> float:
        """The mean over the worst `fraction` of the validation losses."""
        return tail_mean(self.losses, fraction)

    @property
    def worst_task(self) -> str:
        """The name of the task with the largest validation loss."""
        return self.y.names[int(np.argmax(self.losses))]

    def worst_regrets(self, baselines: Baselines) -> dict[str, WorstRegret]:
        """The largest of what losses exceed the baselines by, and whose it is, on each kind of rows that there are."""
        losses = {"validation": self.losses, "selection": self.selection_losses, "test": self.test_losses}
        return {rows: baselines.worst_regret(own) for rows, own in losses.items() if own is not None}

    @property
    def selection_worst(self) -> float | None:
        """The largest selection loss."""
        return None if self.selection_losses is None else float(np.max(self.selection_losses))

    @property
    def selection_mean(self) -> float | None:
        """The mean selection loss."""
        return None if self.selection_losses is None else float(mean(self.selection_losses))

    @property
    def test_worst(self) -> float | None:
        """The largest test loss."""
        return None if self.test_losses is None else float(np.max(self.test_losses))

    @property
    def test_mean(self) -> float | None:
        """The mean test loss."""
        return None if self.test_losses is None else float(mean(self.test_losses))

    @property
    def test_worst_task(self) -> str | None:
        """The name of the task with the largest test loss."""
        return None if self.test_losses is None else self.y.names[int(np.argmax(self.test_losses))]
