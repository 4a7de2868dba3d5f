"""Random quadratic problems of chosen condition."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core.values import number, positive, whole
from bilevel.problem.problem import Problem
from bilevel.problem.task import Task
from bilevel.problems.ready import Ready


def upper(x, y, batch):
    """(y - t)' C (y - t) / 2."""
    gap = y[None] - batch["t"]
    return jnp.mean(jnp.einsum("ri,rij,rj->r", gap, batch["C"], gap)) / 2


def lower(x, y, batch):
    """(y - B x)' A (y - B x) / 2."""
    gap = y[None] - jnp.einsum("rij,j->ri", batch["B"], x)
    return jnp.mean(jnp.einsum("ri,rij,rj->r", gap, batch["A"], gap)) / 2


def _hessian(generator: np.random.Generator, d: int, condition: float) -> np.ndarray:
    basis, _ = np.linalg.qr(generator.normal(size=(d, d)))
    return basis @ np.diag(np.geomspace(1, condition, d)) @ basis.T


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
        rows["A"].append(_hessian(generator, y_size, lower_condition))
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
    return Ready(Problem(upper, lower, [stack]), jnp.zeros(x_size))
