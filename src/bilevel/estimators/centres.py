"""The centre of the heads: one head for the rows of all tasks, from which each task's own departs.

It starts as the fit of all training rows, with the penalty q that is best on validation rows, is learnt with the
network, and is in the end fitted to all rows, with the same q on how far it goes from what was learnt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bilevel.estimators.heads import Head, TaskRows
from bilevel.estimators.learning import EVALUATED
from bilevel.estimators.objectives import INTERCEPT
from bilevel.estimators.parts import PARTS
from bilevel.estimators.rows import Rows

if TYPE_CHECKING:
    from bilevel.estimators.fitting import Fitting

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
UNSCALED = 1e6  # q, where a head is not to be the centre on another scale
MOST = 20_000  # rows that a centre is fitted to: of more, some of each task


class Pooled(NamedTuple):
    """A centre, and what it is fitted with."""

    X: np.ndarray
    rows: Rows
    known: np.ndarray  # which columns each task has
    penalty: float  # q
    centre: np.ndarray | None

    @classmethod
    def of(cls, owner: Fitting, X: np.ndarray, rows: Rows, known: np.ndarray) -> Pooled:
        """As it starts."""
        train, validation = (rows.part == PARTS.index(part) for part in ("train", "validation"))
        found = [cls(X, rows, known, q, None).fitted(owner, train) for q in PENALTIES]
        return found[int(np.argmin([own.loss(owner, validation) for own in found]))]

    def fitted(self, owner: Fitting, chosen: np.ndarray) -> Pooled:
        """To some of the rows, towards what it is."""
        own = self._some(chosen)
        penalty = plain(owner.shared_.features, self.penalty)
        fitted = owner._pool(TaskRows.of(self.X, own), penalty, self.centre, self.known[own.task])
        return self._replace(centre=fitted)

    def loss(self, owner: Fitting, chosen: np.ndarray) -> float:
        """The mean over rows, each with the classes of all tasks."""
        assert self.centre is not None
        return owner._loss(owner._as_head(self.centre), TaskRows.of(self.X, self._some(chosen)))

    def _some(self, chosen: np.ndarray) -> Rows:
        numbers = np.flatnonzero(chosen)
        return self.rows.take(numbers[:: max(1, -(-len(numbers) // MOST))])


def plain(features: int, penalty: float) -> np.ndarray:
    """One strength for all features, a free intercept, and no scaling."""
    return np.append(np.full(features, penalty), [INTERCEPT, UNSCALED])


def alone(owner: Fitting, X: np.ndarray, rows: Rows, regret: bool) -> tuple[np.ndarray, np.ndarray]:
    """What each task reaches with a head of its own, and the standard error of what it is compared by.

    Both are of validation rows and heads that saw training rows, with what is shared as it starts. For `regret` a loss
    is compared with that of a head that knows of no other task, whose penalty is chosen on selection rows.
    """
    baseline, errors = [], []
    for task in range(int(rows.task[-1]) + 1):
        own = rows.take(np.arange(*np.searchsorted(rows.task, [task, task + 1])))
        parts = (np.flatnonzero(own.part == part)[:EVALUATED] for part in range(len(PARTS)))
        train, validation, selection = (TaskRows.of(X, own.take(part)) for part in parts)
        losses = owner._row_losses(owner._own_head(train), validation)
        if regret:
            heads: list[Head] = [owner._head(train, plain(owner.shared_.features, q), None) for q in PENALTIES]
            best = heads[int(np.argmin([owner._loss(head, selection) for head in heads]))]
            reached = owner._row_losses(best, validation)
            baseline.append(float(np.mean(validation.weight * reached)))
            losses = losses - reached
        else:
            baseline.append(0.0)
        errors.append(float(np.std(losses) / max(len(losses) - 1, 1) ** 0.5))
    return np.array(baseline, np.float32), np.array(errors, np.float32)
