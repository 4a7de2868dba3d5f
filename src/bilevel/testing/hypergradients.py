"""What every estimator must do."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.typing import DTypeLike

from bilevel.hypergradients.base import Hypergradient
from bilevel.oracles.lower import Replay, steps_of
from bilevel.oracles.upper import Point, Upper
from bilevel.problem.per_task import PerTask, for_tasks
from bilevel.problem.problem import Problem
from bilevel.problem.task import Task
from bilevel.testing.comparing import (
    PRECISIONS,
    other_values,
    precision,
    require,
    require_close,
    require_like,
    require_pytree,
)

SETTLE = 200  # calls of `prepare` until what is tracked has settled
DRAWS = 1000  # over which estimates that are random are averaged
ROUNDING = 4096  # units in the last place that are allowed for rounding
CURVATURE = 2.0  # the largest of the lower problems; the smallest is 1
LOWER_STEPS = 60  # for estimators that differentiate through them


class _Estimate(NamedTuple):
    """What an estimator makes of a point, once it has settled."""

    losses: jax.Array  # the surrogates' last values
    gradient: Any  # the surrogates' mean gradients, one per task


def check_hypergradient(estimator: Hypergradient, tolerance: float | None = None) -> None:
    """Raises an AssertionError unless an estimator does what every estimator must.

    In float32 and float64, on two small quadratic tasks of condition 2 whose lower problems are solved: the surrogate's
    gradient is f_x - J A^-1 f_y in closed form, once `prepare` was called often enough for what is tracked to settle,
    and on average over 1,000 draws; its value is f_i; `prepare` keeps structure, shapes and dtypes of the state;
    nothing is remembered outside the state; it gives the same under `jax.vmap`; other numbers in the estimator do not
    compile again.

    Args:
        estimator: to be checked. Where it needs the curvature or lower steps to replay, it gets them.
        tolerance: how far the gradient may be from the true one, relative to it; None = what the estimator states as
            its `gradient_error`.

    >>> from bilevel.hypergradients import ConjugateGradient
    >>> check_hypergradient(ConjugateGradient())
    """
    require(
        isinstance(estimator, Hypergradient),
        f"{estimator!r} is no Hypergradient: it needs bilevel.hypergradients.Hypergradient as its base.",
    )
    require_pytree(estimator, "estimator")
    try:
        estimator.check()
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{estimator}.check() refuses it: {error}") from error
    allowed = estimator.gradient_error if tolerance is None else tolerance
    for dtype in PRECISIONS:
        with precision(dtype):
            _check_in(estimator, allowed, dtype)


def _check_in(estimator: Hypergradient, tolerance: float, dtype: DTypeLike) -> None:
    name = f"{estimator} in {jnp.dtype(dtype)}"
    problem, points, key = _quadratics(dtype), _points(dtype), jax.random.key(0)
    _check_shapes(name, estimator, problem, points[0])
    traces: list[None] = []

    def estimate(estimator: Hypergradient, x: Any) -> _Estimate:
        traces.append(None)
        return _estimate(estimator, problem, x, key)

    # Unoptimised: compiling takes longer than running.
    compiled = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    batched = compiled(jax.vmap(estimate, in_axes=(None, 0)))
    together = batched(estimator, jax.tree.map(lambda *leaves: jnp.stack(leaves), *points))
    for k, x in enumerate(points):
        found = jax.tree.map(lambda a, k=k: a[k], together)
        _check_point(name, problem, x, found, tolerance, estimator.value_error)
    if dtype == PRECISIONS[0]:
        return  # what follows does not depend on the dtype, and compiles again
    traces.clear()
    alone = compiled(estimate)  # traced again: what Python remembers of the first time would show too
    found = alone(estimator, points[0])
    first = jax.tree.map(lambda a: a[0], together)
    require_close(f"{name}: under vmap and without, or called again, it is not the same", found, first, ulps=ROUNDING)
    alone.trace(other_values(estimator), points[0])
    require(len(traces) == 1, f"{name}: other numbers in the estimator compile again: declare them with bl.leaf().")


def _check_shapes(name: str, estimator: Hypergradient, problem: Problem, x: Any) -> None:
    """`prepare` keeps what the state is made of, and the surrogate is a scalar whose gradient is like x."""

    def states(x: Any) -> tuple[PerTask[Any], PerTask[Any]]:
        upper, point, samples = *_oracle(estimator, problem, x), problem.draw_upper(jax.random.key(0))
        first = upper.init(point, samples)
        return first, upper.prepare(point._replace(v=first), samples)

    def slope(x: Any, v: PerTask[Any]) -> Any:
        upper, point = _oracle(estimator, problem, x)
        return upper.directions(point._replace(v=v), problem.draw_upper(jax.random.key(0))).direction

    first, after = jax.eval_shape(states, x)
    require_like(f"{name}: the state after prepare", after, first)
    gradient = jax.eval_shape(slope, x, first)
    each = jax.tree.map(lambda a: jax.ShapeDtypeStruct((problem.size, *a.shape), a.dtype), x)
    require_like(f"{name}: the surrogate's gradient", gradient, each)


def _check_point(
    name: str, problem: Problem, x: Any, found: _Estimate, tolerance: float, value_tolerance: float
) -> None:
    """The value is f_i, and the gradient the true one."""
    rounding = ROUNDING * float(jnp.finfo(found.losses.dtype).eps)
    losses, gradients = _truth(problem, x)
    error = np.max(np.abs(found.losses - losses) / np.abs(losses))
    allowed = value_tolerance + rounding
    require(
        error <= allowed,
        f"{name}: the surrogate's value is {found.losses}, {error:.3g} of f_i away from f_i = {losses}; allowed "
        f"are {allowed:.3g}. Subtract what it adds: s - jax.lax.stop_gradient(s) has the value 0.",
    )
    estimates = np.asarray(jax.vmap(lambda d: ravel_pytree(d)[0])(found.gradient))
    require(np.all(np.isfinite(estimates)), f"{name}: the surrogate's gradient is not finite: {estimates}.")
    error = np.max(np.linalg.norm(estimates - gradients, axis=1) / np.linalg.norm(gradients, axis=1))
    require(
        error <= tolerance + rounding,
        f"{name}: the surrogate's gradient is {estimates}, which is {error:.3g} away from f_x - J A^-1 f_y = "
        f"{gradients}, relative to it; allowed are {tolerance + rounding:.3g}.",
    )


def _oracle(estimator: Hypergradient, problem: Problem, x: Any) -> tuple[Upper, Point]:
    """At y*(x); the estimator gets the curvature and lower steps only where it needs them."""
    y, dtype = _solved(problem, x), jnp.result_type(*jax.tree.leaves(x))
    curvature = problem.fill(CURVATURE, dtype) if estimator.needs_curvature else None
    upper = Upper(problem, estimator, _replay(y, problem, dtype) if estimator.needs_replay else None)
    return upper, Point(x, y, jnp.ones(problem.size, dtype), PerTask(((),)), curvature)


def _estimate(estimator: Hypergradient, problem: Problem, x: Any, key: jax.Array) -> _Estimate:
    """What an estimator says at y*(x), after many steps."""
    upper, point = _oracle(estimator, problem, x)
    first = upper.init(point, problem.draw_upper(key))

    def step(k: jax.Array, carry: tuple[PerTask[Any], _Estimate]) -> tuple[PerTask[Any], _Estimate]:
        v, sums = carry
        seen = upper.directions(point._replace(v=v), problem.draw_upper(jax.random.fold_in(key, k)))
        add = lambda total, d: total + jnp.where(k < SETTLE, 0, d / DRAWS)  # noqa: E731
        return seen.v, _Estimate(seen.losses, jax.tree.map(add, sums.gradient, seen.direction))

    zeros = jax.tree.map(lambda a: jnp.zeros((problem.size, *a.shape), a.dtype), x)
    start = first, _Estimate(jnp.zeros_like(point.weights), zeros)
    return jax.lax.fori_loop(0, SETTLE + DRAWS, step, start)[1]


def _replay(y: PerTask[Any], problem: Problem, dtype: DTypeLike) -> Replay:
    """Lower steps that started elsewhere and end at y*."""
    away = jax.tree.map(lambda a: a + 1, y)
    rate = problem.fill(1 / CURVATURE, dtype)
    steps = steps_of(away, for_tasks(optax.sgd(0.1).init, away), rate, PerTask((None,)))
    return Replay(steps, optax.sgd, LOWER_STEPS)


# ------------------------------------------------------------------ the tasks


def _quadratics(dtype: DTypeLike) -> Problem:
    """g = (y - B x)' A (y - B x) / 2 with 1 <= A <= 2, f = |y - t|^2 / 2 + |x|^2 / 4."""
    generator = np.random.default_rng(0)

    def matrix() -> np.ndarray:
        basis, _ = np.linalg.qr(generator.normal(size=(3, 3)))
        return basis @ np.diag([1.0, 1.5, CURVATURE]) @ basis.T

    def task() -> Task:
        train = {"A": matrix(), "B": generator.normal(size=(3, 3))}
        train = {name: jnp.asarray(value, dtype)[None] for name, value in train.items()}
        y = {"w": jnp.zeros(2, dtype), "b": jnp.zeros((), dtype)}
        return Task(train, jnp.asarray(generator.normal(size=(1, 3)), dtype), y=y)

    return Problem(_upper, _lower, [task(), task()])


