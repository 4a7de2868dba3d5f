"""Minimax multi-task learning: one linear model for all tasks, good on the worst of them.

With x = {w, b} shared and no y,

    F_i(x) = mean over the rows of task i of error(w . point + b, target) + penalty ||w||^2

The ridge is the same for all tasks, so that the worst F_i is the worst mean error plus the ridge; it is part of the
losses that a run reports. Minimising the worst is the paper's minimax; its relaxation with slack of price 1/alpha,
between the worst and the mean, is the same problem with weights capped at 1/alpha: `bl.weightings.CVaR(alpha / n)`.

Reference: Mehta, Lee, Gray, "Minimax multi-task learning and a generalized loss-compositional paradigm for MTL",
NeurIPS 2012.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from bilevel._core.values import number
from bilevel.problem.minmax import MinMaxProblem
from bilevel.problem.task import Task, TaskStack
from bilevel.problems.ready import Ready
from bilevel.problems.rows import check_callable, check_signs, listed, points_of

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
    """Minimax multi-task learning of a linear model.

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
