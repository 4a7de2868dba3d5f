"""The heads of tasks: fitted to convergence on fixed features, and judged on held-out rows.

    y* = argmin_y  mean of w l(phi y, t) + penalty(y)

with the penalty of `objectives`. Least squares has a closed form. For classes, l is the cross-entropy over the known
classes, and this is logistic regression towards a centre, for which scikit-learn's has no offset. Two classes need one
column, y_1 - y_0, with the centre c_1 - c_0 and strengths p/2; Newton steps are halved until they descend. For more
classes L-BFGS works in z = (y - c) sqrt(p), where the penalty is |z|^2 - <z, u>^2 / (q + |u|^2) with u = c sqrt(p).

`Judge` chooses the strength of the penalty and the confidence of outputs, and measures each task's loss with them.
During a run heads follow the network and do not converge, which regularises them. The heads of the final model do
converge, and need at least as strong a penalty. So heads are fitted to convergence on training rows, with the learnt
penalties times a factor, and their outputs are multiplied by the confidence, a number up to 1. The pair of factor and
confidence with the lowest losses on held-out rows is taken. Why confidence: a network learnt from few rows makes heads
overconfident, most of all in the tasks with the noisiest targets, which are the worst tasks, and one number mends much
of that.

If the worst task counts, "lowest" means the lowest m + r (w - m), where m is the mean over tasks and w the mean over
the worst third. The loss of the worst task alone is mostly noise: it comes from few rows, and is the largest of many.
For regression r says how far the differences between tasks exceed noise,

    r = max(0, v - e) / v

with v the variance of the tasks' losses and e the mean square of their standard errors. For classes r is the mean of
this and 1: few rows do not show that the labels of some tasks are noisy, and those tasks lose most by overconfidence.
Both rules were chosen on the development problems of `benchmarks/unseen`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.optimize
from scipy.special import expit, logsumexp, softmax
from threadpoolctl import ThreadpoolController

from bilevel.estimators.networks import Shared
from bilevel.estimators.rows import EVALUATED, PARTS, WeightedRows

LARGE = 2**24  # from this many numbers on, the features of a task are kept in single precision
LEAST = 1e-9  # the smallest penalty, which keeps linear systems solvable
STEPS = 100  # of Newton's method, at most
ENOUGH = 1e-12  # Newton's method stops when a step can lower g by less than this, relative to g
HIDDEN = -1e9  # the score of a class that a row cannot have


class Head(NamedTuple):
    """Outputs are features @ weights + intercept."""

    weights: np.ndarray  # (features, outputs)
    intercept: np.ndarray  # (outputs,)
    classes: np.ndarray  # the label of each output; none for regression

    def outputs(self, features: np.ndarray) -> np.ndarray:
        """The outputs for rows of features, in double precision."""
        return features.astype(np.float64) @ self.weights + self.intercept

    def scaled(self, confidence: float) -> Head:
        """A head with less confident outputs: nearer to equal scores of all classes, or to the intercept.

        For classes the intercept is scaled too, because features are not centred. It is left alone if there are no
        weights, because it then holds the shares of the classes.
        """
        intercept = self.intercept * confidence if len(self.classes) and np.any(self.weights) else self.intercept
        return self._replace(weights=self.weights * confidence, intercept=intercept)

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """The probabilities of its classes."""
        return softmax(self.outputs(features), axis=1)


class TaskRows(NamedTuple):
    """The rows of one task."""

    X: np.ndarray
    place: np.ndarray  # their rows in X
    target: np.ndarray
    weight: np.ndarray  # with mean 1

    @classmethod
    def of(cls, X: np.ndarray, rows: WeightedRows) -> TaskRows:
        """Takes the rows of one task."""
        return cls(X, rows.place, rows.target, rows.weight / rows.weight.mean())


def least_squares(shared: Shared, rows: TaskRows, penalty: np.ndarray, centre: np.ndarray | None = None) -> Head:
    """A head by the normal equations, which are summed chunk by chunk."""
    count, size = len(rows.place), shared.features + 1
    A, b = np.zeros((size, size)), np.zeros(size)
    with _threads(count * size):
        for place, features in shared.blocks(rows.X, rows.place):
            with_one = np.column_stack([features.astype(np.float64), np.ones(len(features))])
            weighted = with_one * rows.weight[place, None]
            A += weighted.T @ with_one
            b += weighted.T @ rows.target[place]
        c = np.zeros(size) if centre is None else centre[:, 0]
        P = count * penalty_matrix(np.maximum(penalty, LEAST), c)
        A, b = A + P, b + P @ c
        y = scipy.linalg.solve(A, b, assume_a="pos")
    return Head(y[:-1, None], y[-1:], np.empty(0))


def classes(
    shared: Shared,
    rows: TaskRows,
    penalty: np.ndarray,
    own: np.ndarray,
    centre: np.ndarray | None,
    known: np.ndarray | None = None,
) -> Head:
    """A head by logistic regression, multinomial for three classes or more.

    Args:
        shared: what computes features.
        rows: the rows of the task; targets are numbers of the head's classes.
        penalty: of each feature, of the intercept and of the scale.
        own: the labels of the head's classes.
        centre: one column for each of these classes; None = 0.
        known: which of these classes each row may have; None = all.
    """
    dtype = np.float64 if len(rows.place) * shared.features <= LARGE else np.float32
    features = shared.transform(rows.X, rows.place, dtype)
    centre = np.zeros((shared.features + 1, len(own))) if centre is None else centre
    with _threads(features.size):
        y = logistic_regression(features, rows.target, rows.weight, np.maximum(penalty, LEAST), centre, known)
    return Head(y[:-1], y[-1], own)


def constant(shared: Shared, label: object, count: float, classes: np.ndarray, shares: np.ndarray) -> Head:
    """A head for a task with one label: the shares of classes among its rows and one average row of all tasks."""
    found = (count * (classes == label) + shares) / (count + 1)
    return Head(np.zeros((shared.features, len(classes))), np.log(found), classes)


_controller = functools.cache(ThreadpoolController)  # slow to make: it looks through all loaded libraries


def _threads(numbers: int) -> contextlib.AbstractContextManager:
    """Limits small products to one thread: on busy cores, several wait for each other a hundred times as long."""
    return _controller().limit(limits=1, user_api="blas") if numbers <= LARGE else contextlib.nullcontext()


# ------------------------------------------------------------------ logistic regression


def logistic_regression(
    features: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray,
    penalty: np.ndarray,
    centre: np.ndarray,
    known: np.ndarray | None = None,
) -> np.ndarray:
    """y*, with one column for each class, by the penalty (p, q) and the centre c. Features have no column of ones."""
    if centre.shape[1] > 2 or known is not None:
        return _several(features, target, weight, penalty, centre, known)
    halved, start = np.append(penalty[:-1] / 2, penalty[-1]), centre[:, 1] - centre[:, 0]
    d = _two(features, target == 1, weight, halved, start)
    scaled = halved[:-2] * start[:-1]
    a = scaled @ (d - start)[:-1] / (halved[-1] + scaled @ start[:-1])
    middle = centre.mean(axis=1) * np.append(np.full(len(d) - 1, 1 + a), 1)  # that of the centre, on the task's scale
    return np.column_stack([middle - d / 2, middle + d / 2])


def penalty_matrix(penalty: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """P with penalty(y) = (y - c)' P (y - c), for one column."""
    p, scaled = penalty[:-1], np.append(penalty[:-2] * centre[:-1], 0)
    return np.diag(p) - np.outer(scaled, scaled) / (penalty[-1] + scaled @ centre)


