"""The two kinds of targets: classes, where each task has a head for the classes among its own rows, and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from bilevel._core import values
from bilevel._core.documents import Fields
from bilevel.estimators import heads
from bilevel.estimators.estimator import FLOATS, Robust
from bilevel.estimators.files import labels_restored, labels_stored
from bilevel.estimators.fitting import LearningTarget
from bilevel.estimators.heads import Head, TaskRows
from bilevel.estimators.objectives import cross_entropy, squared_error
from bilevel.estimators.rows import WeightedRows, spread

SMALLEST = 1e-7  # the probability of a class that a head does not have


class Classifier(ClassifierMixin, Robust):
    """Cross-entropy over the classes of each task."""

    _loss_of_rows = staticmethod(cross_entropy)
    _stratify = True
    _least = 0.5

    def _encode(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        check_classification_targets(y)
        self.classes_ = np.unique(y[weight > 0])
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__}.fit(y=...) has only one class, {self.classes_.tolist()[0]!r}: it needs two or "
                "more."
            )
        return np.searchsorted(self.classes_, np.where(np.isin(y, self.classes_), y, self.classes_[0]))

    def _encode_more(self, owner: str, y: np.ndarray) -> np.ndarray:
        check_classification_targets(y)
        if y.dtype.kind != self.classes_.dtype.kind:
            raise TypeError(
                f"{owner}(y=...) has labels of type {y.dtype.name}, and those so far are of type "
                f"{self.classes_.dtype.name}: it needs the same."
            )
        new = np.setdiff1d(y, self.classes_)
        self.class_shares_ = np.append(self.class_shares_, np.zeros(len(new)))
        order = np.argsort(np.concatenate([self.classes_, new]), kind="stable")
        self.classes_, self.class_shares_ = np.concatenate([self.classes_, new])[order], self.class_shares_[order]
        if self.centre_ is not None:  # which is zero for a new class
            self.centre_ = np.pad(self.centre_, ((0, 0), (0, len(new))))[:, order]
        return np.searchsorted(self.classes_, y)

    def _prepare(self, rows: WeightedRows, count: int) -> LearningTarget:
        known = np.zeros((count, len(self.classes_)), bool)
        known[rows.task, rows.target] = True
        shares = np.bincount(rows.target, rows.weight, minlength=len(self.classes_))
        self.class_shares_ = shares / shares.sum()
        aligned = bool(known.sum() >= 2 * known.shape[1])  # on average two tasks or more have a class
        self.aligned_ = aligned
        if not aligned:
            place = (np.cumsum(known, axis=1) - 1).astype(np.int32)
            several = known.sum(axis=1)
            columns = np.arange(int(several.max()))[None] < several[:, None]
            return LearningTarget(place[rows.task, rows.target], columns, several > 1, aligned)
        return LearningTarget(rows.target.astype(np.int32), known, known.sum(axis=1) > 1, aligned)

    def _head(
        self, rows: TaskRows, penalty: np.ndarray, centre: np.ndarray | None, known: np.ndarray | None = None
    ) -> Head:
        if known is not None:
            some = None if known.all() else known
            return heads.classes(self.shared_, rows, penalty, self.classes_, centre, some)
        own = np.unique(rows.target)
        if centre is None and len(own) == 1:
            label = self.classes_[own[0]]
            return heads.constant(self.shared_, label, float(len(rows.place)), self.classes_, self.class_shares_)
        if centre is not None:
            centred = np.flatnonzero(np.any(centre != 0, axis=0))
            if len(own) == 1 or len(rows.place) < self.smallest:  # too few rows to rule a class out
                own = np.union1d(own, centred)
            centre = centre[:, own]
        rows = rows._replace(target=np.searchsorted(own, rows.target))
        return heads.classes(self.shared_, rows, penalty, self.classes_[own], centre)

    def _all_classes(self) -> np.ndarray:
        return self.classes_

    def _losses(self, head: Head, features: np.ndarray, target: np.ndarray) -> np.ndarray:
        right = head.classes[None] == self.classes_[target][:, None]
        found = np.sum(head.probabilities(features) * right, axis=1)
        return -np.log(np.maximum(found, SMALLEST))

    def _facts(self) -> dict[str, Any]:
        return {
            "classes": labels_stored("classes_", self.classes_),
            "class_shares": self.class_shares_.tolist(),
            "heads": [np.searchsorted(self.classes_, head.classes).tolist() for head in self.heads_.values()],
        }

    def _restore_facts(self, fields: Fields, count: int) -> list[np.ndarray]:
        self.classes_ = labels_restored(fields, "classes")
        size = len(self.classes_)
        shares = fields.take("class_shares", lambda own: _are_shares(own, size), f"{size} numbers from 0 to 1")
        self.class_shares_ = np.array(shares, float)
        numbers = fields.take(
            "heads",
            lambda own: isinstance(own, list) and len(own) == count and all(_are_classes(c, size) for c in own),
            f"the numbers of the classes of each of {count} tasks, in their order",
        )
        return [self.classes_[own] for own in numbers]

    def predict_proba(self, X: Any, *, task: Any = None) -> np.ndarray:
        """The probability of each of `classes_`; 0 for a class that the row's task does not have.

        `task` is the task of each row; None = the only task.
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=FLOATS, reset=False)

        def call(head: Head, features: np.ndarray) -> np.ndarray:
            found = np.zeros((len(features), len(self.classes_)))
            found[:, np.searchsorted(self.classes_, head.classes)] = head.probabilities(features)
            return found

        return self._by_head(X, task, np.empty((len(X), len(self.classes_))), call)

    def predict(self, X: Any, *, task: Any = None) -> np.ndarray:
        """The most probable class of each row among those of its task; `task` as in `predict_proba`."""
        found = self.predict_proba(X, task=task)  # first, as it says so where nothing is fitted
        return self.classes_[np.argmax(found, axis=1)]

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, task: Any = None) -> float:
        """The accuracy over the rows of all tasks together."""
        return float(accuracy_score(y, self.predict(X, task=task), sample_weight=sample_weight))


