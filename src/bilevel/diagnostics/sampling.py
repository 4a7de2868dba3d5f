"""Mean and variance of an estimator at one fixed point, over the samples a solver would draw; its error."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.typing import DTypeLike

from bilevel._core.module import part
from bilevel._core.types import Count, Tree
from bilevel.hypergradients.hypergradient import Hypergradient
from bilevel.hypergradients.upper import Point, Upper
from bilevel.lower.steps import Replay, draw_steps, first_of, steps_of
from bilevel.problem.per_task import PerTask, for_tasks
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Sample
from bilevel.rates import curvature
from bilevel.rates.curvature import LowerCurvature

LONGEST = 20_000  # the most steps for an estimator to settle


@part
class SampledEstimator:
    """An estimator, and the number of lower steps that it may replay."""

    hypergradient: Hypergradient
    lower_steps: int = 1

    @property
    def borrows(self) -> bool:
        """Whether it needs curvatures or lower steps from a solver."""
        return self.hypergradient.needs_curvature or self.hypergradient.needs_replay


class EstimateMoments(NamedTuple):
    """Moments of the estimates: one row per task, and a last row for their average."""

    number: jax.Array
    mean: jax.Array  # (tasks + 1, numbers in x)
    spread: jax.Array  # sum of |estimate - mean|^2
    lagged: jax.Array  # sum of <estimate - mean, last estimate - mean>
    last: jax.Array  # the last deviation

    @property
    def variance(self) -> jax.Array:
        """E |estimate - mean|^2."""
        return jnp.maximum(self.spread, 0) / jnp.maximum(self.number - 1, 1)

    @property
    def error(self) -> jax.Array:
        """The standard error of the mean."""
        return jnp.sqrt(self.variance / self.number * self.memory)

    @property
    def memory(self) -> jax.Array:
        """How many consecutive estimates are worth one independent estimate."""
        lag = jnp.clip(self.lagged / jnp.where(self.spread > 0, self.spread, 1), 0, 0.9999)
        return (1 + lag) / (1 - lag)


class Chain(NamedTuple):
    """A running estimator: its state, and the moments of its estimates."""

    step: jax.Array
    state: PerTask[Tree]
    lower: PerTask[LowerCurvature] | None  # where the estimator needs curvatures from a solver
    moments: EstimateMoments


def moments_of(
    estimate: SampledEstimator, problem: Problem, x: Tree, y: PerTask[Tree], samples: int, seed: int
) -> tuple[EstimateMoments, bool]:
    """Moments over `samples` samples at (x, y) after the estimator has settled there, and whether it has.

    An estimator with a state runs in stretches of doubling length until two in a row have the same mean.
    """
    key = jax.random.key(seed)
    chain = _begin(estimate, problem, x, y, key)
    settled = not jax.tree.leaves(chain.state)
    before, length, used = None, 100, 0
    while not settled and used < LONGEST:
        chain = _run(estimate, problem, x, y, chain, key, length)
        settled = before is not None and bool(_alike(before, chain.moments))
        before, used, length = chain.moments, used + length, 2 * length
        if not bool(jnp.all(jnp.isfinite(before.mean))):
            break
    return _run(estimate, problem, x, y, chain, key, samples).moments, settled


@jax.jit
def _begin(estimate: SampledEstimator, problem: Problem, x: Tree, y: PerTask[Tree], key: jax.Array) -> Chain:
    keys = jax.random.split(key)
    known = curvature.lower(problem, x, y, keys[0]) if estimate.borrows else None
    flat, _ = ravel_pytree(x)
    point = _point(problem, x, y, PerTask(((),) * len(y)), known, flat.dtype)
    state = _upper(estimate, problem, y, known, None).init(point, problem.draw_upper(keys[1]))
    rows = jnp.zeros((problem.size + 1, flat.size), flat.dtype)
    numbers = rows[:, 0]
    zero = jnp.zeros((), jnp.int32)
    return Chain(zero, state, known, EstimateMoments(zero, rows, numbers, numbers, rows))


@jax.jit
def _run(
    estimate: SampledEstimator, problem: Problem, x: Tree, y: PerTask[Tree], chain: Chain, key: jax.Array, steps: Count
) -> Chain:
    """Takes more estimates; the moments are of these alone."""

    def one(_: object, chain: Chain) -> Chain:
        lower_key, upper_key = jax.random.split(jax.random.fold_in(key, 2 + chain.step))
        known, drawn = chain.lower, None
        if known is not None:
            drawn = draw_steps(problem, lower_key, estimate.lower_steps)
            known = curvature.follow_lower(problem, x, y, first_of(drawn), known)
        upper = _upper(estimate, problem, y, known, drawn)
        point = _point(problem, x, y, chain.state, known, chain.moments.mean.dtype)
        seen = upper.directions(point, problem.draw_upper(upper_key))
        each = jax.vmap(lambda d: ravel_pytree(d)[0])(seen.direction)
        rows = jnp.concatenate([each, jnp.mean(each, axis=0, keepdims=True)])
        return Chain(chain.step + 1, seen.v, known, _add(chain.moments, rows))

    chain = chain._replace(moments=jax.tree.map(jnp.zeros_like, chain.moments))
    return jax.lax.fori_loop(0, steps, one, chain)


def _point(
    problem: Problem,
    x: Tree,
    y: PerTask[Tree],
    v: PerTask[Tree],
    known: PerTask[LowerCurvature] | None,
    dtype: DTypeLike,
) -> Point:
    curvatures = None if known is None else PerTask(tuple(group.value for group in known))
    return Point(x, y, jnp.full(problem.size, 1 / problem.size, dtype), v, curvatures)


def _upper(
    estimate: SampledEstimator,
    problem: Problem,
    y: PerTask[Tree],
    known: PerTask[LowerCurvature] | None,
    drawn: PerTask[Sample] | None,
) -> Upper:
    """The estimator, with the lower steps from y that a solver would provide."""
    replay = None
    if estimate.hypergradient.needs_replay and known is not None and drawn is not None:
        rates = for_tasks(lambda found: 1 / jnp.where(found.value > 0, found.value, 1), known)
        steps = steps_of(y, for_tasks(optax.sgd(0.1).init, y), rates, drawn)
        replay = Replay(steps, optax.sgd, estimate.lower_steps)
    return Upper(problem, estimate.hypergradient, replay)


def _add(known: EstimateMoments, rows: jax.Array) -> EstimateMoments:
    """Welford's update. The variance of constant estimates is exactly zero."""
    count = known.number + 1
    before = jnp.where(known.number > 0, rows - known.mean, 0)
    mean = jnp.where(known.number > 0, known.mean + before / count, rows)
    after = rows - mean
    dot = lambda a, b: jnp.sum(a * b, axis=1)  # noqa: E731
    return EstimateMoments(count, mean, known.spread + dot(before, after), known.lagged + dot(after, known.last), after)


