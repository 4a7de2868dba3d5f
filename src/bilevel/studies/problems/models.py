"""Ready problems whose models are linear in what each task fits: shared hyperparameters, multi-task learning, AUC."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bilevel import Generator, MinMaxProblem, MultiBlockProblem, Problem, Task, constraints
from bilevel._core.values import number, whole
from bilevel.problem.task import ROLES, TaskStack
from bilevel.studies.problems.closed_form import Ready

Shared = dict[str, jax.Array]  # x: bandwidth and penalty


class FourierLogistic:
    """The two losses; `W` is one matrix for all tasks."""

    def __init__(self, W: jax.Array):
        self.W = W

    def upper(self, x: Shared, y: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        """The mean logistic loss."""
        points, signs = batch
        phase = (points * x["bandwidth"][None]) @ self.W.T
        features = jnp.concatenate(sincos(phase), axis=1)
        return jnp.mean(jax.nn.softplus(-signs * (features @ y)))

    def lower(self, x: Shared, y: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        """The same with the weighted ridge penalty."""
        return self.upper(x, y, batch) + jnp.sum((x["penalty"] * y) ** 2)


@functools.cache
def _fourier_losses(frequencies: int, d: int, seed: int, dtype: str) -> FourierLogistic:
    """One object for equal arguments. JAX compares functions by identity, and equal ones should compile once."""
    return FourierLogistic(jnp.asarray(np.random.default_rng(seed).normal(size=(frequencies, d)), dtype))


def hyperparameters(
    tasks: Sequence[Task],
    frequencies: int = 128,
    lower_batch: int | None = 8,
    upper_batch: int | None = 8,
    bandwidth: float = 1.0,
    penalty: float = 0.1,
    seed: int = 0,
) -> Ready[Problem, Shared]:
    """The paper's hyperparameter optimisation for any binary tasks: kernel logistic regression.

    With W a fixed random normal matrix (K x d) and * entry by entry, a point p has the random Fourier features

        phi(p) = [sin(W (bandwidth * p)), cos(W (bandwidth * p))]                 (2K of them)

    every task fits a linear model y_i on them, and x = {bandwidth >= 0, penalty >= 0} is shared:

        g_i(x, y) = mean logistic loss of y on training rows + ||penalty * y||^2
        f_i(x, y) = mean logistic loss of y on validation rows

    Reference: Gu, Lu, Ram, Weng, ICLR 2023, section 4, "Hyperparameter optimization".

    Args:
        tasks: rows (points, labels -1 or 1), as `datasets.letter_pairs` gives.
        frequencies: K; every task fits 2K numbers.
        lower_batch: training rows per step and task.
        upper_batch: validation rows per step and task.
        bandwidth: the initial value of every bandwidth.
        penalty: the initial value of every penalty.
        seed: of W.
    """
    tasks = listed("hyperparameters", tasks)
    whole("frequencies", frequencies, of="hyperparameters")
    number("bandwidth", bandwidth, least=0, of="hyperparameters")
    number("penalty", penalty, least=0, of="hyperparameters")
    first = points_of("hyperparameters", tasks[0])
    check_signs("hyperparameters", tasks)
    d = first.shape[1]
    losses = _fourier_losses(frequencies, d, seed, str(jnp.asarray(first).dtype))
    W = losses.W
    tasks = [dataclasses.replace(task, y=jnp.zeros(2 * frequencies, W.dtype)) for task in tasks]
    problem = Problem(losses.upper, losses.lower, tasks, constraints.NonNegative(), lower_batch, upper_batch)
    x = {"bandwidth": jnp.full(d, bandwidth, W.dtype), "penalty": jnp.full(2 * frequencies, penalty, W.dtype)}
    return Ready(problem, x)


Error = Callable[[jax.Array, jax.Array], jax.Array]


def logistic(prediction: jax.Array, sign: jax.Array) -> jax.Array:
    """log(1 + exp(-sign prediction)), for labels -1 and 1."""
    return jax.nn.softplus(-sign * prediction)


@dataclasses.dataclass(frozen=True)
class LinearModel:
    """The loss of a linear model; equal ones compile once."""

    error: Error
    penalty: float

    def __call__(self, x: dict[str, jax.Array], batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        """The mean error plus the ridge."""
        points, targets = batch
        return jnp.mean(self.error(points @ x["w"] + x["b"], targets)) + self.penalty * jnp.sum(x["w"] ** 2)


def multitask(
    tasks: Sequence[Task | TaskStack], error: Error = logistic, penalty: float = 1e-3, batch: int | None = None
) -> Ready[MinMaxProblem, dict[str, jax.Array]]:
    """Minimax multi-task learning: one linear model for all tasks, good on the worst of them.

    With x = {w, b} shared and no y,

        F_i(x) = mean over the rows of task i of error(w . point + b, target) + penalty ||w||^2

    The ridge is the same for all tasks, so that the worst F_i is the worst mean error plus the ridge; it is part of the
    losses that a run reports. Minimising the worst is the paper's minimax; its relaxation with slack of price 1/alpha,
    between the worst and the mean, is the same problem with weights capped at 1/alpha: `bl.weightings.CVaR(alpha / n)`.

    Reference: Mehta, Lee, Gray, "Minimax multi-task learning and a generalized loss-compositional paradigm for MTL",
    NeurIPS 2012.

    Args:
        tasks: rows (points, targets).
        error: error(prediction, target) of every row: `logistic`, for labels -1 and 1, or for instance
            `optax.squared_error`.
        penalty: of the ridge.
        batch: rows per step and task; None = all.
    """
    tasks = listed("multitask", tasks, stacks=True)
    check_callable("multitask", "error", error, "(prediction, target)")
    number("penalty", penalty, least=0, of="multitask")
    points = jnp.asarray(points_of("multitask", tasks[0]))
    if error is logistic:
        check_signs("multitask", tasks)
    x = {"w": jnp.zeros(points.shape[-1], points.dtype), "b": jnp.zeros((), points.dtype)}
    return Ready(MinMaxProblem(LinearModel(error, penalty), tasks, batch=batch), x)


AUCWeights = dict[str, jax.Array]  # of x: W, a and b; of a head y: w and b
AUCRows = dict[str, jax.Array]  # point, sign, share (p_i) and task (i)


@dataclasses.dataclass(frozen=True)
class AUCModel:
    """The two losses; x and y are dicts of arrays, and so are rows."""

    activation: Callable[[jax.Array], jax.Array]
    penalty: float

    def scores(self, x: AUCWeights, y: AUCWeights, points: jax.Array) -> jax.Array:
        """h of each row."""
        return self.activation(points @ x["W"]) @ y["w"] + y["b"]

    def upper(self, x: AUCWeights, dual: jax.Array, y: AUCWeights, batch: AUCRows) -> jax.Array:
        """The min-max form of the square surrogate."""
        h, share = self.scores(x, y, batch["point"]), batch["share"]
        positive = (batch["sign"] > 0).astype(h.dtype)
        negative = 1 - positive
        spread = (1 - share) * positive * (h - x["a"][batch["task"]]) ** 2
        spread += share * negative * (h - x["b"][batch["task"]]) ** 2
        gap = h * (share * negative - (1 - share) * positive)
        return jnp.mean(spread + 2 * (1 + dual) * gap + share * (1 - share) * (1 - dual**2))

    def lower(self, x: AUCWeights, y: AUCWeights, batch: AUCRows) -> jax.Array:
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
) -> Ready[MultiBlockProblem, AUCWeights]:
    """Multi-task AUC maximisation, for `bl.MMB`: a shared representation under which each task's classifier ranks well.

    With phi(x, point) = activation(point W) shared, task i has a head y_i fitted by regularised logistic loss, scores
    h = phi(x, point) . y_i.w + y_i.b, and a share p of positive rows. The area under its ROC curve is the chance that a
    positive row scores above a negative one; its square surrogate is the mean over such pairs of
    (1 - h_positive + h_negative)^2. Times p (1 - p), the surrogate is the minimum over a_i and b_i and the maximum over
    a number `dual` of a mean over single rows:

        f_i(x, dual, y) = mean of  (1 - p) (h - a_i)^2 [positive] + p (h - b_i)^2 [negative]
                                   + 2 (1 + dual) h (p [negative] - (1 - p) [positive]) + p (1 - p) (1 - dual^2)
        g_i(x, y)       = mean of  log(1 + exp(-sign h)) + penalty (|y.w|^2 + y.b^2)

    a_i and b_i, at their best the mean scores of the two classes, are stored in x, one of each per task. The heads are
    fitted by the lower level on training rows, x on validation rows.

    References: Ying, Wen, Lyu, "Stochastic online AUC maximization", NeurIPS 2016, for the min-max form; Hu, Zhong,
    Yang, "Multi-block min-max bilevel optimization with applications in multi-task deep AUC maximization", NeurIPS
    2022, for many tasks. Which parts are shared and which are the tasks' own here is our choice.

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
        rows = {role: None if data is None else _auc_rows(data, i, role, dtype) for role, data in roles.items()}
        own.append(dataclasses.replace(task, **rows, y=y))
    model = AUCModel(activation, penalty)
    problem = MultiBlockProblem(
        model.upper,
        model.lower,
        own,
        dual=jnp.zeros((), dtype),
        dual_constraint=constraints.Box(-reach, reach),
        lower_batch=lower_batch,
        upper_batch=upper_batch,
    )
    W = np.random.default_rng(seed).normal(size=(d, features)) / np.sqrt(d)
    x = {"W": jnp.asarray(W, dtype), "a": jnp.zeros(len(own), dtype), "b": jnp.zeros(len(own), dtype)}
    return Ready(problem, x)


