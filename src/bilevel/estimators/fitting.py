"""How an estimator is fitted: an initial point, a run that learns what tasks share, and heads fitted to convergence.

The centre of the heads is one head for the rows of all tasks, from which each task's own head departs. It starts as the
fit to all training rows, with the penalty q that is best on validation rows. The run learns it with the network. In the
end it is fitted to all rows, with the same q on its distance from what the run learnt.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from bilevel._core import values
from bilevel.estimators.heads import CENTRED, FACTORS, Head, Judge, TaskRows
from bilevel.estimators.learning import FOLDS, Learner, Learnt, RunSettings
from bilevel.estimators.networks import Shared
from bilevel.estimators.objectives import INTERCEPT, Batch, strengths
from bilevel.estimators.rows import EVALUATED, PARTS, UNKNOWN, Shares, WeightedRows, parted, standard
from bilevel.weightings import CVaR, Folds, Regret, Shrunk, Weighting

# With this many rows and the initial penalty, a head is half way between the centre and its own fit.
FEW, ROWS = 3.0, 10.0
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
UNSCALED = 1e6  # q for a head that may not be a scaled centre
MOST = 20_000  # the most rows that a centre is fitted to
NAMES = ("min-max", "min-avg", "regret")


class LearningTarget(NamedTuple):
    """Targets as the run learns them, and the columns of each task."""

    learnt: np.ndarray  # of each row
    known: np.ndarray  # which columns of heads each task has; one for regression
    able: np.ndarray  # which tasks can be validated
    aligned: bool  # whether a column is the same class in all tasks, so that heads can have a centre


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class Fitting(abc.ABC):
    """The steps of a fit, and their order; its fields are the parameters that all estimators have."""

    weighting: Any = "min-max"
    centre: bool = True
    linear: bool = True
    cross_fit: bool = True
    shrink: bool = True
    penalty: float | None = None
    learning_rate: float = 2e-3
    max_iter: int = 500
    patience: int | None = 20
    validation_fraction: float = 0.2
    selection_fraction: float = 0.2
    smallest: int = 20
    random_state: Any = None
    verbose: bool = False

    _stratify = False
    _factors = FACTORS  # of the penalty: the candidates after the run
    _least = 0.0  # how much the worst tasks count if all differences between tasks may be noise: see `heads`
    _penalty_per_feature = False
    _plain_penalty = 1e-2  # the initial one without a centre

    # ------------------------------------------------------------------ what differs

    @abc.abstractmethod
    def _start(self, columns: int, seed: int) -> Shared:
        """The initial network."""

    @abc.abstractmethod
    def _sizes(self) -> tuple[int, ...]:
        """The sizes of the layers after the inputs, if the parameters name them."""

    _loss_of_rows: ClassVar[Callable[[jax.Array, Batch], jax.Array]]

    def _learn(self, learner: Learner, settings: RunSettings) -> Learnt:
        """Learns what is shared."""
        return learner.bilevel(self._loss_of_rows, settings)

    @abc.abstractmethod
    def _encode(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The targets of all rows as numbers; labels become numbers of classes."""

    @abc.abstractmethod
    def _prepare(self, rows: WeightedRows, count: int) -> LearningTarget:
        """The targets of the rows of `count` tasks, as the run learns them."""

    @abc.abstractmethod
    def _head(
        self, rows: TaskRows, penalty: np.ndarray, centre: np.ndarray | None, known: np.ndarray | None = None
    ) -> Head:
        """Fits a head to the rows of one task, towards a centre; targets are those of `_encode`.

        Or to the rows of all tasks; `known` then says which columns the task of each row has.
        """

    def _all_classes(self) -> np.ndarray:
        """The classes of all tasks, one for each column of a centre; none for regression."""
        return np.empty(0)

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

    def _fit_rows(self, owner: str, X: np.ndarray, rows: WeightedRows, labels: np.ndarray, seed: int) -> None:
        target = self._prepare(rows, len(labels))
        crossed = self.cross_fit and bool(np.all(rows.part == UNKNOWN))
        validation = (1 - self.selection_fraction) / FOLDS if crossed else self.validation_fraction
        shares = Shares(validation, self.selection_fraction, self.smallest)
        rows, learns = parted(owner, rows, target.able, shares, self._stratify, seed)
        start = self._start(X.shape[1], seed)
        start = start.beside(X.shape[1]) if self.linear else start
        mean, scale = standard(X, rows)
        self.shared_ = start._replace(x=jax.device_get(start.x), centre=mean, scale=scale)
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
        self, X: np.ndarray, rows: WeightedRows, target: LearningTarget, labels: np.ndarray, crossed: bool, seed: int
    ) -> tuple[Learnt, np.ndarray]:
        """Learns from these tasks; returns what was learnt and each task's loss on selection rows."""
        known, q = target.known, 0.0
        centred = self.centre and target.aligned and len(known) > 1
        if centred:
            self.usual_ = float(np.median(np.bincount(rows.task[rows.part == PARTS.index("train")])))
            train, validation = (thinned(rows, rows.part == PARTS.index(part)) for part in ("train", "validation"))
            found = [self._pooled(X, train, known, q, None) for q in PENALTIES]
            pooled = [Head(centre[:-1], centre[-1], self._all_classes()) for centre in found]
            best = int(np.argmin([self._loss(head, TaskRows.of(X, validation)) for head in pooled]))
            q, self.centre_ = PENALTIES[best], found[best]
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
        # Take over what was learnt, choose penalties and confidence, and fit the centre to all rows.
        self.shared_ = self.shared_._replace(x=learnt.x["network"])
        self._strengths(np.asarray(learnt.x["penalty"], np.float64))
        factors, reached = self._factors, None
        if centred:
            reached = np.asarray(learnt.x["centre"], np.float64)[np.append(self.shared_.used, -1)]
            reached = reached[:, : known.shape[1]]
            seen = thinned(rows, rows.part != PARTS.index("selection"))
            self.centre_ = self._pooled(X, seen, known, q, reached)
            factors = CENTRED
        judge = Judge(X, rows, self._own_head, self._features, self._losses, least=self._least)
        if crossed or centred:  # only selection rows, which are few, are new to what is shared
            judge = judge._replace(train=("train", "validation"), held_out=("selection",))
        judged = judge.judged(learnt.weights, factors, share_of(self.weighting), settings.baseline)
        self.penalty_, self.confidence_ = judged.factor * self.penalty_, judged.confidence
        if centred:
            self.centre_ = self._pooled(X, thinned(rows, np.ones(len(rows.task), bool)), known, q, reached)
        return learnt, judged.losses

    def _pooled(
        self, X: np.ndarray, rows: WeightedRows, known: np.ndarray, penalty: float, centre: np.ndarray | None
    ) -> np.ndarray:
        """A centre fitted to these rows, towards the present one; each row may have the columns of its task."""
        penalties = plain(self.shared_.features, penalty)
        head = self._head(TaskRows.of(X, rows), penalties, centre, known[rows.task])
        return np.vstack([head.weights, head.intercept])

    def _own_head(self, rows: TaskRows, factor: float = 1.0) -> Head:
        """The head of one task: the fewer rows it has, the nearer to the centre."""
        share = 1.0 if self.centre_ is None else self.usual_ / len(rows.place)
        return self._head(rows, factor * share * self.penalty_, self.centre_).scaled(self.confidence_)

    def _strengths(self, logarithms: np.ndarray) -> None:
        """Sets `penalty_`: of each feature that is used, of the intercept and of the scale."""
        shared = self.shared_
        x = {"penalty": logarithms, **({} if self.centre_ is None else {"centre": None})}
        found = np.asarray(strengths(x, shared.made, shared.linear), np.float64)
        self.penalty_ = found[np.append(shared.used, [-2, -1])]

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
        """The initial logarithms: of the intercept, of the scale, of inputs, and of other features."""
        features = self.shared_.made - self.shared_.linear if self._penalty_per_feature else 1
        if self.penalty is not None:
            return np.full(3 + features, np.log(self.penalty))
        if not centred:
            return np.full(3 + features, np.log(self._plain_penalty))
        return np.log(np.array([FEW, FEW, *[ROWS] * (1 + features)]) / self.usual_)

    def _settings(self, count: int, seed: int, X: np.ndarray, rows: WeightedRows, folds: int) -> RunSettings:
        baseline = errors = None
        if self.weighting == "regret" or (self.shrink and count > 1):
            baseline, errors = alone(self, X, rows, regret=self.weighting == "regret")
            errors = errors / folds**0.5  # `folds` times as many rows validate in the run
        weighting = weighting_of(type(self).__name__, self.weighting, count, baseline, errors if self.shrink else None)
        batch = getattr(self, "batch_size", None)
        baseline = np.zeros(count, np.float32) if baseline is None else baseline
        return RunSettings(
            weighting, baseline, self.learning_rate, batch, self.max_iter, self.patience, seed, bool(self.verbose)
        )


