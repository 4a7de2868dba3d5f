"""What every constraint, every weighting and every estimator of hypergradients must do."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike, DTypeLike

from bilevel._core.module import replace
from bilevel._core.types import Batch, Tree
from bilevel.hypergradients.hypergradient import Hypergradient
from bilevel.hypergradients.upper import Point, Upper
from bilevel.lower.steps import Replay, steps_of
from bilevel.problem.constraints import Constraint
from bilevel.problem.per_task import PerTask, for_tasks
from bilevel.problem.problem import Problem
from bilevel.problem.task import Task
from bilevel.testing.common import (
    PRECISIONS,
    Compiled,
    other_values,
    precision,
    require,
    require_accepted,
    require_close,
    require_like,
    require_part,
)
from bilevel.weightings.base import Weighting

X = TypeVar("X")
# ------------------------------------------------------------------ constraints

POINTS = 12
SIZES = (0.1, 1.0, 10.0)  # of the points: near the example, and far outside of most sets


def check_constraint(constraint: Constraint, example: object) -> None:
    """Raises an AssertionError unless a constraint keeps its promises for an x like `example`.

    In float32 and float64: `project` keeps structure, shapes and dtypes; projecting twice is projecting once; no two
    points are farther apart than before; the projection of x is nearer to x than other points of the set, so that
    <x - p, z - p> <= 0 for every member z; batched it gives the same; differentiated, the gradient of
    |x - p|^2 / 2 is x - p; other numbers in the constraint do not compile again.

    Args:
        constraint: to be checked.
        example: a pytree of floating-point arrays of the shapes that the constraint is for; points are drawn around it.

    >>> import bilevel as bl
    >>> check_constraint(bl.constraints.Ball(2.0), example=jnp.zeros(3))
    """
    require_part(constraint, Constraint, "constraints.Constraint", "constraint")
    require_accepted(constraint, "example", example)
    for dtype in PRECISIONS:
        with precision(dtype):
            _check_constraint_in(constraint, example, dtype)


def _check_constraint_in(constraint: Constraint, example: object, dtype: DTypeLike) -> None:
    name = f"{constraint} in {jnp.dtype(dtype)}"
    points = _drawn(example, dtype)
    project = Compiled(lambda constraint, x: constraint.project(x))
    projected = [project(constraint, x) for x in points]
    for x, p in zip(points, projected, strict=True):
        require_like(f"{name}: the projection", p, x)
        require_close(f"{name}: projecting twice is not projecting once", project(constraint, p), p)
    project.compiled.trace(other_values(constraint), points[0])
    project.require_one_trace(name, "constraint")
    _check_distances(name, points, projected)
    _check_transformed(name, project, constraint, points, projected)


def _drawn(example: X, dtype: DTypeLike) -> list[X]:
    generator = np.random.default_rng(0)

    def draw(leaf: jax.Array, size: float) -> jax.Array:
        return jnp.asarray(np.asarray(leaf, float) + size * generator.normal(size=np.shape(leaf)), dtype)

    return [jax.tree.map(lambda a, size=SIZES[k % 3]: draw(a, size), example) for k in range(POINTS)]


def _vector(x: object) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, float).ravel() for leaf in jax.tree.leaves(x)])


def _check_distances(name: str, points: list[X], projected: list[X]) -> None:
    """The projection is non-expansive, and nearer than the other members at hand: the other points' projections."""
    eps = float(jnp.finfo(jax.tree.leaves(points[0])[0].dtype).eps)
    vectors, members = [_vector(x) for x in points], [_vector(p) for p in projected]
    scale = 1 + max(np.abs(v).max(initial=0) for v in (*vectors, *members))
    allowed = 64 * eps * scale**2 * len(vectors[0])
    for x, p in zip(vectors, members, strict=True):
        for z, q in zip(vectors, members, strict=True):
            require(
                np.sum((p - q) ** 2) <= np.sum((x - z) ** 2) + allowed,
                f"{name}: {x} and {z} are farther apart after the projection, at {p} and {q}.",
            )
            require(
                (x - p) @ (q - p) <= allowed,
                f"{name}: {p} is not the nearest point to {x}: going towards the member {q} comes nearer.",
            )


