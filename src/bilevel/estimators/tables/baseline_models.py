"""Baseline models: one linear model for all tasks, with the task as a column, and one linear model for each task.

This is what people do today. Both are scikit-learn's. The penalty is chosen among `PENALTIES` on a quarter of the
training rows, and the model is then fitted to all of them:

    min over w of  mean loss of (w, b) + p |w|^2

with the cross-entropy or the squared error. Inputs are standardised, and so are the targets of regression.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from threadpoolctl import threadpool_limits

from bilevel.estimators.tables.columns import CLASSIFICATION

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
UNTUNED = 1e-2  # the penalty if there are too few rows to choose one
FEWEST = 8  # rows that are needed to choose a penalty
TUNING = 50_000  # rows that choose it at most
DENSE = 2**25  # up to this many numbers the columns of the tasks are dense
SMALLEST = 1e-7  # losses use at least this probability


class BaselineRows(NamedTuple):
    """Rows with their targets: the numbers of classes, or standardised numbers."""

    X: np.ndarray
    target: np.ndarray
    task: np.ndarray  # the number of its task
    classes: int  # of all tasks; 0 for regression

    def take(self, rows: np.ndarray) -> BaselineRows:
        """Selects rows by their numbers."""
        return BaselineRows(self.X[rows], self.target[rows], self.task[rows], self.classes)


class StandardTarget:
    """Targets as numbers: those of classes, or values that are standardised by training rows."""

    def __init__(self, kind: str, target: np.ndarray, train: np.ndarray):
        self.labels, self.centre, self.scale = np.empty(0), 0.0, 1.0
        if kind == CLASSIFICATION:
            self.labels, self.numbers = np.unique(target, return_inverse=True)
            return
        own = target[train]
        self.centre, self.scale = float(own.mean()), float(own.std()) or 1.0
        self.numbers = self.standard(target)

    def standard(self, outputs: np.ndarray) -> np.ndarray:
        """Standardises values; returns probabilities as they are."""
        return (outputs - self.centre) / self.scale if outputs.ndim == 1 else outputs

    def rows(self, X: np.ndarray, chosen: np.ndarray, task: np.ndarray) -> BaselineRows:
        """The rows that are chosen; inputs and tasks are of these rows only."""
        return BaselineRows(X, self.numbers[chosen], task, len(self.labels))


def pooled(train: BaselineRows, test: BaselineRows, tasks: int, seed: int) -> np.ndarray:
    """Predictions of one model for all tasks for the test rows: probabilities of all classes, or values."""
    model = _tuned(_with_task(train, tasks), train.target, train.classes, seed)
    return _outputs(model, _with_task(test, tasks), train.classes)


def one_each(train: BaselineRows, test: BaselineRows, tasks: int, seed: int) -> np.ndarray:
    """Likewise the predictions of one model for each task."""
    found = np.empty((len(test.task), train.classes) if train.classes else len(test.task))
    shares = np.bincount(train.target, minlength=train.classes) / len(train.target) if train.classes else np.empty(0)
    of_train, of_test = (by_task(rows.task, tasks) for rows in (train, test))
    with threadpool_limits(1, "blas"):  # in small products, several threads would wait for each other
        for number in range(tasks):
            own, asked = train.take(of_train[number]), of_test[number]
            if not len(asked):
                continue
            if train.classes and len(np.unique(own.target)) < 2:
                count = np.bincount(own.target, minlength=train.classes)
                found[asked] = (count + shares) / (len(own.target) + 1)
                continue
            model = _tuned(own.X, own.target, train.classes, seed)
            found[asked] = _outputs(model, test.X[asked], train.classes)
    return found


def by_task(task: np.ndarray, tasks: int) -> list[np.ndarray]:
    """The numbers of the rows of each task."""
    order = np.argsort(task, kind="stable")
    return np.split(order, np.cumsum(np.bincount(task, minlength=tasks))[:-1])


def _with_task(rows: BaselineRows, tasks: int) -> Any:
    """The inputs and a column for each task."""
    count = len(rows.task)
    if count * tasks > DENSE:
        ones = (np.ones(count, np.float32), (np.arange(count), rows.task))
        return scipy.sparse.hstack(
            [scipy.sparse.csr_matrix(rows.X), scipy.sparse.csr_matrix(ones, (count, tasks))], "csr"
        )
    columns = np.zeros((count, rows.X.shape[1] + tasks), np.float32)
    columns[:, : rows.X.shape[1]] = rows.X
    columns[np.arange(count), rows.X.shape[1] + rows.task] = 1
    return columns


def _tuned(X: Any, target: np.ndarray, classes: int, seed: int) -> Any:
    """A model with the penalty that does best on a quarter of the rows, stratified by class or by size of target."""
    order = shuffled_by_target(target, seed)
    order = order[:: max(1, -(-len(order) // TUNING))]
    judging = order[1::4]
    fitting = np.delete(order, np.s_[1::4])
    if len(order) < FEWEST or (classes and len(np.unique(target[fitting])) < 2):
        return _fitted(X, target, classes, UNTUNED)
    found = []
    for penalty in PENALTIES:
        model = _fitted(X[fitting], target[fitting], classes, penalty)
        found.append(np.mean(losses(_outputs(model, X[judging], classes), target[judging])))
    return _fitted(X, target, classes, PENALTIES[int(np.argmin(found))])


def shuffled_by_target(target: np.ndarray, seed: int) -> np.ndarray:
    """The numbers of all rows by class or by size of target; rows with equal targets are in random order."""
    order = np.random.default_rng(seed).permutation(len(target))
    return order[np.argsort(target[order], kind="stable")]


def _fitted(X: Any, target: np.ndarray, classes: int, penalty: float) -> Any:
    count = len(target)
    if not classes:
        return Ridge(alpha=penalty * count).fit(X, target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=1 / (2 * penalty * count), max_iter=300).fit(X, target)


def _outputs(model: Any, X: Any, classes: int) -> np.ndarray:
    if not classes:
        return np.asarray(model.predict(X), np.float64)
    found = np.zeros((X.shape[0], classes))
    found[:, model.classes_] = model.predict_proba(X)
    return found


def losses(outputs: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The loss of each row: the cross-entropy of probabilities, or the squared error."""
    if outputs.ndim == 1:
        return (outputs - target) ** 2
    return -np.log(np.maximum(outputs[np.arange(len(target)), target], SMALLEST))