def _two(
    features: np.ndarray, is_one: np.ndarray, weight: np.ndarray, penalty: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """The difference of the columns of two classes, by Newton's method."""
    share, d, P = weight / len(weight), start.astype(np.float64), penalty_matrix(penalty, start)

    def scores(d: np.ndarray) -> np.ndarray:
        return features @ d[:-1].astype(features.dtype) + d[-1]

    def value(d: np.ndarray, s: np.ndarray) -> float:
        return float(share @ np.logaddexp(0, np.where(is_one, -s, s)) + (d - start) @ P @ (d - start))

    s = scores(d)
    g = value(d, s)
    for _ in range(STEPS):
        chance = expit(s)
        residual, curvature = share * (chance - is_one), share * chance * (1 - chance)
        slope = np.append(features.T @ residual.astype(features.dtype), residual.sum()) + 2 * P @ (d - start)
        weighted = features * curvature[:, None].astype(features.dtype)
        H = np.empty((len(d), len(d)))
        H[:-1, :-1], H[-1, :-1], H[-1, -1] = weighted.T @ features, weighted.sum(axis=0), curvature.sum()
        H[:-1, -1] = H[-1, :-1]
        step = scipy.linalg.solve(H + 2 * P, slope, assume_a="pos", check_finite=False)
        gain, length = float(slope @ step), 1.0
        if gain <= ENOUGH * max(g, 1e-3):
            break
        while length > 1e-6:
            new = d - length * step
            s = scores(new)
            if (lower := value(new, s)) <= g - 1e-4 * length * gain:
                break
            length /= 2
        else:
            break  # rounding
        d, g = new, lower
    return d


def _several(
    features: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray,
    penalty: np.ndarray,
    centre: np.ndarray,
    known: np.ndarray | None,
) -> np.ndarray:
    """The same for three classes or more, by L-BFGS."""
    count, root = len(target), np.sqrt(penalty[:-1])[:, None]
    u = root * centre
    u[-1] = 0
    least = penalty[-1] + np.sum(u**2)
    share, right = weight / count, np.arange(centre.shape[1])[None] == target[:, None]

    def both(flat: np.ndarray) -> tuple[float, np.ndarray]:
        z = flat.reshape(centre.shape)
        y = centre + z / root
        scores = features @ y[:-1].astype(features.dtype) + y[-1]
        scores = scores if known is None else np.where(known, scores, HIDDEN)
        whole = np.asarray(logsumexp(scores, axis=1))
        residual = share[:, None] * (np.exp(scores - whole[:, None]) - right)
        along = np.sum(u * z)
        slope = np.vstack([features.T @ residual.astype(features.dtype), residual.sum(axis=0)]) / root
        slope += 2 * z - 2 * along / least * u
        return float(share @ (whole - scores[right]) + np.sum(z**2) - along**2 / least), slope.ravel()

    options = {"maxiter": 1000, "gtol": 1e-7, "ftol": 1e-14, "maxcor": 20}
    found = scipy.optimize.minimize(both, np.zeros(centre.size), jac=True, method="L-BFGS-B", options=options)
    return centre + found.x.reshape(centre.shape) / root


# ------------------------------------------------------------------ judging

FACTORS = (1.0, 3.0, 10.0, 30.0)
CENTRED = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)  # from almost one model a task to almost one for all
CONFIDENCES = (1.0, 0.7, 0.5, 0.3, 0.15)
TASKS = 64  # both are chosen by the tasks with the largest weights, at most this many
WORST = 1 / 3  # the mean over this share of the tasks stands for the worst