def _auc_rows(data: tuple[ArrayLike, ArrayLike], i: int, role: str, dtype: np.dtype) -> AUCRows:
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


PIECES = np.array([1.5703125, 4.825592041015625e-4, 1.2675907950567314e-6], np.float32)  # they add up to pi/2
SINE = np.array([-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4], np.float32)
COSINE = np.array([4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5], np.float32)


@jax.custom_jvp
def sincos(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(sin x, cos x), in float32 at a tenth of the cost of both; other types use JAX's functions.

    XLA computes them apart, each for arguments of any size, and on a CPU that is most of a step with random Fourier
    features. Here one reduction to [-pi/4, pi/4] serves both: x = k pi/2 + r, with pi/2 in three pieces (Cody and
    Waite, 1980), and the polynomials of the Cephes library for r. The first two pieces have 8 bits, so that their
    products with k < 2^16 are exact even where a product and a sum are not fused; the last is so small that its
    rounding does not matter. Errors stay below 1e-7 for |x| < 1e5; beyond that float32 itself cannot tell phases apart.

    >>> [round(float(value), 6) for value in sincos(jnp.float32(2.0))]
    [0.909297, -0.416147]
    """
    if x.dtype != jnp.float32:
        return jnp.sin(x), jnp.cos(x)
    k = jnp.round(x * np.float32(2 / np.pi))
    r = ((x - k * PIECES[0]) - k * PIECES[1]) - k * PIECES[2]
    square = r * r
    sine = r + r * square * (SINE[0] + square * (SINE[1] + square * SINE[2]))
    cosine = 1 - square / 2 + square * square * (COSINE[0] + square * (COSINE[1] + square * COSINE[2]))
    quarter = k.astype(jnp.int32)  # turns: odd ones swap the two, and every second pair changes a sign
    swapped = (quarter & 1) == 1
    first, second = jnp.where(swapped, cosine, sine), jnp.where(swapped, sine, cosine)
    return jnp.where((quarter & 2) == 0, first, -first), jnp.where(((quarter + 1) & 2) == 0, second, -second)


@sincos.defjvp
def _sincos_jvp(primals: tuple, tangents: tuple) -> tuple:
    sine, cosine = sincos(*primals)
    return (sine, cosine), (cosine * tangents[0], -sine * tangents[0])


def listed(owner: str, tasks: Any, stacks: bool = False) -> list[Any]:
    """Checks tasks, and returns a list of at least one, whose first has the sizes; `stacks` allows `Task.stack`."""
    tasks = [tasks] if isinstance(tasks, (Task, TaskStack)) else tasks
    if not isinstance(tasks, Iterable):
        raise TypeError(f"{owner}(tasks=...) got {type(tasks).__name__}: it needs a sequence of bl.Task.")
    tasks = list(tasks)
    if not tasks:
        raise ValueError(f"{owner}(tasks=...) got no tasks: it needs at least one.")
    for task in tasks:
        if not isinstance(task, (Task, TaskStack) if stacks else Task):
            raise TypeError(f"{owner}(tasks=...) got {type(task).__name__}: it needs bl.Task, one for each task.")
    return tasks


def points_of(owner: str, task: Task | TaskStack) -> Any:
    """The points of a task's training rows, which must be a pair of arrays, points and targets."""
    rows = task.train
    if isinstance(rows, Generator) or not isinstance(rows, (tuple, list)) or len(rows) != 2:
        raise TypeError(
            f"{owner}(tasks=...) got training rows of type {type(rows).__name__}: it needs a pair of arrays, "
            "(points, targets)."
        )
    if not hasattr(rows[0], "shape") or len(rows[0].shape) != 2 + isinstance(task, TaskStack):
        raise ValueError(
            f"{owner}(tasks=...) got training points of type {type(rows[0]).__name__} and shape {np.shape(rows[0])}: "
            "it needs an array of shape (rows, numbers)."
        )
    return rows[0]


def check_signs(owner: str, tasks: Iterable[Task | TaskStack]) -> None:
    """Raises unless all labels are -1 or 1: rows with the label 0 would have a constant loss."""
    for which, labels in _labels(tasks):
        others = labels[np.abs(labels) != 1]
        if others.size:
            raise ValueError(f"{owner}(tasks=...): {which} label {others[0]:g}; it needs labels -1 and 1.")


def check_classes(owner: str, tasks: Iterable[Task | TaskStack], classes: int) -> None:
    """Raises unless all labels are classes 0, 1, ...: -1 would mean the last class."""
    for which, labels in _labels(tasks):
        others = labels[(labels < 0) | (labels >= classes) | (labels != np.round(labels))]
        if others.size or labels.dtype.kind not in "iu":
            shown = f"{others[0]:g}" if others.size else f"dtype {labels.dtype}"
            raise ValueError(
                f"{owner}(tasks=...): {which} label {shown}; it needs whole numbers from 0 to {classes - 1}, the "
                f"classes of {classes} outputs."
            )


def check_callable(owner: str, name: str, value: object, takes: str) -> None:
    """Raises unless it is a function."""
    if not callable(value):
        raise TypeError(f"{owner}({name}=...) got {value!r}: it needs a function of {takes}.")


def _labels(tasks: Iterable[Task | TaskStack]) -> Iterator[tuple[str, np.ndarray]]:
    """The labels of each task and role that has rows, and does not draw them by a Generator; and words for an error."""
    for i, task in enumerate(tasks):
        name = getattr(task, "name", None)
        for role in ROLES:
            rows = getattr(task, role)
            if isinstance(rows, (tuple, list)) and len(rows) == 2:
                yield f"task {i if name is None else repr(name)} has the {role}", np.asarray(rows[1])
