"""Numbers as targets."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted, validate_data

from bilevel._core.array_files import Arrays
from bilevel._core.documents import Fields
from bilevel.estimators import heads
from bilevel.estimators.base import FLOATS, Robust
from bilevel.estimators.fitting import Target
from bilevel.estimators.heads import Head, TaskRows
from bilevel.estimators.learning import Learner, Learnt, Settings
from bilevel.estimators.objectives import squared_error
from bilevel.estimators.rows import Rows
from bilevel.estimators.scaling import spread


class Regressor(RegressorMixin, Robust):
    """Squared error, in units of the variance of all targets, so that `task_losses_` is one minus a pooled R2."""

    def _checks(self) -> dict[str, Any]:
        return {"y_numeric": True}

    def _encode(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return y.astype(np.float64)

    def _encode_more(self, owner: str, y: np.ndarray) -> np.ndarray:
        return y.astype(np.float64)

    def _prepare(self, rows: Rows, count: int) -> Target:
        mean = np.average(rows.target, weights=rows.weight)
        scale = np.sqrt(np.average((rows.target - mean) ** 2, weights=rows.weight))
        self.target_centre_ = float(mean)
        self.target_scale_ = float(spread(scale, mean))
        return Target(self._standard(rows.target), np.ones((count, 1), bool), np.ones(count, bool), aligned=True)

    def _standard(self, target: np.ndarray) -> np.ndarray:
        return (target - self.target_centre_) / self.target_scale_

    def _learn(self, learner: Learner, settings: Settings) -> Learnt:
        return learner.bilevel(squared_error, settings)

    def _head(self, rows: TaskRows, penalty: np.ndarray, centre: np.ndarray | None) -> Head:
        rows = rows._replace(target=self._standard(rows.target))
        return heads.least_squares(self.shared_, rows, penalty, centre)

    def _pool(self, rows: TaskRows, penalty: np.ndarray, centre: np.ndarray | None, known: np.ndarray) -> np.ndarray:
        head = self._head(rows, penalty, centre)
        return np.vstack([head.weights, head.intercept])

    def _as_head(self, centre: np.ndarray) -> Head:
        return Head(centre[:-1], centre[-1], np.empty(0))

    def _losses(self, head: Head, features: np.ndarray, target: np.ndarray) -> np.ndarray:
        return (head.outputs(features)[:, 0] - self._standard(target)) ** 2

    def _facts(self) -> dict[str, Any]:
        return {"target_centre": self.target_centre_, "target_scale": self.target_scale_}

    def _restore_facts(self, fields: Fields, arrays: Arrays, count: int) -> list[np.ndarray]:
        self.target_centre_, self.target_scale_ = fields.number("target_centre"), fields.number("target_scale")
        return [np.empty(0)] * count

    def predict(self, X: Any, *, task: Any = None) -> np.ndarray:
        """The value of each row.

        Args:
            X: rows.
            task: the task of each row; None = the only one.
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=FLOATS, reset=False)
        found = self._by_head(X, task, np.empty(len(X)), lambda head, features: head.outputs(features)[:, 0])
        return self.target_centre_ + self.target_scale_ * found

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, task: Any = None) -> float:
        """R2 over the rows of all tasks together."""
        return float(r2_score(y, self.predict(X, task=task), sample_weight=sample_weight))
