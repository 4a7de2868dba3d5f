"""Small problems whose solution is known in closed form.

opposed_slopes   two scalar tasks that pull apart
enclosing_ball   the smallest ball around four points, each task with a y of another dimension
bounded_ball     the same with a constraint that is active at the solution
noisy_ball       the same as finite sums, so that batches are noisy and the mean is exact
shrinkage        ridge penalties: not quadratic in x, as hyperparameter optimisation is
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.constraints import Box
from bilevel.problem.problem import Problem
from bilevel.problem.task import Task
from bilevel.problems.ready import Known

if TYPE_CHECKING:
    from bilevel.constraints.sets import Constraint


def squared_error(x, y, batch):
    """(y - target)^2 / 2."""
    return jnp.mean((y - batch) ** 2) / 2


def slope_lower(x, y, batch):
    """a (y - b x)^2 / 2."""
    return jnp.mean(batch["curvature"] * (y - batch["slope"] * x) ** 2) / 2


def opposed_slopes(curvatures: tuple[float, float] = (1.0, 2.0)) -> Known[Problem, jax.Array]:
    """g_1 = a_1 (y - x)^2 / 2, f_1 = (y - 2)^2 / 2 and g_2 = a_2 (y - 2x)^2 / 2, f_2 = (y + 1)^2 / 2.

    Then l_1 = (x - 2)^2 / 2 and l_2 = (2x + 1)^2 / 2, which tie at x* = 1/3 with weights (2/3, 1/3).
    """
    tasks = [
        Task(
            train={"curvature": jnp.array([a]), "slope": jnp.array([slope])},
            validation=jnp.array([target]),
            y=jnp.array(0.0),
        )
        for a, slope, target in zip(curvatures, (1.0, 2.0), (2.0, -1.0), strict=True)
    ]
    return Known(
        Problem(squared_error, slope_lower, tasks), jnp.array(1.5), np.array(1 / 3), np.array([2 / 3, 1 / 3]), 25 / 18
    )


CENTRES = ((0.0, 0.0), (4.0, 0.0), (1.0, 3.0), (2.0, 2.0))
MAPS = (  # B_i: y_i* = B_i x
    ((1, 0), (0, 1)),
    ((1, 0), (0, 1), (1, 1)),
    ((2, 0), (0, 1), (1, -1), (0, 1)),
    ((1, 1), (1, -1), (0, 2), (1, 0), (0, 1)),
)


def _lower_hessians() -> list[np.ndarray]:
    third = np.diag([1, 1.5, 2, 1.0])
    third[0, 3] = third[3, 0] = 0.25
    return [
        np.diag([1.0, 2.0]),
        np.array([[2, 0.5, 0], [0.5, 1.5, 0], [0, 0, 1.0]]),
        third,
        np.diag([1, 1.25, 1.5, 1.75, 2]),
    ]


def ball_upper(x, y, batch):
    """|C y - p|^2 / 2, plus a linear term of mean zero."""
    fit = jnp.einsum("rij,j->ri", batch["C"], y) - batch["p"]
    return jnp.mean(jnp.sum(fit**2, axis=1) / 2 + batch["w"] @ y + batch["c"])


def ball_lower(x, y, batch):
    """(y - B x)' A (y - B x) / 2, plus a linear term of mean zero."""
    gap = y[None] - jnp.einsum("rij,j->ri", batch["B"], x)
    return jnp.mean(jnp.einsum("ri,rij,rj->r", gap, batch["A"], gap) / 2 + jnp.sum(batch["q"] * gap, axis=1))


