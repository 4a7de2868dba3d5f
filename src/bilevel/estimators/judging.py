"""How strong the penalty is to be, how far outputs are to be trusted, and how well each task does then.

In a run heads follow what is shared and are not at their ends, which is a regularisation of its own; the heads of the
model are, and need no less of a penalty. So heads are fitted to the end on training rows, with penalties that are the
learnt ones times a factor, their outputs are taken times a number up to 1, the confidence, and the pair is taken whose
losses on rows held out are lowest. A network that was learnt from few rows makes heads overconfident, and most so those
of the tasks with the noisiest targets, which are the worst tasks: one number mends much of that.

What is lowest, where the worst task counts: m + r (w - m), with m the mean over tasks and w that over the worst third.
The loss of the worst task alone is mostly noise: it has few such rows, and is the largest of many. For numbers r is how
far the differences between tasks are more than noise,

    r = max(0, v - e) / v

with v the variance of the tasks' losses and e the mean square of their standard errors. For classes it is the mean of
that and 1: where labels of some tasks are noisy, few rows do not show it, and too much confidence costs these most.
Both were chosen on the problems for development of `benchmarks/unseen`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bilevel.estimators.heads import Head, TaskRows
from bilevel.estimators.learning import EVALUATED
from bilevel.estimators.parts import PARTS
from bilevel.estimators.rows import Rows

FACTORS = (1.0, 3.0, 10.0, 30.0)
CENTRED = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)  # from nearly one model a task to nearly one for all
CONFIDENCES = (1.0, 0.7, 0.5, 0.3, 0.15)
TASKS = 64  # those with the largest weights, by which both are chosen
WORST = 1 / 3  # of the tasks: their mean stands for the worst


class Judged(NamedTuple):
    """The factor, the confidence, and each task's loss on selection rows."""

    factor: float
    confidence: float
    losses: np.ndarray


class Judge(NamedTuple):
    """Fits and judges heads of the tasks of some rows, which are numbered from 0."""

    X: np.ndarray
    rows: Rows
    fit: Callable[[TaskRows, float], Head]  # with a factor
    features: Callable[[TaskRows], np.ndarray]
    row_losses: Callable[[Head, np.ndarray, np.ndarray], np.ndarray]  # of features and targets
    train: tuple[str, ...] = ("train",)  # the rows that heads see
    held_out: tuple[str, ...] = ("validation", "selection")  # and those by which factor and confidence are chosen
    least: float = 0.0  # r, where all differences between tasks may be noise

    def judged(self, weights: np.ndarray, factors: Sequence[float], share: float, baseline: np.ndarray) -> Judged:
        """The best of the pairs, and what it gives.

        Args:
            weights: of the tasks.
            factors: those to try.
            share: of the tasks that count, the worst ones; 1 = all.
            baseline: what the loss of each task is compared with.
        """
        asked = np.argsort(-weights, kind="stable")[:TASKS]
        pairs = list(itertools.product(factors, CONFIDENCES))
        found = np.array([self._losses(k, factors, CONFIDENCES, self.held_out) for k in asked])
        means, errors = found[..., 0] - baseline[asked, None], found[..., 1]
        factor, confidence = pairs[int(np.argmin(criterion(means, errors, share, self.least)))]
        losses = [self._losses(k, [factor], [confidence], ("selection",))[0][0] for k in range(len(weights))]
        return Judged(factor, confidence, np.array(losses))

    def _losses(
        self, task: int, factors: Sequence[float], confidences: Sequence[float], held_out: Sequence[str]
    ) -> list[tuple[float, float]]:
        """The loss of a task and its standard error, for each factor and confidence."""
        begin, end = np.searchsorted(self.rows.task, [task, task + 1])
        own = self.rows.take(np.arange(begin, end))
        train, held = self._rows(own, self.train), self._rows(own, held_out)
        features = self.features(held)
        heads = [self.fit(train, factor) for factor in factors]
        pairs = ((head, confidence) for head in heads for confidence in confidences)
        found = (held.weight * self.row_losses(head.scaled(c), features, held.target) for head, c in pairs)
        return [(float(np.mean(rows)), float(np.std(rows) / max(len(rows) - 1, 1) ** 0.5)) for rows in found]

    def _rows(self, own: Rows, parts: Sequence[str]) -> TaskRows:
        numbers = [np.flatnonzero(own.part == PARTS.index(part))[:EVALUATED] for part in parts]
        return TaskRows.of(self.X, own.take(np.concatenate(numbers)))


def criterion(losses: np.ndarray, errors: np.ndarray, share: float, least: float) -> np.ndarray:
    """m + r (w - m) of each column of (tasks, candidates), with v and e as they are where m is lowest.

    >>> losses = np.array([[0.0, 1.0], [0.0, 1.0], [9.0, 4.0]])
    >>> criterion(losses, np.zeros((3, 2)), share=0, least=0).tolist()
    [9.0, 4.0]
    >>> criterion(losses, np.full((3, 2), 9.0), share=0, least=0).tolist()
    [3.0, 2.0]
    >>> criterion(losses, np.full((3, 2), 9.0), share=0, least=0.5).tolist()
    [6.0, 3.0]
    """
    mean = losses.mean(axis=0)
    count = int(np.ceil(max(share, WORST) * len(losses)))
    if count == len(losses):
        return mean
    usual = int(np.argmin(mean))
    spread = losses[:, usual].var(ddof=1)
    known = max(0.0, spread - np.mean(errors[:, usual] ** 2)) / spread if spread > 0 else 0.0
    worst = np.sort(losses, axis=0)[-count:].mean(axis=0)
    return mean + (least + (1 - least) * known) * (worst - mean)