def thinned(rows: WeightedRows, chosen: np.ndarray) -> WeightedRows:
    """At most `MOST` of the rows that are chosen."""
    numbers = np.flatnonzero(chosen)
    return rows.take(numbers[:: max(1, -(-len(numbers) // MOST))])


def plain(features: int, penalty: float) -> np.ndarray:
    """One strength for all features, a free intercept, and no scaling."""
    return np.append(np.full(features, penalty), [INTERCEPT, UNSCALED])


def alone(owner: Fitting, X: np.ndarray, rows: WeightedRows, regret: bool) -> tuple[np.ndarray, np.ndarray]:
    """Baselines of the tasks, and the standard errors of the losses that the weighting compares.

    Heads are fitted to training rows with the initial network, and judged on validation rows. For `regret` the baseline
    of a task is the loss of a head that knows no other task, with a penalty chosen on selection rows, and losses are
    compared as differences from it. Otherwise baselines are 0.
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


# ------------------------------------------------------------------ the weighting


def weighting_of(
    owner: str, given: Any, count: int, baseline: np.ndarray | None = None, errors: np.ndarray | None = None
) -> Weighting:
    """The weighting of `count` tasks that `weighting=` asks for.

    All values but objects give the same kind of weighting: the mean over the worst share of the tasks, by how far
    losses exceed baselines, as far as that is more than noise. Share, baselines and errors are data, so min-avg and
    min-max are one compiled program.

    Without `baseline`, for "regret" the loss that each task reaches alone, losses are compared as they are. Without
    `errors`, the standard errors of what is compared, differences are taken as they are.

    >>> weighting_of("Model", "min-max", 4).weighting.weighting
    CVaR(fraction=0.25, lr=None)
    """
    if isinstance(given, Weighting):
        return given
    named = isinstance(given, str) and given in NAMES
    if not named and (isinstance(given, str) or not values.is_number(given) or not 0 < given <= 1):
        raise ValueError(
            f'{owner}(weighting={given!r}): it needs "min-max", "min-avg", "regret", the share of the worst tasks '
            "whose mean counts, a number above 0, up to 1, or an object of bl.weightings."
        )
    none = np.zeros(count, np.float32)
    kept = none if baseline is None or given != "regret" else baseline
    return Regret(kept, Shrunk(none if errors is None else errors, CVaR(max(share_of(given), 1 / count))))


def share_of(given: Any) -> float:
    """The share of the tasks that counts, the worst ones; 0 = the worst task alone.

    >>> share_of("min-avg"), share_of(0.3), share_of("regret")
    (1.0, 0.3, 0.0)
    """
    if isinstance(given, Weighting):
        return 0.0 if given.moves else 1.0
    return float(given == "min-avg") if isinstance(given, str) else float(given)