def _ball_tasks(rows: int, noise: float, seed: int) -> list[Task]:
    generator = np.random.default_rng(seed)

    def centred(*shape: int) -> np.ndarray:
        draw = noise * generator.normal(size=(rows, *shape))
        return draw - draw.mean(axis=0)

    tasks = []
    for p, B, A in zip(CENTRES, MAPS, _lower_hessians(), strict=True):
        B = np.array(B, float)
        d = len(B)
        S = centred(d, d)
        S = 0.3 * (S + S.transpose(0, 2, 1)) / 2
        # Every row stays positive definite: where the noise is too large, all of it is scaled down.
        reach = np.abs(np.linalg.eigvalsh(S)).max() if rows > 1 else 0.0
        S *= min(1.0, 0.9 * np.linalg.eigvalsh(A)[0] / reach) if reach else 1.0
        C = np.linalg.pinv(B)
        each = lambda a: np.broadcast_to(a, (rows, *np.shape(a)))  # noqa: E731
        tasks.append(
            Task(
                train={"A": jnp.array(A + S), "B": jnp.array(each(B)), "q": jnp.array(centred(d))},
                validation={
                    "C": jnp.array(each(C)),
                    "p": jnp.array(each(np.array(p))),
                    "w": jnp.array(centred(d)),
                    "c": jnp.array(centred()),
                },
                y=jnp.zeros(d),
            )
        )
    return tasks


def _start() -> jax.Array:
    return jnp.array([-1.0, 3.0])


def enclosing_ball(constraint: Constraint | None = None) -> Known[Problem, jax.Array]:
    """l_i(x) = |x - p_i|^2 / 2 for p = (0,0), (4,0), (1,3), (2,2), through y_i* = B_i x of dimension 2, 3, 4, 5.

    The solution is the centre (2, 1) of the circle through the first three points; the weights are its barycentric
    coordinates (1/4, 5/12, 1/3, 0).
    """
    problem = Problem(ball_upper, ball_lower, _ball_tasks(1, 0.0, 0), constraint=constraint)
    return Known(problem, _start(), np.array([2.0, 1.0]), np.array([1 / 4, 5 / 12, 1 / 3, 0]), 5 / 2)


def bounded_ball() -> Known[Problem, jax.Array]:
    """`enclosing_ball` with x_1 <= 3/2, which is active: x* = (3/2, 1/2), weights (0, 5/6, 1/6, 0)."""
    ball = enclosing_ball(Box(-jnp.inf, jnp.array([1.5, jnp.inf])))
    return ball._replace(solution=np.array([1.5, 0.5]), weights=np.array([0, 5 / 6, 1 / 6, 0]), value=13 / 4)


def noisy_ball(
    rows: int = 32,
    noise: float = 1.0,
    lower_batch: int | None = 4,
    upper_batch: int | None = 4,
    seed: int = 0,
) -> Known[Problem, jax.Array]:
    """`enclosing_ball` as finite sums: Hessians and linear terms differ from row to row, their means do not."""
    tasks = _ball_tasks(rows, noise, seed)
    problem = Problem(ball_upper, ball_lower, tasks, lower_batch=lower_batch, upper_batch=upper_batch)
    return enclosing_ball()._replace(problem=problem)


def shrinkage_lower(x, y, batch):
    """(y - c)^2 / 2 + e^x y^2 / 2."""
    return jnp.mean((y - batch) ** 2 + jnp.exp(x) * y**2) / 2


def shrinkage(x: float = 0.0) -> Known[Problem, jax.Array]:
    """g = (y - c)^2 / 2 + e^x y^2 / 2 and f = (y - t)^2 / 2 for (c, t) = (1, 1), (2, 0).

    With s = 1 / (1 + e^x), y* = c s, and the tasks tie at s = 1/3: x* = ln 2, weights (2/3, 1/3).
    """
    tasks = [
        Task(train=jnp.array([c]), validation=jnp.array([t]), y=jnp.array(0.0)) for c, t in ((1.0, 1.0), (2.0, 0.0))
    ]
    return Known(
        Problem(squared_error, shrinkage_lower, tasks),
        jnp.array(x),
        np.array(np.log(2)),
        np.array([2 / 3, 1 / 3]),
        2 / 9,
    )
