"""What is compared: our estimators, and what one would do without them, each tuned on the same rows to fit.

Every method takes the rows to fit and returns a function of (X, task) that gives probabilities of classes, or numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from parts import Lowest, problem_of, solved, standard, tasks_of
from problems import Draw, Rows
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from bilevel.estimators import RobustRepresentationClassifier, RobustRepresentationRegressor
from bilevel.studies.datasets.splitting import split
from bilevel.weightings import SimplexAscent

Predict = Callable[[np.ndarray, str], np.ndarray]
PENALTIES = 10.0 ** np.arange(-3, 4)  # seven of each linear model
TREES = [{"max_leaf_nodes": 4, "learning_rate": rate} for rate in (0.03, 0.1)]  # two of each boosted one
MIDDLE = 4  # of the penalties, while the weights of group DRO move
SELECTION = 0.25  # of a task's rows, by which they are chosen; then all rows are fitted
BEFORE = {
    "cross_fit": False,
    "centre": False, "linear": False, "shrink": False, "penalty": 1e-2, "learning_rate": 2e-3,
    "validation_fraction": 0.2, "selection_fraction": 0.15, "max_iter": 1000, "layers": (64,),
}  # fmt: skip


# ------------------------------------------------------------------ ours


@dataclasses.dataclass(frozen=True)
class Ours:
    """An estimator of ours with some parameters."""

    parameters: dict[str, Any]

    def __call__(self, draw: Draw, seed: int) -> Predict:
        """Fits it."""
        kind = RobustRepresentationClassifier if draw.classes else RobustRepresentationRegressor
        model: Any = kind(random_state=seed, **self.parameters)
        model.fit(draw.fit.X, draw.fit.y, task=draw.fit.task)
        call = model.predict_proba if draw.classes else model.predict
        return lambda X, task: call(X, task=np.full(len(X), task))


def ideal(draw: Draw, seed: int) -> Predict:
    """Nobody's method: a plain run of min-max, stopped where the worst test loss is lowest. For classes only.

    What the recommended way is measured against: it must find that moment, or better, without test rows.
    """
    tasks = tasks_of(draw, 0.0, seed)
    ready, lowest = problem_of(tasks, draw.fit.X.shape[1], seed), Lowest("test", np.max)
    solved(ready, SimplexAscent(), seed, callback=lowest)
    (w,), heads = lowest.point
    every, (mean, spread) = classes_of(draw), standard(draw)

    def predict(X: np.ndarray, task: str) -> np.ndarray:
        scores = np.maximum(((X - mean) / spread) @ np.asarray(w), 0) @ np.asarray(heads[task])
        found = np.zeros((len(X), len(every)))
        own = np.searchsorted(every, np.unique(draw.fit.y[draw.fit.task == task]))
        found[:, own] = np.exp(scores - scores.max(axis=1, keepdims=True))
        return found / found.sum(axis=1, keepdims=True)

    return predict


# ------------------------------------------------------------------ scikit-learn's


def linear(classes: bool) -> list[Any]:
    """Logistic or ridge regression, one for each penalty."""
    made = [LogisticRegression(C=1 / p, max_iter=300) if classes else Ridge(p) for p in PENALTIES]
    return [make_pipeline(StandardScaler(), model) for model in made]


def boosted(classes: bool) -> list[Any]:
    """Gradient boosting, one for each size and rate."""
    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    return [kind(max_iter=60, min_samples_leaf=10, random_state=0, **tree) for tree in TREES]


def cross_validated(classes: bool) -> list[Any]:
    """The same, with the penalty chosen by cross-validation on all rows, and not by a quarter of them."""
    own = LogisticRegressionCV(
        Cs=1 / PENALTIES, cv=5, scoring="neg_log_loss", max_iter=300, l1_ratios=(0,), use_legacy_attributes=False
    )
    return [make_pipeline(StandardScaler(), own if classes else RidgeCV(PENALTIES))]


def divided(draw: Draw, seed: int) -> np.ndarray:
    """Which of the rows to fit select: a quarter of each task's, at least one."""
    selects = np.zeros(len(draw.fit.y), bool)
    for task in np.unique(draw.fit.task):
        own = np.flatnonzero(draw.fit.task == task)
        if len(own) > 3:
            classes = draw.fit.y[own] if draw.classes else None
            (parts,) = split(own, stratify=classes, validation=SELECTION, selection=0, test=0, seed=seed)
            selects[parts.validation] = True
    return selects


def chosen(candidates: list[Any], rows: Rows, selects: np.ndarray, every: np.ndarray) -> Any:
    """The candidate with the lowest loss on the rows that select, fitted to all rows; None where it cannot be."""
    classes = every.dtype.kind != "f" or len(every) > 0
    if selects.sum() == 0 or (classes and len(np.unique(rows.y[~selects])) < 2):
        return None
    found = []
    for candidate in candidates:
        candidate.fit(rows.X[~selects], rows.y[~selects])
        found.append(row_losses(outputs(candidate, rows.X[selects], every), rows.y[selects], every).mean())
    return candidates[int(np.argmin(found))].fit(rows.X, rows.y)


def outputs(model: Any, X: np.ndarray, every: np.ndarray) -> np.ndarray:
    """Numbers, or probabilities of every class, 0 for those that the model has not seen."""
    if not len(every):
        return model.predict(X)
    found = np.zeros((len(X), len(every)))
    found[:, np.searchsorted(every, model.classes_)] = model.predict_proba(X)
    return found


def row_losses(found: np.ndarray, y: np.ndarray, every: np.ndarray) -> np.ndarray:
    """Squared errors, or cross-entropies."""
    if not len(every):
        return (found - y) ** 2
    return -np.log(np.maximum(found[np.arange(len(y)), np.searchsorted(every, y)], 1e-7))


