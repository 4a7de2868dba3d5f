"""Ready problems: their types, small ones whose solution is known in closed form, and random quadratics.

opposed_slopes     two scalar tasks that pull apart
enclosing_ball     the smallest ball around four points, each task with a y of another dimension
bounded_ball       the same with a constraint that is active at the solution
noisy_ball         the same as finite sums, so that batches are noisy and the mean is exact
shrinkage          ridge penalties: not quadratic in x, as hyperparameter optimisation is
reduced_ball       the smallest ball without a lower level
adapted_ball       the same after one gradient step by each task (MAML)
random_quadratics  of chosen condition
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from bilevel import MinMaxProblem, MultiBlockProblem, Problem, Task, constraints, minmax
from bilevel._core.values import number, positive, whole

AnyProblem = Problem | MinMaxProblem | MultiBlockProblem
ProblemT = TypeVar("ProblemT", bound=AnyProblem)
X = TypeVar("X")


class Ready(NamedTuple, Generic[ProblemT, X]):
    """A problem and the initial x; tasks have their own initial y."""

    problem: ProblemT
    x: X


class Known(NamedTuple, Generic[ProblemT, X]):
    """A problem, the initial x, and its solution."""

    problem: ProblemT
    x: X  # a starting point
    solution: np.ndarray  # x*
    weights: np.ndarray  # lambda*
    value: float  # the worst loss at x*


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
        # Every row stays positive definite: noise that is too large is scaled down.
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


def enclosing_ball(constraint: constraints.Constraint | None = None) -> Known[Problem, jax.Array]:
    """l_i(x) = |x - p_i|^2 / 2 for p = (0,0), (4,0), (1,3), (2,2), through y_i* = B_i x of dimension 2, 3, 4, 5.

    The solution is the centre (2, 1) of the circle through the first three points; the weights are its barycentric
    coordinates (1/4, 5/12, 1/3, 0).
    """
    problem = Problem(ball_upper, ball_lower, _ball_tasks(1, 0.0, 0), constraint=constraint)
    solution, weights = np.array([2.0, 1.0]), np.array([1 / 4, 5 / 12, 1 / 3, 0])
    return Known(problem, jnp.array([-1.0, 3.0]), solution, weights, 5 / 2)


def bounded_ball() -> Known[Problem, jax.Array]:
    """`enclosing_ball` with x_1 <= 3/2, which is active: x* = (3/2, 1/2), weights (0, 5/6, 1/6, 0)."""
    ball = enclosing_ball(constraints.Box(-jnp.inf, jnp.array([1.5, jnp.inf])))
    return ball._replace(solution=np.array([1.5, 0.5]), weights=np.array([0, 5 / 6, 1 / 6, 0]), value=13 / 4)


def noisy_ball(
    rows: int = 32, noise: float = 1.0, lower_batch: int | None = 4, upper_batch: int | None = 4, seed: int = 0
) -> Known[Problem, jax.Array]:
    """`enclosing_ball` as finite sums: Hessians and linear terms differ from row to row, their means do not."""
    problem = Problem(ball_upper, ball_lower, _ball_tasks(rows, noise, seed), None, lower_batch, upper_batch)
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


def distance(x: jax.Array, batch: jax.Array) -> jax.Array:
    """|x - p|^2 / 2."""
    return jnp.mean(jnp.sum((x[None] - batch) ** 2, axis=1)) / 2


def scaled_distance(x: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """q |x - p|^2 / 2."""
    return jnp.mean(batch["q"] * jnp.sum((x[None] - batch["p"]) ** 2, axis=1)) / 2


def reduced_ball(constraint: constraints.Constraint | None = None) -> Known[MinMaxProblem, jax.Array]:
    """F_i(x) = |x - p_i|^2 / 2, which is `enclosing_ball` with every y_i at its optimum.

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
    problem = MinMaxProblem(scaled_distance, tasks, objective=minmax.Adapted(lr))
    ball = enclosing_ball()
    return Known(problem, ball.x, ball.solution, ball.weights, q * (1 - lr * q) ** 2 * ball.value)


def quadratic_upper(x, y, batch):
    """(y - t)' C (y - t) / 2."""
    gap = y[None] - batch["t"]
    return jnp.mean(jnp.einsum("ri,rij,rj->r", gap, batch["C"], gap)) / 2


def quadratic_lower(x, y, batch):
    """(y - B x)' A (y - B x) / 2."""
    gap = y[None] - jnp.einsum("rij,j->ri", batch["B"], x)
    return jnp.mean(jnp.einsum("ri,rij,rj->r", gap, batch["A"], gap)) / 2


def random_quadratics(
    seed: int,
    tasks: int = 8,
    x_size: int = 5,
    y_size: int = 8,
    lower_condition: float = 10.0,
    upper_condition: float = 10.0,
    x_scale: float = 1.0,
    loss_scale: float = 1.0,
) -> Ready[Problem, jax.Array]:
    """n tasks with y_i* = B_i x and l_i(x) = loss_scale (B_i x - t_i)' C_i (B_i x - t_i) / 2; x starts at zero.

    Args:
        seed: of everything random.
        tasks: n.
        x_size: the dimension of x.
        y_size: the dimension of every y_i, at least x_size.
        lower_condition: of the Hessian of every g_i in y.
        upper_condition: of the Hessian of every l_i in x.
        x_scale: the size that x is measured in.
        loss_scale: multiplies every f_i.
    """
    for name, count in (("tasks", tasks), ("x_size", x_size), ("y_size", y_size)):
        whole(name, count, of="random_quadratics")
    whole("seed", seed, least=0, of="random_quadratics")
    if y_size < x_size:
        raise ValueError(f"random_quadratics(y_size={y_size}): it needs at least x_size, {x_size}.")
    for name, value in (("lower_condition", lower_condition), ("upper_condition", upper_condition)):
        number(name, value, least=1, of="random_quadratics")
    for name, value in (("x_scale", x_scale), ("loss_scale", loss_scale)):
        positive(name, value, of="random_quadratics")
    generator = np.random.default_rng(int(seed))
    rows: dict[str, list[np.ndarray]] = {"A": [], "B": [], "C": [], "t": []}
    for _ in range(tasks):
        basis, _ = np.linalg.qr(generator.normal(size=(y_size, x_size)))
        right, _ = np.linalg.qr(generator.normal(size=(x_size, x_size)))
        stretch = np.geomspace(1, upper_condition, x_size) ** 0.5
        B = basis @ np.diag(stretch) @ right  # B' B has the chosen condition
        own, _ = np.linalg.qr(generator.normal(size=(y_size, y_size)))
        rows["A"].append(own @ np.diag(np.geomspace(1, lower_condition, y_size)) @ own.T)
        rows["B"].append(B / x_scale)
        rows["C"].append(loss_scale * np.eye(y_size))
        # A target that some x reaches, plus a part that no x can reach.
        rows["t"].append(B @ generator.normal(size=x_size) + 0.5 * generator.normal(size=y_size))
    data = {name: jnp.array(np.stack(values)[:, None]) for name, values in rows.items()}
    stack = Task.stack(
        train={name: data[name] for name in ("A", "B")},
        validation={name: data[name] for name in ("C", "t")},
        y=jnp.zeros((tasks, y_size)),
    )
    return Ready(Problem(quadratic_upper, quadratic_lower, [stack]), jnp.zeros(x_size))
