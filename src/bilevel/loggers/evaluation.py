"""One evaluation of a run, as loggers get it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

MOST_TASKS = 50  # that are told one by one; of more, only the worst
WORST_TASKS = 10


class Evaluation(NamedTuple):
    """Losses on all the data of each task, and what the steps since the last evaluation used.

    Attributes:
        step: how many steps were taken.
        seconds: since the run began.
        names: of the tasks, in the order of the arrays.
        validation: the validation loss of each task.
        selection: the selection losses; None = there are no selection data.
        test: the test losses; None = there are no test data.
        weights: of the tasks.
        direction_norm: of x, root mean square; NaN = not known, as at the start.
        upper_rate: of x; NaN = not known.
        lower_rate: of each task's y; NaN = not known.
        weights_rate: of the weights; NaN = not known.
        steps_per_second: since the last evaluation, compiling not counted; NaN = no step was taken.
        metrics: what else was measured of each task, by name: "validation accuracy", "test accuracy".
        largest: where these are some of very many tasks, the largest validation loss among them and the heaviest ones.
        largest_task: the name of the task that has it.
    """

    step: int
    seconds: float
    names: tuple[str, ...]
    validation: np.ndarray
    test: np.ndarray | None
    weights: np.ndarray
    direction_norm: float
    upper_rate: float
    lower_rate: np.ndarray
    weights_rate: float
    steps_per_second: float
    metrics: Mapping[str, np.ndarray] = MappingProxyType({})
    selection: np.ndarray | None = None
    largest: float | None = None
    largest_task: str | None = None

    @property
    def worst(self) -> float:
        """The largest validation loss."""
        return float(np.max(self.validation)) if self.largest is None else self.largest

    @property
    def mean(self) -> float:
        """The mean validation loss."""
        return float(np.mean(self.validation))

    def told(self) -> list[int]:
        """The tasks that are told one by one, worst first: all, or of more than fifty the worst ten."""
        loss = np.where(np.isnan(self.validation), np.inf, self.validation)
        order = np.argsort(-loss, kind="stable")
        return [int(i) for i in (order if len(order) <= MOST_TASKS else order[:WORST_TASKS])]

    def summary(self) -> dict[str, float]:
        """The numbers of the whole, by name; rates that are not known are left out."""
        numbers = {"validation/worst": self.worst, "validation/mean": self.mean}
        for role, own in {"selection": self.selection, "test": self.test}.items():
            if own is not None:
                numbers |= {f"{role}/worst": float(np.max(own)), f"{role}/mean": float(np.mean(own))}
        for name, own in self.metrics.items():
            found = {"smallest": np.min(own), "mean": np.mean(own), "largest": np.max(own)}
            numbers |= {f"{name}/{what}": float(number) for what, number in found.items()}
        lower = np.asarray(self.lower_rate, float)
        lower = lower[np.isfinite(lower)]
        perhaps = {
            "rate/upper": self.upper_rate,
            "rate/lower smallest": float(np.min(lower)) if lower.size else math.nan,
            "rate/lower largest": float(np.max(lower)) if lower.size else math.nan,
            "rate/weights": self.weights_rate,
            "direction norm": self.direction_norm,
            "steps per second": self.steps_per_second,
        }
        return numbers | {name: number for name, number in perhaps.items() if not math.isnan(number)}

    def tasks(self) -> dict[str, dict[str, float]]:
        """For each task that is told, worst first: its losses on the rows that it has, its weight, and metrics."""
        columns: dict[str, Any] = {"validation": self.validation, "selection": self.selection, "test": self.test}
        columns |= {"weight": self.weights, **self.metrics}
        columns = {name: column for name, column in columns.items() if column is not None}
        return {self.names[i]: {name: float(column[i]) for name, column in columns.items()} for i in self.told()}

    def scalars(self, names: dict[str, str] | None = None) -> dict[str, float]:
        """All of it as one level of named numbers, tasks by other names where these are given."""
        numbers = {
            f"{kind}/task/{name if names is None else names[name]}": number
            for name, task in self.tasks().items()
            for kind, number in task.items()
        }
        return self.summary() | numbers
