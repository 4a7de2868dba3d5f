"""The base of the four estimators: scikit-learn's conventions, and the labels of tasks."""

from __future__ import annotations

import abc
import difflib
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from bilevel._core import values
from bilevel._core.documents import Fields
from bilevel.estimators import files
from bilevel.estimators.fitting import Fitting, weighting_of
from bilevel.estimators.heads import Head, TaskRows
from bilevel.estimators.rows import merged, parts_given

FLOATS = (np.float64, np.float32)
ONLY = "all"  # the name of the task if there is only one


class Robust(Fitting, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """An estimator with one part that all tasks share and one head for each."""

    # Set by scikit-learn's validation.
    n_features_in_: int
    feature_names_in_: np.ndarray

    _checks: ClassVar[dict[str, Any]] = {}  # how y is validated

    # ------------------------------------------------------------------ what differs

    @abc.abstractmethod
    def _encode_more(self, owner: str, y: np.ndarray) -> np.ndarray:
        """Encodes more targets for a fitted estimator, which may have classes that no task had."""

    @abc.abstractmethod
    def _facts(self) -> dict[str, Any]:
        """What a saved file says about the targets, as JSON."""

    @abc.abstractmethod
    def _restore_facts(self, fields: Fields, count: int) -> list[np.ndarray]:
        """Restores the same from a file; returns the classes of each of `count` tasks."""

    # ------------------------------------------------------------------ fitting

    def fit(self, X: Any, y: Any, *, task: Any = None, sample_weight: Any = None, part: Any = None) -> Self:
        """Learns what the tasks share from a split of their rows, then fits every task's head to all of its rows.

        Args:
            X: rows of numbers, none missing; `bilevel.estimators.column_transformer` makes them from a table.
            y: the target of each row.
            task: the task of each row, an array of labels; None = all rows are one task.
            sample_weight: the weight of each row, 0 or more; None = 1.
            part: the part of each row, "train", "validation" or "selection"; None = drawn at random. Training rows fit
                heads, validation rows fit what is shared. Selection rows decide when to stop, and give `task_losses_`.
        """
        owner = type(self).__name__
        self._check_parameters(owner)
        X, y = validate_data(self, X, y, dtype=FLOATS, ensure_min_samples=2, **self._checks)
        weight = weights_of(f"{owner}.fit", sample_weight, X)
        labels, number = numbered(f"{owner}.fit", task, len(X))
        known = parts_given(f"{owner}.fit", part, len(X))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rows = merged(X, number, self._encode(y, weight), weight, known, seed)
        present = np.unique(rows.task)  # leaves out tasks whose rows all have the weight 0
        labels, rows = labels[present], rows._replace(task=np.searchsorted(present, rows.task))
        self._fit_rows(owner, X, rows, labels, seed)
        return self

    def adapt(self, X: Any, y: Any, task: Any, *, sample_weight: Any = None) -> Self:
        """Fits the head of a new task, or refits that of a known one. What is shared stays as it is.

        Args:
            X: the rows of the task.
            y: their targets.
            task: its label, one for all rows; or the label of each row, for several tasks.
            sample_weight: the weight of each row; None = 1.
        """
        owner = f"{type(self).__name__}.adapt"
        check_is_fitted(self)
        X, y = validate_data(self, X, y, dtype=FLOATS, reset=False, **self._checks)
        weight = weights_of(owner, sample_weight, X)
        task = np.full(len(X), task) if np.ndim(task) == 0 and task is not None else task
        labels, number = numbered(owner, task, len(X), needed=True)
        together = joined(owner, self.tasks_, labels[np.unique(number[weight > 0])])
        rows = merged(X, number, self._encode_more(owner, y), weight, np.zeros(len(X), int), 0)
        for k in np.unique(rows.task):
            self.heads_[labels.tolist()[k]] = self._own_head(TaskRows.of(X, rows.take(rows.task == k)))
        self.tasks_ = together
        return self

    # ------------------------------------------------------------------ using

    def transform(self, X: Any) -> np.ndarray:
        """The features of each row, which all tasks share."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=FLOATS, reset=False)
        return self.shared_.transform(X, np.arange(len(X)), X.dtype)

    def _by_head(self, X: Any, task: Any, found: np.ndarray, call: Any) -> np.ndarray:
        """Fills `found` with `call(head, features)` for the rows of each task."""
        labels, number = numbered(f"{type(self).__name__}.predict", task, len(X))
        heads = heads_of(type(self).__name__, self.heads_, labels, task is not None)
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
        """Reads an estimator that `save` wrote; `bilevel.estimators.load` describes the arguments."""
        return files.load([cls], path, parameters)

    # ------------------------------------------------------------------ what scikit-learn asks for

    @property
    def _n_features_out(self) -> int:
        return self.shared_.features

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        assert tags.transformer_tags is not None
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # ------------------------------------------------------------------ parameters

    def _check_parameters(self, owner: str) -> None:
        values.positive("penalty", self.penalty, of=owner, none="by the rows of a usual task")
        for name in ("centre", "linear", "cross_fit", "shrink"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise ValueError(f"{owner}({name}={getattr(self, name)!r}): it needs True or False.")
        values.positive("learning_rate", self.learning_rate, of=owner)
        batch_size = getattr(self, "batch_size", "auto")  # not all of them have it
        if batch_size != "auto":
            values.whole("batch_size", batch_size, of=owner, none='all rows; or "auto"')
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
    """The weight of each row, 0 or more."""
    weight = _check_sample_weight(given, X, dtype=np.float64, ensure_non_negative=True)
    if not np.any(weight > 0):
        raise ValueError(f"{where}(sample_weight=...) is zero for all rows: it needs a positive weight.")
    return weight


# ------------------------------------------------------------------ labels of tasks


def numbered(where: str, task: Any, count: int, needed: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The different labels, sorted, and the number of each row's label.

    >>> numbered("fit", ["b", "a", "b"], 3)
    (array(['a', 'b'], dtype='<U1'), array([1, 0, 1]))
    """
    if task is None and not needed:
        return np.array([ONLY]), np.zeros(count, int)
    found = np.asarray(task)
    if found.shape != (count,):
        raise ValueError(
            f"{where}(task=...) has shape {found.shape}: it needs the label of each row's task, {count} in all."
        )
    if found.dtype.kind in "fcO":
        missing = [i for i, label in enumerate(found.tolist()) if label is None or label != label]
        if missing:
            raise ValueError(
                f"{where}(task=...) is missing in {len(missing)} rows, first in row {missing[0]}: it needs a label for "
                "each; leave these rows out, or give them a label of their own."
            )
    kinds = {type(label) for label in found.tolist()} if found.dtype.kind == "O" else set()
    if len(kinds) > 1 or not kinds <= {str, int, float, bool}:
        shown = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise TypeError(f"{where}(task=...) has labels of type {shown}: it needs texts or numbers, of one type.")
    found = np.array(found.tolist()) if kinds else found  # text of pandas is of the type object
    labels, number = np.unique(found, return_inverse=True)
    return labels, number


def heads_of(owner: str, heads: Mapping[Any, Head], labels: np.ndarray, given: bool) -> list[Head]:
    """The head of each label."""
    if not given:
        if len(heads) > 1:
            raise ValueError(
                f"{owner} was fitted with {len(heads)} tasks: predict(task=...) needs the label of each row's task."
            )
        return list(heads.values())
    unknown = [label for label in labels.tolist() if label not in heads]
    if unknown:
        near = difflib.get_close_matches(str(unknown[0]), [str(label) for label in heads], n=1, cutoff=0.85)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"{owner}.predict(task=...) has {unknown[0]!r}, which it was not fitted with: adapt(X, y, "
            f"task={unknown[0]!r}) fits a new task from some rows of it.{meant}"
        )
    return [heads[label] for label in labels.tolist()]


def joined(where: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """The labels so far together with new ones of the same type."""
    if {old.dtype.kind, new.dtype.kind} in ({"U"}, set("if")) or old.dtype.kind == new.dtype.kind:
        return np.unique(np.concatenate([old, new]))
    raise TypeError(
        f"{where}: the labels so far are of type {old.dtype.name}, and it got {new.dtype.name}: it needs one type."
    )
