"""What the four estimators have in common: what scikit-learn asks of them, and what is done with tasks."""

from __future__ import annotations

import abc
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from bilevel._core import values
from bilevel._core.array_files import Arrays
from bilevel._core.documents import Fields
from bilevel.estimators import files, parts, tasks
from bilevel.estimators.fitting import Fitting
from bilevel.estimators.heads import TaskRows
from bilevel.estimators.rows import merged
from bilevel.estimators.weightings import weighting_of

FLOATS = (np.float64, np.float32)


class Robust(Fitting, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """An estimator with one part that all tasks share and one head for each."""

    # What scikit-learn's validation sets.
    n_features_in_: int
    feature_names_in_: np.ndarray

    # ------------------------------------------------------------------ what differs

    @abc.abstractmethod
    def _encode_more(self, owner: str, y: np.ndarray) -> np.ndarray:
        """The same as `_encode`, for a fitted estimator."""

    @abc.abstractmethod
    def _facts(self) -> dict[str, Any]:
        """What a file holds of the targets, as JSON."""

    @abc.abstractmethod
    def _restore_facts(self, fields: Fields, arrays: Arrays, count: int) -> list[np.ndarray]:
        """Takes the same out of a file; returns the classes of each of `count` tasks."""

    # ------------------------------------------------------------------ fitting

    def fit(self, X: Any, y: Any, *, task: Any = None, sample_weight: Any = None, part: Any = None) -> Self:
        """Learns what the tasks share, on a split of their rows, and then every task's head on all of its rows.

        Args:
            X: rows of numbers without missing ones; `bilevel.estimators.column_transformer` makes them of a table.
            y: the target of each row.
            task: the task of each row, an array of labels; None = all rows are one task.
            sample_weight: of each row, 0 or more; None = 1.
            part: of each row, "train", "validation" or "selection"; None = drawn. What is shared is fitted to
                validation rows while heads are fitted to training rows, and `task_losses_` and the decision when to
                stop are those of selection rows.
        """
        owner = type(self).__name__
        self._check_parameters(owner)
        X, y = validate_data(self, X, y, dtype=FLOATS, ensure_min_samples=2, **self._checks())
        weight = weights_of(f"{owner}.fit", sample_weight, X)
        labels, number = tasks.numbered(f"{owner}.fit", task, len(X))
        known = parts.given(f"{owner}.fit", part, len(X))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rows = merged(X, number, self._encode(y, weight), weight, known, seed)
        present = np.unique(rows.task)  # a task whose rows all have the weight 0 is none
        labels, rows = labels[present], rows._replace(task=np.searchsorted(present, rows.task))
        self._fit_rows(owner, X, rows, labels, seed)
        return self

    def adapt(self, X: Any, y: Any, task: Any, *, sample_weight: Any = None) -> Self:
        """Fits the head of a task that was not there, or is to be fitted anew; what is shared stays as it is.

        Args:
            X: its rows.
            y: their targets.
            task: its label, one for all rows; or the label of each row, for several tasks.
            sample_weight: of each row; None = 1.
        """
        owner = f"{type(self).__name__}.adapt"
        check_is_fitted(self)
        X, y = validate_data(self, X, y, dtype=FLOATS, reset=False, **self._checks())
        weight = weights_of(owner, sample_weight, X)
        task = np.full(len(X), task) if np.ndim(task) == 0 and task is not None else task
        labels, number = tasks.numbered(owner, task, len(X), needed=True)
        together = tasks.joined(owner, self.tasks_, labels[np.unique(number[weight > 0])])
        rows = merged(X, number, self._encode_more(owner, y), weight, np.zeros(len(X), int), 0)
        for k in np.unique(rows.task):
            own = TaskRows.of(X, rows.take(rows.task == k))
            self.heads_[labels.tolist()[k]] = self._own_head(own)
        self.tasks_ = together
        return self

    # ------------------------------------------------------------------ using

    def transform(self, X: Any) -> np.ndarray:
        """The features that all tasks share, one row each."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=FLOATS, reset=False)
        return self.shared_.transform(X, np.arange(len(X)), X.dtype)

    def _by_head(self, X: Any, task: Any, found: np.ndarray, call: Any) -> np.ndarray:
        """`call(head, features)` of the rows of each task, put into `found`."""
        labels, number = tasks.numbered(f"{type(self).__name__}.predict", task, len(X))
        heads = tasks.heads_of(type(self).__name__, self.heads_, labels, task is not None)
        for place, features in self.shared_.blocks(X, np.arange(len(X))):
            own = number[place]
            for k in np.unique(own):
                rows = np.flatnonzero(own == k)
                found[place.start + rows] = call(heads[k], features[rows])
        return found

    def save(self, path: files.FilePath) -> None:
        """Writes the fitted estimator to one file, which `load` reads; nothing in it can run code."""
        check_is_fitted(self)
        files.save(self, path)

    @classmethod
    def load(cls, path: files.FilePath, **parameters: Any) -> Self:
        """Reads an estimator that `save` wrote.

        Args:
            path: of the file.
            **parameters: those that a file cannot hold, such as `network`, a model like the one that was fitted.
        """
        return files.load(cls, path, parameters)

    # ------------------------------------------------------------------ what sklearn asks

    def _columns(self) -> int:
        """Of a centre: one for each class."""
        return 1

    @property
    def _n_features_out(self) -> int:
        return self.shared_.features

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        assert tags.transformer_tags is not None
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # ------------------------------------------------------------------ parameters

    def _checks(self) -> dict[str, Any]:
        """How y is validated."""
        return {}

    def _check_parameters(self, owner: str) -> None:
        values.positive("penalty", self.penalty, of=owner, none="by the rows of a usual task")
        for name in ("centre", "linear", "cross_fit", "shrink"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise ValueError(f"{owner}({name}={getattr(self, name)!r}): it needs True or False.")
        values.positive("learning_rate", self.learning_rate, of=owner)
        values.whole("max_iter", self.max_iter, of=owner)
        values.whole("patience", self.patience, of=owner, none="never stop early")
        values.whole("smallest", self.smallest, of=owner)
        for name in ("validation_fraction", "selection_fraction"):
            values.number(name, getattr(self, name), above=0, below=1, of=owner)
        if self.validation_fraction + self.selection_fraction >= 1:
            raise ValueError(
                f"{owner}(validation_fraction={self.validation_fraction}, selection_fraction="
                f"{self.selection_fraction}): they need to leave rows to train on, so a sum below 1."
            )
        weighting_of(owner, self.weighting, 1)


def weights_of(where: str, given: Any, X: np.ndarray) -> np.ndarray:
    """Of each row, 0 or more."""
    weight = _check_sample_weight(given, X, dtype=np.float64, ensure_non_negative=True)
    if not np.any(weight > 0):
        raise ValueError(f"{where}(sample_weight=...) is zero for all rows: it needs a positive weight.")
    return weight