def classes_of(draw: Draw) -> np.ndarray:
    """All labels; none for regression."""
    return np.unique(draw.fit.y) if draw.classes else np.empty(0)


@dataclasses.dataclass(frozen=True)
class Alone:
    """One model a task; a task whose rows do not bear one has the mean, or the shares of its classes and all tasks'."""

    candidates: Callable[[bool], list[Any]]

    def __call__(self, draw: Draw, seed: int) -> Predict:
        """Fits them."""
        selects, every = divided(draw, seed), classes_of(draw)
        models = {}
        for task in draw.scored:
            own = draw.fit.task == task
            rows = Rows(*(column[own] for column in draw.fit))
            models[task] = chosen(self.candidates(draw.classes), rows, selects[own], every)

        def predict(X: np.ndarray, task: str) -> np.ndarray:
            if models[task] is not None:
                return outputs(models[task], X, every)
            own = draw.fit.y[draw.fit.task == task]
            if not draw.classes:
                return np.full(len(X), own.mean())
            share = np.array([(np.sum(own == c) + np.mean(draw.fit.y == c)) / (len(own) + 1) for c in every])
            return np.broadcast_to(share, (len(X), len(every)))

        return predict


@dataclasses.dataclass(frozen=True)
class Pooled:
    """One model for all rows, with the task as a column; of classes that a task does not have, none is predicted."""

    candidates: Callable[[bool], list[Any]]
    rounds: int = 0  # of group DRO: weights of tasks move with their losses, and the model is fitted again

    def __call__(self, draw: Draw, seed: int) -> Predict:
        """Fits it."""
        selects, every = divided(draw, seed), classes_of(draw)
        column = OneHotEncoder(sparse_output=False, handle_unknown="ignore").fit(draw.fit.task[:, None])
        together = lambda X, task: np.hstack([X, column.transform(task[:, None])])  # noqa: E731
        mask = self._mask(draw, every)
        rows = draw.fit._replace(X=together(draw.fit.X, draw.fit.task))
        model = self._fitted(draw, rows, selects, every, mask)

        def predict(X: np.ndarray, task: str) -> np.ndarray:
            found = outputs(model, together(X, np.full(len(X), task)), every)
            return restricted(found, mask[task]) if draw.classes else found

        return predict

    def _mask(self, draw: Draw, every: np.ndarray) -> dict[str, np.ndarray]:
        """The classes of each task: where few tasks have all, those among its rows; else all."""
        own = {task: np.isin(every, draw.fit.y[draw.fit.task == task]) for task in np.unique(draw.fit.task)}
        whole = np.mean([mask.all() for mask in own.values()]) > 0.5 if draw.classes else True
        return {task: np.ones(len(every), bool) if whole else mask for task, mask in own.items()}

    def _fitted(self, draw: Draw, rows: Rows, selects: np.ndarray, every: np.ndarray, mask: dict) -> Any:
        if not self.rounds:
            return self._best(draw, rows, selects, every, mask, np.ones(len(rows.y)))
        names, number = np.unique(rows.task, return_inverse=True)
        counts = np.bincount(number)
        heavy = counts >= 20  # others are too few to steer
        weights = heavy / heavy.sum()
        total = np.zeros(len(rows.y))
        for _ in range(self.rounds):  # exponentiated ascent; the model is that of the mean weights
            weight = (weights / counts)[number] * len(rows.y)
            total += weight / self.rounds
            model = self._fit(self.candidates(draw.classes)[MIDDLE], rows, weight)
            found = outputs(model, rows.X, every)
            own = np.array([mask[t] for t in names])[number] if draw.classes else None
            losses = row_losses(restricted(found, own) if draw.classes else found, rows.y, every)
            means = np.bincount(number, losses) / counts
            scale = 2.0 / max(means[heavy].std(), 1e-9) / self.rounds**0.5
            weights = np.where(heavy, weights * np.exp(scale * (means - means[heavy].mean())), 0)
            weights = weights / weights.sum()
        return self._best(draw, rows, selects, every, mask, total)

    def _best(self, draw: Draw, rows: Rows, selects: np.ndarray, every: np.ndarray, mask: dict, weight: Any) -> Any:
        found, candidates = [], self.candidates(draw.classes)
        for candidate in candidates:
            self._fit(candidate, Rows(*(c[~selects] for c in rows)), weight[~selects])
            made = outputs(candidate, rows.X[selects], every)
            if draw.classes:
                made = restricted(made, np.array([mask[t] for t in rows.task[selects]]))
            losses = row_losses(made, rows.y[selects], every)
            found.append(np.average(losses, weights=weight[selects]))
        return self._fit(candidates[int(np.argmin(found))], rows, weight)

    def _fit(self, model: Any, rows: Rows, weight: np.ndarray) -> Any:
        name = f"{model.steps[-1][0]}__sample_weight" if hasattr(model, "steps") else "sample_weight"
        return model.fit(rows.X, rows.y, **{name: weight + 1e-9})


def restricted(found: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Probabilities among the classes of a task."""
    found = found * mask + 1e-12 * mask
    return found / found.sum(axis=1, keepdims=True)


METHODS: dict[str, Callable[[Draw, int], Predict]] = {
    "robust": Ours({}),
    "robust, regret": Ours({"weighting": "regret"}),
    "min-avg": Ours({"weighting": "min-avg"}),
    "min-max before": Ours(BEFORE),
    "alone, linear": Alone(linear),
    "alone, cross-validated": Alone(cross_validated),
    "alone, boosted": Alone(boosted),
    "pooled, linear": Pooled(linear),
    "pooled, boosted": Pooled(boosted),
    "group DRO": Pooled(linear, rounds=10),
}
IDEAL = "ideal moment"  # asked for by name, where it is looked at: it uses test rows
