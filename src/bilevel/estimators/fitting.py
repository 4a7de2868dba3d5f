"""How an estimator is fitted: a start, a run that learns what is shared, and heads that are fitted to the end."""

from __future__ import annotations

import abc
import itertools
from typing import Any, NamedTuple

import jax
import numpy as np

from bilevel.estimators.centres import Pooled, alone
from bilevel.estimators.heads import Head, TaskRows
from bilevel.estimators.judging import CENTRED, FACTORS, Judge
from bilevel.estimators.learning import FOLDS, Learner, Learnt, Settings
from bilevel.estimators.networks import Shared, Start
from bilevel.estimators.objectives import strengths
from bilevel.estimators.parts import PARTS, UNKNOWN, Shares, parted
from bilevel.estimators.rows import Rows
from bilevel.estimators.scaling import standard
from bilevel.estimators.weightings import share_of, weighting_of
from bilevel.weightings.folds import Folds

FEW, ROWS = 3.0, 10.0  # that take a head half the way from the centre to its own fit, as it starts


class Target(NamedTuple):
    """What a row's target became: a number for the learner, what heads are fitted to, and what tasks can be learnt."""

    learnt: np.ndarray  # of each row
    known: np.ndarray  # which columns of heads each task has; one for regression
    able: np.ndarray  # which tasks can be validated
    aligned: bool  # whether a column is the same class in all tasks, so that heads can have a centre


