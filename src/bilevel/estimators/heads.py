"""The heads of tasks on features that stay as they are: fitted to the end, on all rows of a task.

    y* = argmin_y  mean of w l(phi y, t) + penalty(y)

with the penalty of `objectives`: in closed form for squares, and by logistic regression for classes.
"""

from __future__ import annotations

import contextlib
import functools
from typing import NamedTuple

import numpy as np
import scipy.linalg
from threadpoolctl import ThreadpoolController

from bilevel.estimators import logistic
from bilevel.estimators.networks import Shared
from bilevel.estimators.rows import Rows

LARGE = 2**24  # features of a task from which on they are kept in single precision
LEAST = 1e-9  # a penalty, where what was learnt is lower: linear systems stay solvable


class Head(NamedTuple):
    """Outputs are features @ weights + intercept."""

    weights: np.ndarray  # (features, outputs)
    intercept: np.ndarray  # (outputs,)
    classes: np.ndarray  # the label of each output; none for regression

    def outputs(self, features: np.ndarray) -> np.ndarray:
        """Of rows of features; in double precision."""
        return features.astype(np.float64) @ self.weights + self.intercept

    def scaled(self, confidence: float) -> Head:
        """With outputs nearer to what says nothing: equal scores of all classes, or the intercept.

        The intercept of classes belongs to the weights, as features are not centred; without weights it is shares.
        """
        intercept = self.intercept * confidence if len(self.classes) and np.any(self.weights) else self.intercept
        return self._replace(weights=self.weights * confidence, intercept=intercept)

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Of its classes."""
        scores = self.outputs(features)
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return scores / scores.sum(axis=1, keepdims=True)


class TaskRows(NamedTuple):
    """The rows of one task."""

    X: np.ndarray
    place: np.ndarray  # where in X they are
    target: np.ndarray
    weight: np.ndarray  # with mean 1

    @classmethod
    def of(cls, X: np.ndarray, rows: Rows) -> TaskRows:
        """From rows of one task."""
        return cls(X, rows.place, rows.target, rows.weight / rows.weight.mean())


def least_squares(shared: Shared, rows: TaskRows, penalty: np.ndarray, centre: np.ndarray | None = None) -> Head:
    """By the normal equations, which are summed up chunk by chunk."""
    count, size = len(rows.place), shared.features + 1
    A, b = np.zeros((size, size)), np.zeros(size)
    with _threads(count * size):
        for place, features in shared.blocks(rows.X, rows.place):
            with_one = np.column_stack([features.astype(np.float64), np.ones(len(features))])
            weighted = with_one * rows.weight[place, None]
            A += weighted.T @ with_one
            b += weighted.T @ rows.target[place]
        c = np.zeros(size) if centre is None else centre[:, 0]
        P = count * logistic.matrix(np.maximum(penalty, LEAST), c)
        A, b = A + P, b + P @ c
        y = scipy.linalg.solve(A, b, assume_a="pos")
    return Head(y[:-1, None], y[-1:], np.empty(0))


def classes(shared: Shared, rows: TaskRows, penalty: np.ndarray, own: np.ndarray, centre: np.ndarray | None) -> Head:
    """By logistic regression, multinomial for three classes or more.

    Args:
        shared: what makes features.
        rows: whose targets are numbers of classes; those that the head is to have.
        penalty: of each feature, of the intercept and of the scale.
        own: the labels of the classes.
        centre: of the same classes, one column each; None = 0.
    """
    dtype = np.float64 if len(rows.place) * shared.features <= LARGE else np.float32
    features = shared.transform(rows.X, rows.place, dtype)
    centre = np.zeros((shared.features + 1, len(own))) if centre is None else centre
    with _threads(features.size):
        y = logistic.fit(features, rows.target, rows.weight, np.maximum(penalty, LEAST), centre)
    return Head(y[:-1], y[-1], own)


def pooled_classes(
    shared: Shared, rows: TaskRows, penalty: np.ndarray, centre: np.ndarray | None, known: np.ndarray
) -> np.ndarray:
    """One head for rows of all tasks; `known` says which classes each row may have."""
    features = shared.transform(
        rows.X, rows.place, np.float64 if len(rows.place) * shared.features <= LARGE else np.float32
    )
    centre = np.zeros((shared.features + 1, known.shape[1])) if centre is None else centre
    with _threads(features.size):
        whole = None if known.all() else known
        return logistic.fit(features, rows.target, rows.weight, np.maximum(penalty, LEAST), centre, whole)


@functools.cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # which looks through all libraries that are loaded


def _threads(numbers: int) -> contextlib.AbstractContextManager:
    """One thread for small products: several, where cores are busy, wait for each other a hundred times as long."""
    return _controller().limit(limits=1, user_api="blas") if numbers <= LARGE else contextlib.nullcontext()


def constant(shared: Shared, label: object, count: float, classes: np.ndarray, shares: np.ndarray) -> Head:
    """For a task whose rows have one label: the shares of all classes among its rows and one row more of all tasks'."""
    found = (count * (classes == label) + shares) / (count + 1)
    return Head(np.zeros((shared.features, len(classes))), np.log(found), classes)
