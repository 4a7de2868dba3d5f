"""How strong the penalty is to be, and how well each task does then.

In a run heads follow what is shared and are not at their ends, which is a regularisation of its own; the heads of the
model are, and need no less of a penalty. So heads are fitted to the end on training rows, with penalties that are the
learnt ones times a factor, and the factor is taken whose losses on rows held out, with the weights of the tasks, are
lowest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bilevel.estimators.heads import Head, TaskRows
from bilevel.estimators.learning import EVALUATED
from bilevel.estimators.parts import PARTS
from bilevel.estimators.rows import Rows

FACTORS = (1.0, 3.0, 10.0, 30.0)
CENTRED = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)  # from nearly one model a task to nearly one for all
TASKS = 64  # those with the largest weights, by which a factor is chosen


class Judged(NamedTuple):
    """The factor, and each task's loss on selection rows."""

    factor: float
    losses: np.ndarray


class Judge(NamedTuple):
    """Fits and judges heads of the tasks of some rows, which are numbered from 0."""

    X: np.ndarray
    rows: Rows
    fit: Callable[[TaskRows, float], Head]  # with a factor
    loss: Callable[[Head, TaskRows], float]
    train: tuple[str, ...] = ("train",)  # the rows that heads see
    held_out: tuple[str, ...] = ("validation", "selection")  # and those by which a factor is chosen

    def judged(self, weights: np.ndarray, factors: Sequence[float]) -> Judged:
        """The best of the factors, and what it gives."""
        asked = np.argsort(-weights, kind="stable")[:TASKS]
        totals = [self._total(asked, weights, factor) for factor in factors] if len(factors) > 1 else [0.0]
        factor = factors[int(np.argmin(totals))]
        return Judged(factor, np.array([self._loss(k, factor, ("selection",)) for k in range(len(weights))]))

    def _total(self, tasks: np.ndarray, weights: np.ndarray, factor: float) -> float:
        return sum(float(weights[k]) * self._loss(k, factor, self.held_out) for k in tasks)

    def _loss(self, task: int, factor: float, held_out: Sequence[str]) -> float:
        begin, end = np.searchsorted(self.rows.task, [task, task + 1])
        own = self.rows.take(np.arange(begin, end))
        head = self.fit(self._rows(own, self.train), factor)
        return self.loss(head, self._rows(own, held_out))

    def _rows(self, own: Rows, parts: Sequence[str]) -> TaskRows:
        numbers = [np.flatnonzero(own.part == PARTS.index(part))[:EVALUATED] for part in parts]
        return TaskRows.of(self.X, own.take(np.concatenate(numbers)))