class Fitting(abc.ABC):
    """What is fitted, and in which order."""

    # Parameters that all have.
    weighting: Any
    centre: bool
    linear: bool
    cross_fit: bool
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

    _stratify = False
    _factors = FACTORS  # of the penalty, that are tried in the end
    _least = 0.0  # how much the worst tasks count where differences between tasks may all be noise: see `judging`
    _penalty_per_feature = False
    _plain_penalty = 1e-2  # as it starts, without a centre

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
    def _losses(self, head: Head, features: np.ndarray, target: np.ndarray) -> np.ndarray:
        """The loss of a head on each row."""

    def _features(self, rows: TaskRows) -> np.ndarray:
        return self.shared_.transform(rows.X, rows.place, np.float64)

    def _row_losses(self, head: Head, rows: TaskRows) -> np.ndarray:
        return self._losses(head, self._features(rows), rows.target)

    def _loss(self, head: Head, rows: TaskRows) -> float:
        return float(np.mean(rows.weight * self._row_losses(head, rows)))

    # ------------------------------------------------------------------ fitting

    def _fit_rows(self, owner: str, X: np.ndarray, rows: Rows, labels: np.ndarray, seed: int) -> None:
        target = self._prepare(rows, len(labels))
        crossed = self.cross_fit and bool(np.all(rows.part == UNKNOWN))
        validation = (1 - self.selection_fraction) / FOLDS if crossed else self.validation_fraction
        shares = Shares(validation, self.selection_fraction, self.smallest)
        rows, learns = parted(owner, rows, target.able, shares, self._stratify, seed)
        start = self._start(X.shape[1], seed)
        start = start.beside(X.shape[1]) if self.linear else start
        self.shared_ = Shared(*start._replace(x=jax.device_get(start.x)), *standard(X, rows))
        self.centre_, self.usual_, self.confidence_, learnt, losses = None, 1.0, 1.0, None, np.empty(0)
        if learns.any():
            own = rows._replace(task=(np.cumsum(learns) - 1)[rows.task]).take(learns[rows.task])
            chosen = target._replace(learnt=target.learnt[learns[rows.task]], known=target.known[learns])
            learnt, losses = self._learn_shared(X, own, chosen, labels[learns], crossed, seed)
        else:
            self._strengths(self._penalties(False))
        self._keep(labels, learns, learnt, losses)
        begin = np.searchsorted(rows.task, np.arange(len(labels) + 1))
        every = [TaskRows.of(X, rows.take(np.arange(*ends))) for ends in itertools.pairwise(begin)]
        self.heads_ = {label: self._own_head(own) for label, own in zip(labels.tolist(), every, strict=True)}

    def _learn_shared(
        self, X: np.ndarray, rows: Rows, target: Target, labels: np.ndarray, crossed: bool, seed: int
    ) -> tuple[Learnt, np.ndarray]:
        """From the tasks that learn; with each task's loss on selection rows."""
        known, pooled = target.known, None
        centred = self.centre and target.aligned and len(known) > 1
        if centred:
            self.usual_ = float(np.median(np.bincount(rows.task[rows.part == PARTS.index("train")])))
            pooled = Pooled.of(self, X, rows, known)
            self.centre_ = pooled.centre
        penalty, names = self._penalties(centred), [str(label) for label in labels]
        self._strengths(penalty)
        settings = self._settings(len(known), seed, X, rows, FOLDS if crossed else 1)
        learnable = rows._replace(target=target.learnt)
        learner = Learner(X, learnable, names, known, self.shared_, penalty, self.centre_, self.usual_)
        if crossed:
            settings = settings._replace(weighting=Folds(FOLDS, settings.weighting))
            learner = learner.crossed()
        learnt = self._learn(learner, settings)
        learnt = learnt._replace(weights=learnt.weights.reshape(-1, len(known)).sum(axis=0))
        return learnt, self._settle(X, rows, learnt, pooled, crossed, settings.baseline)

    def _settle(
        self, X: np.ndarray, rows: Rows, learnt: Learnt, pooled: Pooled | None, crossed: bool, baseline: np.ndarray
    ) -> np.ndarray:
        """Takes what was learnt; returns each task's loss on selection rows. The centre is then that of all rows."""
        self.shared_ = self.shared_._replace(x=learnt.x["network"])
        self._strengths(np.asarray(learnt.x["penalty"], np.float64))
        factors = self._factors
        if pooled is not None:
            reached = np.asarray(learnt.x["centre"], np.float64)[np.append(self.shared_.used, -1)]
            pooled = pooled._replace(centre=reached[:, : pooled.known.shape[1]])
            self.centre_ = pooled.fitted(self, rows.part != PARTS.index("selection")).centre
            factors = CENTRED
        judge = Judge(X, rows, self._own_head, self._features, self._losses, least=self._least)
        if crossed or pooled is not None:  # what is shared has seen all but selection rows, which are few
            judge = judge._replace(train=("train", "validation"), held_out=("selection",))
        judged = judge.judged(learnt.weights, factors, share_of(self.weighting), baseline)
        self.penalty_, self.confidence_ = judged.factor * self.penalty_, judged.confidence
        if pooled is not None:
            self.centre_ = pooled.fitted(self, np.ones(len(rows.task), bool)).centre
        return judged.losses

    def _own_head(self, rows: TaskRows, factor: float = 1.0) -> Head:
        """Of one task, towards the centre: the nearer, the fewer rows it has."""
        share = 1.0 if self.centre_ is None else self.usual_ / len(rows.place)
        return self._head(rows, factor * share * self.penalty_, self.centre_).scaled(self.confidence_)

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

    def _penalties(self, centred: bool) -> np.ndarray:
        """Logarithms, as they start: of the intercept, of the scale, of inputs, and of other features."""
        features = self.shared_.made - self.shared_.linear if self._penalty_per_feature else 1
        if self.penalty is not None:
            return np.full(3 + features, np.log(self.penalty))
        if not centred:
            return np.full(3 + features, np.log(self._plain_penalty))
        return np.log(np.array([FEW, FEW, *[ROWS] * (1 + features)]) / self.usual_)

    def _settings(self, count: int, seed: int, X: np.ndarray, rows: Rows, folds: int) -> Settings:
        baseline = errors = None
        if self.weighting == "regret" or (self.shrink and count > 1):
            baseline, errors = alone(self, X, rows, regret=self.weighting == "regret")
            errors = errors / folds**0.5  # as many times as many rows validate
        weighting = weighting_of(type(self).__name__, self.weighting, count, baseline, errors if self.shrink else None)
        batch = getattr(self, "batch_size", None)
        baseline = np.zeros(count, np.float32) if baseline is None else baseline
        return Settings(
            weighting, baseline, self.learning_rate, batch, self.max_iter, self.patience, seed, bool(self.verbose)
        )
