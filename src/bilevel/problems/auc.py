"""Multi-task AUC maximisation: a shared representation under which every task's own classifier ranks well.

With phi(x, point) = activation(point W) shared, task i has a head y_i fitted by regularised logistic loss, scores
h = phi(x, point) . y_i.w + y_i.b, and a share p of positive rows. The area under its ROC curve is the chance that a
positive row scores above a negative one; its square surrogate is the mean over such pairs of
(1 - h_positive + h_negative)^2. Times p (1 - p), the surrogate is the minimum over a_i and b_i and the maximum over a
number `dual` of a mean over single rows:

    f_i(x, dual, y) = mean of  (1 - p) (h - a_i)^2 [positive] + p (h - b_i)^2 [negative]
                               + 2 (1 + dual) h (p [negative] - (1 - p) [positive]) + p (1 - p) (1 - dual^2)
    g_i(x, y)       = mean of  log(1 + exp(-sign h)) + penalty (|y.w|^2 + y.b^2)

a_i and b_i, at their best the mean scores of the two classes, are stored in x, one of each per task. The heads are
fitted by the lower level on training rows, x on validation rows.

References: Ying, Wen, Lyu, "Stochastic online AUC maximization", NeurIPS 2016, for the min-max form; Hu, Zhong, Yang,
"Multi-block min-max bilevel optimization with applications in multi-task deep AUC maximization", NeurIPS 2022, for many
tasks. Which parts are shared and which are the tasks' own here is our choice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bilevel._core.values import number, whole
from bilevel.constraints import Box
from bilevel.problem.multiblock import MultiBlockProblem
from bilevel.problem.task import ROLES, Task
from bilevel.problems.ready import Ready
from bilevel.problems.rows import check_callable, check_signs, listed, points_of

Weights = dict[str, jax.Array]  # of x: W, a and b; of a head y: w and b
Rows = dict[str, jax.Array]  # point, sign, share (p_i) and task (i)


@dataclasses.dataclass(frozen=True)
class AUCModel:
    """The two losses; x and y are dicts of arrays, and so are rows."""

    activation: Callable[[jax.Array], jax.Array]
    penalty: float

    def scores(self, x: Weights, y: Weights, points: jax.Array) -> jax.Array:
        """h of each row."""
        return self.activation(points @ x["W"]) @ y["w"] + y["b"]

    def upper(self, x: Weights, dual: jax.Array, y: Weights, batch: Rows) -> jax.Array:
        """The min-max form of the square surrogate."""
        h, share = self.scores(x, y, batch["point"]), batch["share"]
        positive = (batch["sign"] > 0).astype(h.dtype)
        negative = 1 - positive
        spread = (1 - share) * positive * (h - x["a"][batch["task"]]) ** 2
        spread += share * negative * (h - x["b"][batch["task"]]) ** 2
        gap = h * (share * negative - (1 - share) * positive)
        return jnp.mean(spread + 2 * (1 + dual) * gap + share * (1 - share) * (1 - dual**2))

    def lower(self, x: Weights, y: Weights, batch: Rows) -> jax.Array:
        """The regularised logistic loss."""
        h = self.scores(x, y, batch["point"])
        ridge = self.penalty * (jnp.sum(y["w"] ** 2) + y["b"] ** 2)
        return jnp.mean(jax.nn.softplus(-batch["sign"] * h)) + ridge


def area_under_curve(scores: ArrayLike, signs: ArrayLike) -> float:
    """The share of pairs of a positive and a negative row that the scores put in the right order; ties count half.

    >>> area_under_curve([0.1, 0.4, 0.4, 0.9], [-1, -1, 1, 1])
    0.875
    """
    scores, positive = np.asarray(scores), np.asarray(signs) > 0
    if scores.ndim != 1 or scores.shape != positive.shape or not 0 < positive.sum() < len(positive):
        raise ValueError(
            f"area_under_curve got scores of shape {scores.shape} and {positive.sum()} positive of {positive.size} "
            "signs: it needs one score for each sign, and signs of both kinds."
        )
    gaps = scores[positive][:, None] - scores[~positive][None]
    return float(np.mean((gaps > 0) + (gaps == 0) / 2))


def auc(
    tasks: Sequence[Task],
    features: int = 8,
    activation: Callable[[jax.Array], jax.Array] = jnp.tanh,
    penalty: float = 0.01,
    reach: float = 10.0,
    lower_batch: int | None = None,
    upper_batch: int | None = None,
    seed: int = 0,
) -> Ready[MultiBlockProblem, Weights]:
    """Multi-task AUC maximisation, for `bl.MMB`.

    Args:
        tasks: rows (points, labels -1 or 1), each with labels of both kinds in its training and validation rows.
        features: how many numbers represent a point.
        activation: of the shared layer; the identity, `lambda a: a`, makes it linear.
        penalty: of the heads' ridge.
        reach: the dual variables stay within -reach and reach.
        lower_batch: training rows per step and task; None = all.
        upper_batch: validation rows per step and task; None = all.
        seed: of the first W.
    """
    tasks = listed("auc", tasks)
    whole("features", features, of="auc")
    check_callable("auc", "activation", activation, "an array")
    number("penalty", penalty, least=0, of="auc")
    number("reach", reach, least=0, of="auc")
    first = jnp.asarray(points_of("auc", tasks[0]))
    dtype, d = first.dtype, first.shape[1]
    y = {"w": jnp.zeros(features, dtype), "b": jnp.zeros((), dtype)}
    check_signs("auc", tasks)
    own = []
    for i, task in enumerate(tasks):
        roles = {role: getattr(task, role) for role in ROLES}
        rows = {role: None if data is None else _rows(data, i, role, dtype) for role, data in roles.items()}
        own.append(dataclasses.replace(task, **rows, y=y))
    model = AUCModel(activation, penalty)
    problem = MultiBlockProblem(
        model.upper,
        model.lower,
        own,
        dual=jnp.zeros((), dtype),
        dual_constraint=Box(-reach, reach),
        lower_batch=lower_batch,
        upper_batch=upper_batch,
    )
    W = np.random.default_rng(seed).normal(size=(d, features)) / np.sqrt(d)
    x = {"W": jnp.asarray(W, dtype), "a": jnp.zeros(len(own), dtype), "b": jnp.zeros(len(own), dtype)}
    return Ready(problem, x)


def _rows(data: tuple[ArrayLike, ArrayLike], i: int, role: str, dtype: np.dtype) -> Rows:
    """The rows of a task, with its number and its share of positive labels in each."""
    points, signs = data
    share = float(np.mean(np.asarray(signs) > 0))
    if not 0 < share < 1:
        raise ValueError(f"auc(tasks=...): the {role} labels of task {i} are all the same; it needs both -1 and 1.")
    rows = len(np.asarray(signs))
    return {
        "point": jnp.asarray(points, dtype),
        "sign": jnp.asarray(signs, dtype),
        "share": jnp.full(rows, share, dtype),
        "task": jnp.full(rows, i, jnp.int32),
    }