def _check_transformed(
    name: str, project: Callable, constraint: Constraint, points: list[X], projected: list[X]
) -> None:
    """vmap gives the same; the gradient of half the squared distance is x - project(x)."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *points)
    batched = jax.vmap(project, in_axes=(None, 0))(constraint, stacked)
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *projected)
    require_close(f"{name}: under vmap and without", batched, together)

    def half_square(x: X) -> jax.Array:
        return optax.tree.norm(optax.tree.sub(x, constraint.project(x)), squared=True) / 2

    slopes = jax.jit(jax.vmap(jax.grad(half_square)))(stacked)
    way = jax.tree.map(lambda x, p: x - p, stacked, together)
    require_close(f"{name}: the gradient of half the squared distance is not x - project(x)", slopes, way, ulps=1e3)


# ------------------------------------------------------------------ weightings

UPDATES = 12
RATES = (1e-3, 0.3, 50.0)  # the last one throws weights onto the boundary


class _WeightingState(NamedTuple):
    weights: jax.Array
    state: Tree


def check_weighting(weighting: Weighting, tasks: int = 5) -> None:
    """Raises an AssertionError unless a weighting keeps its promises with this number of tasks.

    In float32 and float64: weights stay on the simplex, whatever the losses and the rate; dtypes and shapes are kept
    and the state has one row per task; `update` is pure, works under `jax.jit` and gives the same under `jax.vmap`;
    tasks that start with equal weights are treated alike; weights that do not move (`moves = False`) do not; other
    rates and other numbers in the weighting do not compile again.

    >>> from bilevel.weightings import SimplexAscent
    >>> check_weighting(SimplexAscent(lr=0.1), tasks=3)
    """
    require_part(weighting, Weighting, "weightings.Weighting", "weighting")
    require_accepted(weighting, str(tasks), tasks)
    for dtype in PRECISIONS:
        with precision(dtype):
            _check_weighting_in(weighting, tasks, dtype)


def _check_weighting_in(weighting: Weighting, tasks: int, dtype: DTypeLike) -> None:
    name = f"{weighting} in {jnp.dtype(dtype)}"
    losses = jnp.asarray(np.random.default_rng(0).normal(size=(UPDATES, tasks)) * np.geomspace(0.1, 100, tasks), dtype)
    first = _WeightingState(*weighting.init(tasks, dtype))
    require_like(f"{name}: init's weights", first.weights, jax.ShapeDtypeStruct((tasks,), dtype))
    _require_on_simplex(f"{name}: init", first.weights)
    for path, leaf in jax.tree_util.tree_leaves_with_path(first.state):
        require(
            jnp.ndim(leaf) > 0 and jnp.shape(leaf)[0] == tasks,
            f"{name}: the state{jax.tree_util.keystr(path)} has shape {jnp.shape(leaf)}: it needs one row per task, "
            f"({tasks}, ...).",
        )
    step = Compiled(_update)
    last = first
    for rate in RATES:
        last = first
        for row in losses:
            last = _WeightingState(*step(weighting, last, row, rate))
            require_like(f"{name}: update's weights and state", last, first)
            _require_on_simplex(f"{name}: update with rate {rate}", last.weights)
            if not weighting.moves:
                require(
                    np.array_equal(last.weights, first.weights),
                    f"{name}: moves is False, but update moved the weights.",
                )
    require(step.traces == 1, f"{name}: {len(RATES)} rates traced update {step.traces} times instead of once.")
    _check_update_traces(name, weighting, first, losses[0])
    _check_update_is_pure(name, weighting, last, losses[0])
    _check_batched(name, weighting, step, last, losses)
    # Large losses drive a softmax to one task, whatever is added to them; mild ones show that too.
    for row in (losses[0], losses[0] / jnp.geomspace(0.1, 100, losses.shape[1], dtype=losses.dtype)):
        _check_symmetric(name, weighting, step, first, last, row)


def _update(weighting: Weighting, seen: _WeightingState, losses: jax.Array, rate: ArrayLike) -> tuple[jax.Array, Tree]:
    return weighting.update(seen.weights, losses, seen.state, rate)


def _require_on_simplex(name: str, weights: jax.Array) -> None:
    given = np.asarray(weights, float)
    require(np.all(given >= 0), f"{name} gives weights {given}, some of which are negative or NaN.")
    allowed = 64 * len(given) * float(jnp.finfo(weights.dtype).eps)
    require(abs(given.sum() - 1) <= allowed, f"{name} gives weights that sum to {given.sum()!r}: they need the sum 1.")


def _check_update_traces(name: str, weighting: Weighting, first: _WeightingState, losses: jax.Array) -> None:
    """Other numbers in the weighting itself, its rate among them, must not compile again."""
    step = Compiled(_update)
    has_rate = dataclasses.is_dataclass(weighting) and "lr" in (f.name for f in dataclasses.fields(weighting))
    one, other = (replace(weighting, lr=lr) if has_rate else weighting for lr in (0.3, 0.7))
    for values in (one, other_values(other)):
        jax.eval_shape(step, values, first, losses, 0.3)
    step.require_one_trace(name, "weighting")


def _check_update_is_pure(name: str, weighting: Weighting, seen: _WeightingState, losses: jax.Array) -> None:
    before = jax.tree.map(np.array, (weighting, seen))
    # Compiled from two traces, so that memory in Python between them shows.
    once, twice = (Compiled(_update)(weighting, seen, losses, 0.3) for _ in range(2))
    same = jax.tree.map(np.array_equal, before, (weighting, seen))
    require(all(jax.tree.leaves(same)), f"{name}: update is not pure: it changes its input.")
    require_close(f"{name}: update is not pure: called twice, it differs", twice, once)


def _check_batched(name: str, weighting: Weighting, step: Callable, seen: _WeightingState, losses: jax.Array) -> None:
    batched = jax.vmap(step, in_axes=(None, None, 0, None))(weighting, seen, losses, 0.3)
    single = [step(weighting, seen, row, 0.3) for row in losses]
    require_close(
        f"{name}: update under vmap and without", batched, jax.tree.map(lambda *rows: jnp.stack(rows), *single)
    )


def _check_symmetric(
    name: str, weighting: Weighting, step: Callable, first: _WeightingState, last: _WeightingState, losses: jax.Array
) -> None:
    """Permuting tasks that started with equal weights permutes the weights and the state."""
    start = np.asarray(first.weights)
    order = np.arange(len(start))
    for value in np.unique(start):
        alike = np.flatnonzero(start == value)
        order[alike] = np.roll(alike, 1)
    permuted = jax.tree.map(lambda a: a[order], last)
    got = step(weighting, permuted, losses[order], 0.3)
    wanted = jax.tree.map(lambda a: a[order], step(weighting, last, losses, 0.3))
    require_close(f"{name}: permuting tasks of equal weight does not permute what update gives", got, wanted)


# ------------------------------------------------------------------ estimators

SETTLE = 200  # calls of `prepare` until tracked values settle
DRAWS = 1000  # that random estimates are averaged over
ROUNDING = 4096  # units in the last place that are allowed for rounding
CURVATURE = 2.0  # the largest of the lower problems; the smallest is 1
LOWER_STEPS = 60  # for estimators that differentiate through them


class _Estimate(NamedTuple):
    losses: jax.Array  # the surrogates' last values
    gradient: Tree  # the surrogates' mean gradients, one per task


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
    require_part(estimator, Hypergradient, "hypergradients.Hypergradient", "estimator")
    require_accepted(estimator, "")
    allowed = estimator.gradient_error if tolerance is None else tolerance
    for dtype in PRECISIONS:
        with precision(dtype):
            _check_estimator_in(estimator, allowed, dtype)


def _check_estimator_in(estimator: Hypergradient, tolerance: float, dtype: DTypeLike) -> None:
    name = f"{estimator} in {jnp.dtype(dtype)}"
    problem, points, key = _quadratics(dtype), _points(dtype), jax.random.key(0)
    _check_estimator_shapes(name, estimator, problem, points[0])

    def estimate(estimator: Hypergradient, x: Tree) -> _Estimate:
        return _estimate(estimator, problem, x, key)

    # Unoptimised: compiling takes longer than running.
    compiled = functools.partial(Compiled, compiler_options={"xla_backend_optimization_level": 0})
    batched = compiled(jax.vmap(estimate, in_axes=(None, 0)))
    together = batched(estimator, jax.tree.map(lambda *leaves: jnp.stack(leaves), *points))
    for k, x in enumerate(points):
        found = jax.tree.map(lambda a, k=k: a[k], together)
        _check_point(name, problem, x, found, tolerance, estimator.value_error)
    if dtype == PRECISIONS[0]:
        return  # the rest does not depend on the dtype, and would compile again
    alone = compiled(estimate)  # traced again, so that memory in Python shows too
    found = alone(estimator, points[0])
    first = jax.tree.map(lambda a: a[0], together)
    require_close(f"{name}: under vmap and without, or called again, it is not the same", found, first, ulps=ROUNDING)
    alone.compiled.trace(other_values(estimator), points[0])
    alone.require_one_trace(name, "estimator")


def _check_estimator_shapes(name: str, estimator: Hypergradient, problem: Problem, x: Tree) -> None:
    """`prepare` keeps the structure of the state, and the surrogate is a scalar whose gradient is like x."""

    def states(x: Tree) -> tuple[PerTask[Tree], PerTask[Tree]]:
        upper, point, samples = *_oracle(estimator, problem, x), problem.draw_upper(jax.random.key(0))
        first = upper.init(point, samples)
        return first, upper.prepare(point._replace(v=first), samples)

    def slope(x: Tree, v: PerTask[Tree]) -> Tree:
        upper, point = _oracle(estimator, problem, x)
        return upper.directions(point._replace(v=v), problem.draw_upper(jax.random.key(0))).direction

    first, after = jax.eval_shape(states, x)
    require_like(f"{name}: the state after prepare", after, first)
    gradient = jax.eval_shape(slope, x, first)
    each = jax.tree.map(lambda a: jax.ShapeDtypeStruct((problem.size, *a.shape), a.dtype), x)
    require_like(f"{name}: the surrogate's gradient", gradient, each)


def _check_point(
    name: str, problem: Problem, x: Tree, found: _Estimate, tolerance: float, value_tolerance: float
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


def _oracle(estimator: Hypergradient, problem: Problem, x: Tree) -> tuple[Upper, Point]:
    """The oracle and its point at y*(x). The estimator gets curvature and lower steps only if it needs them."""
    y, dtype = _solved(problem, x), jnp.result_type(*jax.tree.leaves(x))
    curvature = problem.fill(CURVATURE, dtype) if estimator.needs_curvature else None
    upper = Upper(problem, estimator, _replay(y, problem, dtype) if estimator.needs_replay else None)
    return upper, Point(x, y, jnp.ones(problem.size, dtype), PerTask(((),)), curvature)


def _estimate(estimator: Hypergradient, problem: Problem, x: Tree, key: jax.Array) -> _Estimate:
    upper, point = _oracle(estimator, problem, x)
    first = upper.init(point, problem.draw_upper(key))

    def step(k: jax.Array, carry: tuple[PerTask[Tree], _Estimate]) -> tuple[PerTask[Tree], _Estimate]:
        v, sums = carry
        seen = upper.directions(point._replace(v=v), problem.draw_upper(jax.random.fold_in(key, k)))
        add = lambda total, d: total + jnp.where(k < SETTLE, 0, d / DRAWS)  # noqa: E731
        return seen.v, _Estimate(seen.losses, jax.tree.map(add, sums.gradient, seen.direction))

    zeros = jax.tree.map(lambda a: jnp.zeros((problem.size, *a.shape), a.dtype), x)
    start = first, _Estimate(jnp.zeros_like(point.weights), zeros)
    return jax.lax.fori_loop(0, SETTLE + DRAWS, step, start)[1]


def _replay(y: PerTask[Tree], problem: Problem, dtype: DTypeLike) -> Replay:
    """Lower steps that started elsewhere and end at y*."""
    away = jax.tree.map(lambda a: a + 1, y)
    rate = problem.fill(1 / CURVATURE, dtype)
    steps = steps_of(away, for_tasks(optax.sgd(0.1).init, away), rate, PerTask((None,)))
    return Replay(steps, optax.sgd, LOWER_STEPS)


# ------------------------------------------------------------------ the tasks of estimators


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


def _points(dtype: DTypeLike) -> list[Tree]:
    generator = np.random.default_rng(1)
    draw = lambda *shape: jnp.asarray(generator.normal(size=shape), dtype)  # noqa: E731
    return [{"shared": draw(2), "scale": draw()} for _ in range(2)]


def _upper(x: Tree, y: Tree, batch: jax.Array) -> jax.Array:
    near = jnp.sum((_flat(y)[None] - batch) ** 2, axis=1)
    return jnp.mean(near) / 2 + jnp.sum(_flat(x) ** 2) / 4


def _lower(x: Tree, y: Tree, batch: Batch) -> jax.Array:
    gap = _flat(y)[None] - batch["B"] @ _flat(x)
    return jnp.mean(jnp.einsum("ni,nij,nj->n", gap, batch["A"], gap)) / 2


def _flat(tree: Tree) -> jax.Array:
    return ravel_pytree(tree)[0]


def _solved(problem: Problem, x: Tree) -> PerTask[Tree]:
    (group,) = problem.groups
    _, unravel = ravel_pytree(jax.tree.map(lambda a: a[0], group.y))
    return PerTask((jax.vmap(unravel)(group.train.data["B"][:, 0] @ _flat(x)),))


def _truth(problem: Problem, x: Tree) -> tuple[np.ndarray, np.ndarray]:
    """f_i and f_x - J A^-1 f_y of every task; J = -B' A, so that the latter is f_x + B' f_y."""
    (group,) = problem.groups
    B, target = (np.asarray(data, float)[:, 0] for data in (group.train.data["B"], group.validation.data))
    flat = np.asarray(_flat(x), float)
    f_y = B @ flat - target
    losses = np.sum(f_y**2, axis=1) / 2 + flat @ flat / 4
    return losses, flat / 2 + np.einsum("nij,ni->nj", B, f_y)
