"""The heads of tasks on features that stay as they are: fitted to the end, on all rows of a task.

    y* = argmin_y  mean of w l(phi y, t) + sum_j p_j |y_j|^2

in closed form for squares, and by scikit-learn's logistic regression for classes.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from typing import NamedTuple

import numpy as np
import scipy.linalg
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import ThreadpoolController

from bilevel.estimators.networks import Shared
from bilevel.estimators.objectives import INTERCEPT
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


def least_squares(shared: Shared, rows: TaskRows, penalty: np.ndarray) -> Head:
    """By the normal equations, which are summed up chunk by chunk."""
    count, size = len(rows.place), shared.features + 1
    A, b = np.zeros((size, size)), np.zeros(size)
    with _threads(count * size):
        for place, features in shared.blocks(rows.X, rows.place):
            with_one = np.column_stack([features.astype(np.float64), np.ones(len(features))])
            weighted = with_one * rows.weight[place, None]
            A += weighted.T @ with_one
            b += weighted.T @ rows.target[place]
        A[np.diag_indices(size)] += count * np.append(np.maximum(penalty, LEAST), INTERCEPT)
        y = scipy.linalg.solve(A, b, assume_a="pos")
    return Head(y[:-1, None], y[-1:], np.empty(0))


def logistic(shared: Shared, rows: TaskRows, penalty: np.ndarray) -> Head:
    """Multinomial for three classes or more; targets are labels.

    With z_j = y_j sqrt(p_j / q), q the geometric mean of the p_j, one number penalises all.
    """
    penalty = np.maximum(penalty, LEAST)
    q = float(np.exp(np.mean(np.log(penalty))))
    count, scale = len(rows.place), np.sqrt(q / penalty)
    dtype = np.float64 if count * shared.features <= LARGE else np.float32
    features = shared.transform(rows.X, rows.place, dtype)
    features *= np.asarray(scale, dtype)
    classes = np.unique(rows.target)
    # Two columns with the penalty p each are one, their difference, with p / 2.
    C = 1 / (2 * q * count) if len(classes) > 2 else 1 / (q * count)
    model = LogisticRegression(C=C, tol=1e-7, max_iter=1000)
    with _threads(features.size), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # rounding may end it a little before the tolerance
        model.fit(features, rows.target, sample_weight=rows.weight)
    weights, intercept = np.asarray(model.coef_.T, np.float64), np.asarray(model.intercept_, np.float64)
    if len(classes) == 2:
        weights, intercept = np.column_stack([-weights / 2, weights / 2]), np.append(-intercept / 2, intercept / 2)
    return Head(weights * scale[:, None], intercept, classes)


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
