"""Logistic regression towards a centre: what scikit-learn's has no offset for.

    y* = argmin_y  mean of w l(phi y, t) + penalty(y),      l the cross-entropy over the known classes

with the penalty of `objectives`. Two classes need one column, y_1 - y_0, with the centre c_1 - c_0 and strengths p/2:
Newton's steps, halved until they descend. For more classes, L-BFGS in z = (y - c) sqrt(p), where the penalty is
|z|^2 - <z, u>^2 / (q + |u|^2) with u = c sqrt(p).
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
import scipy.optimize
from scipy.special import expit, logsumexp

STEPS = 100
ENOUGH = 1e-12  # what a Newton step may still lower g by, in units of g
HIDDEN = -1e9  # the score of a class that a row cannot have


def fit(
    features: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray,
    penalty: np.ndarray,
    centre: np.ndarray,
    known: np.ndarray | None = None,
) -> np.ndarray:
    """y*, one column a class.

    Args:
        features: of each row, without a column of ones.
        target: of each row, the number of its class.
        weight: of each row, with mean 1.
        penalty: p, of each feature and of the intercept, and q.
        centre: c, (features + 1, classes).
        known: which classes each row may have; None = all.
    """
    if centre.shape[1] > 2 or known is not None:
        return _several(features, target, weight, penalty, centre, known)
    halved, start = np.append(penalty[:-1] / 2, penalty[-1]), centre[:, 1] - centre[:, 0]
    d = _two(features, target == 1, weight, halved, start)
    scaled = halved[:-2] * start[:-1]
    a = scaled @ (d - start)[:-1] / (halved[-1] + scaled @ start[:-1])
    middle = centre.mean(axis=1) * np.append(np.full(len(d) - 1, 1 + a), 1)  # as the centre, on the task's scale
    return np.column_stack([middle - d / 2, middle + d / 2])


def matrix(penalty: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """P with penalty(y) = (y - c)' P (y - c), of one column."""
    p, scaled = penalty[:-1], np.append(penalty[:-2] * centre[:-1], 0)
    return np.diag(p) - np.outer(scaled, scaled) / (penalty[-1] + scaled @ centre)


def _two(
    features: np.ndarray, is_one: np.ndarray, weight: np.ndarray, penalty: np.ndarray, start: np.ndarray
) -> np.ndarray:
    share, d, P = weight / len(weight), start.astype(np.float64), matrix(penalty, start)

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