@jax.jit
def _alike(one: EstimateMoments, other: EstimateMoments) -> jax.Array:
    """Whether two means are equal up to noise and rounding."""
    eps = jnp.finfo(one.mean.dtype).eps
    apart = jnp.linalg.norm(one.mean - other.mean, axis=1)
    size = jnp.linalg.norm(other.mean, axis=1)
    # A slow drift looks like noise with a long memory: only a stretch much longer than that memory tells them apart.
    noise = jnp.where(10 * other.memory <= other.number, 2 * jnp.hypot(one.error, other.error), 0)
    return jnp.all(apart <= jnp.maximum(1e-9, 100 * eps) * size + noise)


@dataclasses.dataclass(frozen=True, eq=False)
class EstimateErrors:
    """Estimates beside the true gradient: a row per task, or those of the average over the tasks.

    Attributes:
        exact: the true gradient, flat.
        mean: the mean of the estimates.
        variance: E |estimate - mean|^2.
        standard_error: the standard error of the mean.
        scale: the unit of biases: |exact|; for the average the mean of the tasks' |exact|, as gradients of tasks that
            pull apart cancel.
        rounding: the approximate rounding error.
    """

    exact: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    standard_error: np.ndarray
    scale: np.ndarray
    rounding: float

    @property
    def size(self) -> np.ndarray:
        """|exact|."""
        return np.linalg.norm(self.exact, axis=-1)

    @property
    def bias(self) -> np.ndarray:
        """|mean - exact|."""
        return np.linalg.norm(self.mean - self.exact, axis=-1)

    @property
    def relative_error(self) -> np.ndarray:
        """|mean - exact| / |exact|."""
        return _ratio(self.bias, self.size)

    @property
    def noise(self) -> np.ndarray:
        """sqrt(variance) / |exact|: how far one estimate deviates."""
        return _ratio(np.sqrt(self.variance), self.size)

    @property
    def cosine(self) -> np.ndarray:
        """The cosine between mean and exact; 0 where one of them is 0."""
        product = np.linalg.norm(self.mean, axis=-1) * self.size
        return np.sum(self.mean * self.exact, axis=-1) / np.where(product > 0, product, 1)

    @property
    def hidden(self) -> np.ndarray:
        """The relative bias that noise can hide."""
        return _ratio(4 * self.standard_error, self.scale)

    def is_biased(self, tolerance: float) -> np.ndarray:
        """Whether the bias exceeds this fraction of the gradient by more than noise and rounding explain."""
        return ~(self.bias - 4 * self.standard_error - self.rounding <= tolerance * self.scale)


def errors_of(
    exact: np.ndarray, mean: np.ndarray, variance: np.ndarray, error: np.ndarray
) -> tuple[EstimateErrors, EstimateErrors]:
    """The errors of the tasks, and those of their average, which is the last row of the estimates."""
    eps = np.finfo(exact.dtype).eps
    exact, mean, variance, error = (np.asarray(a, float) for a in (exact, mean, variance, error))
    sizes = np.linalg.norm(exact, axis=1)
    rounding = float(1000 * eps * np.max(sizes))
    tasks = EstimateErrors(exact, mean[:-1], variance[:-1], error[:-1], sizes, rounding)
    return tasks, EstimateErrors(exact.mean(axis=0), mean[-1], variance[-1], error[-1], np.mean(sizes), rounding)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """above / below; 0 / 0 = 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(above == 0, 0.0, above / below)