def _points(dtype: DTypeLike) -> list[Any]:
    generator = np.random.default_rng(1)
    draw = lambda *shape: jnp.asarray(generator.normal(size=shape), dtype)  # noqa: E731
    return [{"shared": draw(2), "scale": draw()} for _ in range(2)]


def _upper(x: Any, y: Any, batch: jax.Array) -> jax.Array:
    near = jnp.sum((_flat(y)[None] - batch) ** 2, axis=1)
    return jnp.mean(near) / 2 + jnp.sum(_flat(x) ** 2) / 4


def _lower(x: Any, y: Any, batch: Any) -> jax.Array:
    gap = _flat(y)[None] - batch["B"] @ _flat(x)
    return jnp.mean(jnp.einsum("ni,nij,nj->n", gap, batch["A"], gap)) / 2


def _flat(tree: Any) -> jax.Array:
    return ravel_pytree(tree)[0]


def _solved(problem: Problem, x: Any) -> PerTask[Any]:
    """y* = B x of every task."""
    (group,) = problem.groups
    _, unravel = ravel_pytree(jax.tree.map(lambda a: a[0], group.y))
    return PerTask((jax.vmap(unravel)(group.train.data["B"][:, 0] @ _flat(x)),))


def _truth(problem: Problem, x: Any) -> tuple[np.ndarray, np.ndarray]:
    """f_i and f_x - J A^-1 f_y of every task; J = -B' A, so that the latter is f_x + B' f_y."""
    (group,) = problem.groups
    B, target = (np.asarray(data, float)[:, 0] for data in (group.train.data["B"], group.validation.data))
    flat = np.asarray(_flat(x), float)
    f_y = B @ flat - target
    losses = np.sum(f_y**2, axis=1) / 2 + flat @ flat / 4
    return losses, flat / 2 + np.einsum("nij,ni->nj", B, f_y)
