"""Chooses the strength of the penalty and the confidence of outputs, and measures the loss of each task with them.

During a run heads follow the network and do not converge, which regularises them. The heads of the final model do
converge, and need at least as strong a penalty. So heads are fitted to convergence on training rows, with the learnt
penalties times a factor, and their outputs are multiplied by the confidence, a number up to 1. The pair of factor and
confidence with the lowest losses on held-out rows is taken. Why confidence: a network learnt from few rows makes heads
overconfident, most of all in the tasks with the noisiest targets, which are the worst tasks, and one number mends much
of that.

If the worst task counts, "lowest" means the lowest m + r (w - m), where m is the mean over tasks and w the mean over
the worst third. The loss of the worst task alone is mostly noise: it comes from few rows, and is the largest of many.
For regression r says how far the differences between tasks exceed noise,

    r = max(0, v - e) / v

with v the variance of the tasks' losses and e the mean square of their standard errors. For classes r is the mean of
this and 1: few rows do not show that the labels of some tasks are noisy, and those tasks lose most by overconfidence.
Both rules were chosen on the development problems of `benchmarks/unseen`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bilevel.estimators.heads import Head, TaskRows
from bilevel.estimators.learning import EVALUATED
from bilevel.estimators.rows import PARTS, WeightedRows

FACTORS = (1.0, 3.0, 10.0, 30.0)
CENTRED = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)  # from almost one model a task to almost one for all
CONFIDENCES = (1.0, 0.7, 0.5, 0.3, 0.15)
TASKS = 64  # both are chosen by the tasks with the largest weights, at most this many
WORST = 1 / 3  # the mean over this share of the tasks stands for the worst


class Judged(NamedTuple):
    """The factor, the confidence, and each task's loss on selection rows."""

    factor: float
    confidence: float
    losses: np.ndarray


class Judge(NamedTuple):
    """Fits and judges the heads of the tasks of some rows, which are numbered from 0."""

    X: np.ndarray
    rows: WeightedRows
    fit: Callable[[TaskRows, float], Head]  # with a factor
    features: Callable[[TaskRows], np.ndarray]
    row_losses: Callable[[Head, np.ndarray, np.ndarray], np.ndarray]  # of features and targets
    train: tuple[str, ...] = ("train",)  # the rows that heads see
    held_out: tuple[str, ...] = ("validation", "selection")  # the rows that choose factor and confidence
    least: float = 0.0  # r, if all differences between tasks may be noise

    def judged(self, weights: np.ndarray, factors: Sequence[float], share: float, baseline: np.ndarray) -> Judged:
        """The best pair, and each task's loss with it.

        Args:
            weights: of the tasks.
            factors: the candidates.
            share: the share of the tasks that count, the worst ones; 1 = all.
            baseline: the loss that each task is compared with.
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

    def _rows(self, own: WeightedRows, parts: Sequence[str]) -> TaskRows:
        numbers = [np.flatnonzero(own.part == PARTS.index(part))[:EVALUATED] for part in parts]
        return TaskRows.of(self.X, own.take(np.concatenate(numbers)))


def criterion(losses: np.ndarray, errors: np.ndarray, share: float, least: float) -> np.ndarray:
    """m + r (w - m) for each column of (tasks, candidates), with v and e taken at the candidate with the lowest m.

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
