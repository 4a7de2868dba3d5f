"""What the four estimators have in common: how they are fitted, and what is done with tasks."""

from __future__ import annotations

import abc
import itertools
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from bilevel._core import values
from bilevel._core.array_files import Arrays
from bilevel._core.documents import Fields
from bilevel.estimators import files, parts, tasks
from bilevel.estimators.heads import Head, TaskRows
from bilevel.estimators.best import criterion
from bilevel.estimators.centres import Pooled, alone
from bilevel.estimators.judging import CENTRED, FACTORS, Judge
from bilevel.estimators.learning import Learner, Learnt, Settings
from bilevel.estimators.networks import Shared, Start
from bilevel.estimators.objectives import strengths
from bilevel.estimators.parts import Shares, parted
from bilevel.estimators.rows import Rows, merged
from bilevel.estimators.scaling import standard
from bilevel.estimators.weightings import weighting_of

FEW, ROWS = 3.0, 10.0  # that take a head half the way from the centre to its own fit, as it starts
FLOATS = (np.float64, np.float32)


class Target(NamedTuple):
    """What a row's target became: a number for the learner, what heads are fitted to, and what tasks can be learnt."""

    learnt: np.ndarray  # of each row
    known: np.ndarray  # which columns of heads each task has; one for regression
    able: np.ndarray  # which tasks can be validated
    aligned: bool  # whether a column is the same class in all tasks, so that heads can have a centre