class Judged(NamedTuple):
    """The factor, the confidence, and each task's loss on selection rows."""

    factor: float
    confidence: float
    losses: np.ndarray


class Judge(NamedTuple):
    """Fits and judges the heads of the tasks of some rows, which are numbered from 0."""

    X: np.ndarray
    rows: WeightedRows
    fit: Callable[[TaskRows, float], Head]  # with a factor
    features: Callable[[TaskRows], np.ndarray]
    row_losses: Callable[[Head, np.ndarray, np.ndarray], np.ndarray]  # of features and targets
    train: tuple[str, ...] = ("train",)  # the rows that heads see
    held_out: tuple[str, ...] = ("validation", "selection")  # the rows that choose factor and confidence
    least: float = 0.0  # r, if all differences between tasks may be noise

    def judged(self, weights: np.ndarray, factors: Sequence[float], share: float, baseline: np.ndarray) -> Judged:
        """The best pair for this share of the tasks, the worst ones, and each task's loss with it."""
        asked = np.argsort(-weights, kind="stable")[:TASKS]
        pairs = list(itertools.product(factors, CONFIDENCES))
        found = np.array([self._losses(k, factors, CONFIDENCES, self.held_out) for k in asked])
        means, errors = found[..., 0] - baseline[asked, None], found[..., 1]
        factor, confidence = pairs[int(np.argmin(criterion(means, errors, share, self.least)))]
        losses = [self._losses(k, [factor], [confidence], ("selection",))[0][0] for k in range(len(weights))]
        return Judged(factor, confidence, np.array(losses))

    def _losses(
        self, task: int, factors: Sequence[float], confidences: Sequence[float], held_out: Sequence[str]
    ) -> list[tuple[float, float]]:
        """The loss of a task and its standard error, for each factor and confidence."""
        begin, end = np.searchsorted(self.rows.task, [task, task + 1])
        own = self.rows.take(np.arange(begin, end))
        train, held = self._rows(own, self.train), self._rows(own, held_out)
        features = self.features(held)
        heads = [self.fit(train, factor) for factor in factors]
        pairs = ((head, confidence) for head in heads for confidence in confidences)
        found = (held.weight * self.row_losses(head.scaled(c), features, held.target) for head, c in pairs)
        return [(float(np.mean(rows)), float(np.std(rows) / max(len(rows) - 1, 1) ** 0.5)) for rows in found]

    def _rows(self, own: WeightedRows, parts: Sequence[str]) -> TaskRows:
        numbers = [np.flatnonzero(own.part == PARTS.index(part))[:EVALUATED] for part in parts]
        return TaskRows.of(self.X, own.take(np.concatenate(numbers)))


def criterion(losses: np.ndarray, errors: np.ndarray, share: float, least: float) -> np.ndarray:
    """m + r (w - m) for each column of (tasks, candidates), with v and e taken at the candidate with the lowest m.

    >>> losses = np.array([[0.0, 1.0], [0.0, 1.0], [9.0, 4.0]])
    >>> criterion(losses, np.zeros((3, 2)), share=0, least=0).tolist()
    [9.0, 4.0]
    >>> criterion(losses, np.full((3, 2), 9.0), share=0, least=0).tolist()
    [3.0, 2.0]
    >>> criterion(losses, np.full((3, 2), 9.0), share=0, least=0.5).tolist()
    [6.0, 3.0]
    """
    mean = losses.mean(axis=0)
    count = int(np.ceil(max(share, WORST) * len(losses)))
    if count == len(losses):
        return mean
    usual = int(np.argmin(mean))
    spread = losses[:, usual].var(ddof=1)
    known = max(0.0, spread - np.mean(errors[:, usual] ** 2)) / spread if spread > 0 else 0.0
    worst = np.sort(losses, axis=0)[-count:].mean(axis=0)
    return mean + (least + (1 - least) * known) * (worst - mean)
