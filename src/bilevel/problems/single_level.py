"""Small single-level problems whose solution is known in closed form.

reduced_ball    the smallest ball around four points, without a lower level
adapted_ball    the same after one gradient step by each task (MAML)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from bilevel.problem.minmax import Adapted, MinMaxProblem
from bilevel.problem.task import Task
from bilevel.problems.closed_form import CENTRES, enclosing_ball
from bilevel.problems.ready import Known

if TYPE_CHECKING:
    from bilevel.constraints.sets import Constraint


def distance(x: jax.Array, batch: jax.Array) -> jax.Array:
    """|x - p|^2 / 2."""
    return jnp.mean(jnp.sum((x[None] - batch) ** 2, axis=1)) / 2


def scaled_distance(x: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """q |x - p|^2 / 2."""
    return jnp.mean(batch["q"] * jnp.sum((x[None] - batch["p"]) ** 2, axis=1)) / 2


def reduced_ball(constraint: Constraint | None = None) -> Known[MinMaxProblem, jax.Array]:
    """F_i(x) = |x - p_i|^2 / 2: what is left of `enclosing_ball` once every y_i is at its optimum.

    The solution is the centre (2, 1) of the circle through the first three points; the weights are (1/4, 5/12, 1/3, 0).
    """
    rows = [jnp.array([p]) for p in CENTRES]
    problem = MinMaxProblem(distance, [Task(row, row) for row in rows], constraint=constraint)
    ball = enclosing_ball()
    return Known(problem, ball.x, ball.solution, ball.weights, ball.value)


def adapted_ball(q: float = 2.0, lr: float = 0.1) -> Known[MinMaxProblem, jax.Array]:
    """A loss q |x - p_i|^2 / 2 after one gradient step of size lr: F_i(x) = q (1 - lr q)^2 |x - p_i|^2 / 2.

    The gradient has the factor 1 - lr q twice, once from the adapted gradient and once from the derivative of the step;
    first-order MAML has it once. The solution and the weights are those of `reduced_ball`.
    """
    rows = [{"p": jnp.array([p]), "q": jnp.array([q])} for p in CENTRES]
    tasks = [Task(row, row) for row in rows]
    problem = MinMaxProblem(scaled_distance, tasks, objective=Adapted(lr))
    ball = enclosing_ball()
    return Known(problem, ball.x, ball.solution, ball.weights, q * (1 - lr * q) ** 2 * ball.value)