class Robust(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, abc.ABC):
    """An estimator with one part that all tasks share and one head for each."""

    # Parameters that all have, and what scikit-learn's validation sets.
    weighting: Any
    centre: bool
    linear: bool
    shrink: bool
    penalty: float | None
    learning_rate: float
    max_iter: int
    patience: int | None
    validation_fraction: float
    selection_fraction: float
    smallest: int
    random_state: Any
    verbose: bool
    n_features_in_: int
    feature_names_in_: np.ndarray

    # ------------------------------------------------------------------ what differs

    @abc.abstractmethod
    def _start(self, columns: int, seed: int) -> Start:
        """The network."""

    @abc.abstractmethod
    def _sizes(self) -> tuple[int, ...]:
        """The sizes of the layers behind the inputs, where parameters say so."""

    @abc.abstractmethod
    def _learn(self, learner: Learner, settings: Settings) -> Learnt:
        """Learns what is shared."""

    @abc.abstractmethod
    def _encode(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The targets of all rows as numbers, class by class where they are labels."""

    @abc.abstractmethod
    def _prepare(self, rows: Rows, count: int) -> Target:
        """The targets of the rows of `count` tasks, as they are learnt."""

    @abc.abstractmethod
    def _head(self, rows: TaskRows, penalty: np.ndarray, centre: np.ndarray | None) -> Head:
        """A head for the rows of one task, towards a centre; their targets are those of `_encode`."""

    @abc.abstractmethod
    def _pool(self, rows: TaskRows, penalty: np.ndarray, centre: np.ndarray | None, known: np.ndarray) -> np.ndarray:
        """One head for rows of all tasks, as a centre; `known` says which columns the task of each row has."""

    @abc.abstractmethod
    def _as_head(self, centre: np.ndarray) -> Head:
        """A centre as a head for any task."""

    @abc.abstractmethod
    def _row_losses(self, head: Head, rows: TaskRows) -> np.ndarray:
        """The loss of a head on each row."""

    def _loss(self, head: Head, rows: TaskRows) -> float:
        return float(np.mean(rows.weight * self._row_losses(head, rows)))

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

    def _fit_rows(self, owner: str, X: np.ndarray, rows: Rows, labels: np.ndarray, seed: int) -> None:
        target = self._prepare(rows, len(labels))
        shares = Shares(self.validation_fraction, self.selection_fraction, self.smallest)
        rows, learns = parted(owner, rows, target.able, shares, self._stratify, seed)
        start = self._start(X.shape[1], seed)
        start = start.beside(X.shape[1]) if self.linear else start
        self.shared_ = Shared(*start._replace(x=jax.device_get(start.x)), *standard(X, rows))
        self.centre_, self.usual_, learnt, losses = None, 1.0, None, np.empty(0)
        if learns.any():
            own = rows._replace(task=(np.cumsum(learns) - 1)[rows.task]).take(learns[rows.task])
            known, learnable = target.known[learns], target.learnt[learns[rows.task]]
            centred = self.centre and target.aligned and len(known) > 1
            self.usual_ = float(np.median(np.bincount(own.task[own.part == 0]))) if centred else 1.0
            log_penalty = self._penalties(centred)
            pooled = Pooled.of(self, X, own, known) if centred else None
            self.centre_ = None if pooled is None else pooled.centre
            self._strengths(log_penalty)
            names = [str(label) for label in labels[learns]]
            settings = self._settings(len(known), seed, X, own)
            learner = Learner(
                X, own._replace(target=learnable), names, known, self.shared_, log_penalty, self.centre_, self.usual_
            )
            learnt = self._learn(learner, settings)
            losses = self._settle(X, own, learnt, pooled)
        else:
            self._strengths(self._penalties(False))
        self._keep(labels, learns, learnt, losses)
        begin = np.searchsorted(rows.task, np.arange(len(labels) + 1))
        every = [TaskRows.of(X, rows.take(np.arange(*ends))) for ends in itertools.pairwise(begin)]
        self.heads_ = {label: self._own_head(own) for label, own in zip(labels.tolist(), every, strict=True)}

    def _settle(self, X: np.ndarray, rows: Rows, learnt: Learnt, pooled: Pooled | None) -> np.ndarray:
        """Takes what was learnt; returns each task's loss on selection rows. The centre is then that of all rows."""
        self.shared_ = self.shared_._replace(x=learnt.x["network"])
        self._strengths(np.asarray(learnt.x["penalty"], np.float64))
        weights, factors = learnt.weights, self._factors
        if pooled is not None:
            reached = np.asarray(learnt.x["centre"], np.float64)[np.append(self.shared_.used, -1)]
            pooled = pooled._replace(centre=reached[:, : pooled.centre.shape[1]])
            self.centre_ = pooled.fitted(self, rows.part == 0).centre
            weights, factors = (weights + 1 / len(weights)) / 2, CENTRED
        first = self.penalty_
        judge = Judge(X, rows, lambda own, factor: self._own_head(own, factor), self._loss)
        judge = judge if pooled is None else judge._replace(held_out=("selection",))  # the centre has seen the others
        factor, losses = judge.judged(weights, factors)
        self.penalty_ = factor * first
        if pooled is not None:
            self.centre_ = pooled.fitted(self, np.ones(len(rows.task), bool)).centre
        return losses

    def _own_head(self, rows: TaskRows, factor: float = 1.0) -> Head:
        """Of one task, towards the centre: the nearer, the fewer rows it has."""
        share = 1.0 if self.centre_ is None else self.usual_ / len(rows.place)
        return self._head(rows, factor * share * self.penalty_, self.centre_)

    def _strengths(self, logarithms: np.ndarray) -> None:
        """`penalty_`, of each feature that is there, of the intercept and of the scale."""
        shared = self.shared_
        x = {"penalty": logarithms, **({} if self.centre_ is None else {"centre": None})}
        self.penalty_ = np.asarray(strengths(x, shared.made, shared.linear), np.float64)[
            np.append(shared.used, [-2, -1])
        ]

    def _keep(self, labels: np.ndarray, learns: np.ndarray, learnt: Learnt | None, found: np.ndarray) -> None:
        result = None if learnt is None else learnt.result
        self.tasks_ = labels
        self.result_ = result
        self.history_ = None if result is None else result.history
        self.n_iter_ = 0 if result is None else result.steps
        losses, weights = np.full(len(labels), np.nan), np.zeros(len(labels))
        if learnt is not None:
            losses[learns], weights[learns] = found, learnt.weights
        self.task_losses_ = dict(zip(labels.tolist(), losses.tolist(), strict=True))
        self.task_weights_ = dict(zip(labels.tolist(), weights.tolist(), strict=True))
        self.worst_task_ = None if result is None else labels.tolist()[int(np.nanargmax(losses))]

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

    _stratify = False
    _factors = FACTORS  # of the penalty, that are tried in the end
    _penalty_per_feature = False
    _plain_penalty = 1e-2  # as it starts, without a centre

    def _checks(self) -> dict[str, Any]:
        """How y is validated."""
        return {}

    def _penalties(self, centred: bool) -> np.ndarray:
        """Logarithms, as they start: of the intercept, of the scale, of inputs, and of other features."""
        features = self.shared_.made - self.shared_.linear if self._penalty_per_feature else 1
        if self.penalty is not None:
            return np.full(3 + features, np.log(self.penalty))
        if not centred:
            return np.full(3 + features, np.log(self._plain_penalty))
        return np.log(np.array([FEW, FEW, *[ROWS] * (1 + features)]) / self.usual_)

    def _settings(self, count: int, seed: int, X: np.ndarray, rows: Rows) -> Settings:
        baseline = errors = None
        if self.weighting == "regret" or (self.shrink and count > 1):
            baseline, errors = alone(self, X, rows, regret=self.weighting == "regret")
        weighting = weighting_of(type(self).__name__, self.weighting, count, baseline, errors if self.shrink else None)
        batch = getattr(self, "batch_size", None)
        judge = criterion(weighting)
        return Settings(
            weighting, judge, self.learning_rate, batch, self.max_iter, self.patience, seed, bool(self.verbose)
        )

    def _check_parameters(self, owner: str) -> None:
        values.positive("penalty", self.penalty, of=owner, none="by the rows of a usual task")
        for name in ("centre", "linear", "shrink"):
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