def _are_shares(own: Any, size: int) -> bool:
    return isinstance(own, list) and len(own) == size and all(values.is_number(s) and 0 <= s <= 1 for s in own)


def _are_classes(own: Any, size: int) -> bool:
    """Whether it is a list of two or more different numbers below `size`, sorted."""
    whole = isinstance(own, list) and all(type(number) is int and 0 <= number < size for number in own)
    return whole and len(own) > 1 and own == sorted(set(own))


class Regressor(RegressorMixin, Robust):
    """Squared error, in units of the variance of all targets, so that `task_losses_` is one minus a pooled R2."""

    _loss_of_rows = staticmethod(squared_error)
    _checks = {"y_numeric": True}  # noqa: RUF012

    def _encode(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return y.astype(np.float64)

    def _encode_more(self, owner: str, y: np.ndarray) -> np.ndarray:
        return y.astype(np.float64)

    def _prepare(self, rows: WeightedRows, count: int) -> LearningTarget:
        mean = np.average(rows.target, weights=rows.weight)
        scale = np.sqrt(np.average((rows.target - mean) ** 2, weights=rows.weight))
        self.target_centre_ = float(mean)
        self.target_scale_ = float(spread(scale, mean))
        able = np.ones(count, bool)
        return LearningTarget(self._standard(rows.target), able[:, None], able, aligned=True)

    def _standard(self, target: np.ndarray) -> np.ndarray:
        return (target - self.target_centre_) / self.target_scale_

    def _head(
        self, rows: TaskRows, penalty: np.ndarray, centre: np.ndarray | None, known: np.ndarray | None = None
    ) -> Head:
        rows = rows._replace(target=self._standard(rows.target))
        return heads.least_squares(self.shared_, rows, penalty, centre)

    def _losses(self, head: Head, features: np.ndarray, target: np.ndarray) -> np.ndarray:
        return (head.outputs(features)[:, 0] - self._standard(target)) ** 2

    def _facts(self) -> dict[str, Any]:
        return {"target_centre": self.target_centre_, "target_scale": self.target_scale_}

    def _restore_facts(self, fields: Fields, count: int) -> list[np.ndarray]:
        self.target_centre_, self.target_scale_ = fields.number("target_centre"), fields.number("target_scale")
        return [np.empty(0)] * count

    def predict(self, X: Any, *, task: Any = None) -> np.ndarray:
        """The value of each row; `task` is the task of each row, None = the only task."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=FLOATS, reset=False)
        found = self._by_head(X, task, np.empty(len(X)), lambda head, features: head.outputs(features)[:, 0])
        return self.target_centre_ + self.target_scale_ * found

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, task: Any = None) -> float:
        """R2 over the rows of all tasks together."""
        return float(r2_score(y, self.predict(X, task=task), sample_weight=sample_weight))
