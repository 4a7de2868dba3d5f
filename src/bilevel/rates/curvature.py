"""Measured bounds on curvature, from which rates are chosen.

lower   the largest curvature L_i of g_i in y, by one power iteration a step
        the condition L_i / mu_i, by power iteration on A and on L_i - A
upper   the largest curvature of sum_i w_i l_i(x), by power iteration on differences of the hypergradient
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel._core import linear, pytrees
from bilevel._core.linear import hessian_product, largest_curvature, response
from bilevel._core.types import Count, Tree
from bilevel.hypergradients.exact import ConjugateGradient
from bilevel.hypergradients.upper import Point, Upper
from bilevel.problem.group import TaskView, UpperSample
from bilevel.problem.per_task import PerTask, for_tasks
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Sample

MAX_DROP = (
    4.0  # a curvature never falls below its largest recent value over this: where a loss is flat, 1 / L is unbounded
)
SLACK = 1.2  # a step exceeds the estimate where its curvature is more than this times L
DOUBLINGS = 60
MEASURING_BATCH = 128  # rows to measure with, where steps draw fewer: noise makes curvature look larger


class LowerCurvature(NamedTuple):
    """The largest curvature of each lower problem."""

    value: jax.Array
    vector: Tree  # the direction it lies in
    highest: jax.Array  # the largest recent value


class Condition(NamedTuple):
    """The largest ratio of curvatures of each lower problem."""

    value: jax.Array  # L_i / mu_i
    largest: jax.Array  # L_i
    high: Tree  # the directions they lie in
    low: Tree


class Probe(NamedTuple):
    """State of the measurement of the upper curvature."""

    value: jax.Array  # L
    vector: Tree
    slope: Tree  # the direction at x
    turns: jax.Array
    ended: jax.Array


class UpperCurvature(NamedTuple):
    """The largest curvature of the weighted upper objective."""

    value: jax.Array
    vector: Tree


def measuring(problem: Problem) -> Problem:
    """The same problem with batches large enough to measure on."""

    def enlarge(batch: int | None) -> int | None:
        return None if batch is None else max(batch, MEASURING_BATCH)

    return problem.rebatched(enlarge)


def lower(problem: Problem, x: Tree, y: PerTask[Tree], key: jax.Array) -> PerTask[LowerCurvature]:
    """Measures every lower curvature from scratch."""

    def one(task: TaskView, y: Tree, key: jax.Array) -> LowerCurvature:
        found = largest_curvature(task.lower, x, y, task.draw(key))
        return LowerCurvature(found.value, found.vector, found.value)

    return problem.each(one, y, problem.keys(key))


def follow_lower(
    problem: Problem,
    x: Tree,
    y: PerTask[Tree],
    samples: PerTask[Sample],
    known: PerTask[LowerCurvature],
    stale: bool = False,
) -> PerTask[LowerCurvature]:
    """One power iteration more: L <- max(.99 L, |A u|); where batches are drawn, at least a quarter of the largest.

    A logistic loss is flat on rows that are fitted well, and curved again on the next one that is not. The largest
    is forgotten slowly, as x may change the problem permanently.

    Where tasks are seen now and then (`stale`), x may have gone far since u was found, and one iteration from there
    says too little: the lower step overshoots, and x follows it. u is the gradient then, which is where y is about to
    go.
    """
    drop = MAX_DROP if problem.is_stochastic else jnp.inf

    def one(task: TaskView, y: Tree, sample: Sample, known: LowerCurvature) -> LowerCurvature:
        product = lambda v: hessian_product(task.lower, x, y, v, sample)  # noqa: E731
        along = jax.grad(task.lower, argnums=1)(x, y, sample) if stale else known.vector
        value, vector = linear.stretch(product, along)
        highest = jnp.maximum(0.9997 * known.highest, value).astype(known.value.dtype)
        value = jnp.maximum(jnp.maximum(0.99 * known.value, value), highest / drop)
        return LowerCurvature(value.astype(highest.dtype), vector, highest)

    return problem.each(one, y, samples, known)


def unmeasured(y: PerTask[Tree]) -> PerTask[Condition]:
    """Directions to start from."""

    def one(y: Tree) -> Condition:
        one = jnp.ones((), optax.tree.norm(y).dtype)
        return Condition(one, one, pytrees.generic(y, 2.4), pytrees.generic(y, 1.7))

    return for_tasks(one, y)


def condition(
    problem: Problem, x: Tree, y: PerTask[Tree], key: jax.Array, known: PerTask[Condition], iterations: Count
) -> PerTask[Condition]:
    """Measures L_i / mu_i further on from what is known."""

    def one(task: TaskView, y: Tree, key: jax.Array, known: Condition) -> Condition:
        sample = task.draw(key)
        dtype = known.value.dtype
        product = lambda v: hessian_product(task.lower, x, y, v, sample)  # noqa: E731
        largest, high = jax.lax.fori_loop(
            0, iterations, lambda _, at: linear.stretch(product, at.vector), linear.Stretch(known.largest, known.high)
        )

        def lowest(_: object, carry: tuple) -> tuple:
            image = product(carry[1])
            smallest = jnp.asarray(optax.tree.vdot(carry[1], image), dtype)
            return smallest, pytrees.unit(
                jax.tree.map(lambda v, a: (1.1 * largest * v - a).astype(v.dtype), carry[1], image)
            )

        smallest, low = jax.lax.fori_loop(0, iterations, lowest, (largest, known.low))
        ratio = largest / jnp.clip(smallest, 1e-6 * largest, largest)
        return Condition(jnp.where(largest > 0, ratio, 1).astype(dtype), largest.astype(dtype), high, low)

    return problem.each(one, y, problem.keys(key), known)


def settle(
    problem: Problem, x: Tree, y: PerTask[Tree], key: jax.Array, known: PerTask[Condition], steps: Count
) -> PerTask[Tree]:
    """y after lower steps of size 1/L_i on one sample: where y will be once it has followed x."""

    def one(task: TaskView, y: Tree, key: jax.Array, known: Condition) -> Tree:
        sample = task.draw(key)
        rate = 1 / jnp.where(known.largest > 0, known.largest, 1)

        def down(_: object, y: Tree) -> Tree:
            gradient = jax.grad(task.lower, argnums=1)(x, y, sample)
            return jax.tree.map(lambda y, g: y - (rate * g).astype(y.dtype), y, gradient)

        return jax.lax.fori_loop(0, steps, down, y)

    return problem.each(one, y, problem.keys(key), known)


def upper(problem: Problem, point: Point, key: jax.Array, vector: Tree, iterations: Count) -> UpperCurvature:
    """Power iteration on the Hessian of sum_i w_i l_i, a product being a central difference of the hypergradient.

    At x + u each y_i is moved by -A^-1 J' u, as y_i* would move; both ends use one sample. Afterwards L is doubled
    until the hypergradient changes no more over a step of 1 / (2 L) than L allows.
    """
    x, samples = point.x, problem.draw_upper(key)
    oracle = Upper(problem, ConjugateGradient(iterations=10, tolerance=1e-3))
    point = point._replace(v=oracle.init(point, samples))
    size = optax.tree.norm(x)
    dtype = size.dtype
    reach = (jnp.finfo(dtype).eps ** (1 / 3) * jnp.where(size > 0, size, 1)).astype(dtype)

    def gradient(there: Tree) -> Tree:
        y = _followed(problem, point, optax.tree.sub(there, x), samples)
        return oracle.direction(point._replace(x=there, y=y), samples).direction

    def turn(carry: Probe) -> Probe:
        """First a power iteration on a short central difference; later a check of a whole step of 1 / (2 L)."""
        powering = carry.turns < iterations
        ahead = optax.tree.add_scale(x, -0.5 / jnp.where(carry.value > 0, carry.value, 1), carry.slope)
        ways = [optax.tree.add_scale(x, s * reach, carry.vector) for s in (1, -1)]
        pairs = zip(ways, (ahead, x), strict=True)
        ends = [problem.constraint.project(optax.tree.where(powering, *pair)) for pair in pairs]
        apart = optax.tree.norm(optax.tree.sub(*ends))
        # Both ends in one batched pass: the oracle is traced once.
        there = jax.vmap(gradient)(pytrees.stack(ends))
        change = jax.tree.map(lambda a: a[0] - a[1], there)
        bend = (optax.tree.norm(change) / jnp.where(apart > 0, apart, 1)).astype(dtype)
        good = (apart > 0) & jnp.isfinite(bend) & (bend > 0)
        # The curvatures of tasks may cancel where x is, and say nothing of where a long step leads: L is too small.
        long = ~powering & (apart > 0) & ~(bend <= SLACK * carry.value)
        value = jnp.where(powering & good, bend, jnp.where(long, 2 * carry.value, carry.value))
        vector = optax.tree.where(powering & good, pytrees.unit(change), carry.vector)
        slope = optax.tree.where(powering, jax.tree.map(lambda a: (a[0] + a[1]) / 2, there), carry.slope)
        return Probe(value, vector, slope, carry.turns + 1, ~powering & ~long)

    first = Probe(jnp.zeros((), dtype), vector, optax.tree.zeros_like(x), jnp.zeros((), jnp.int32), jnp.array(False))
    most = iterations + DOUBLINGS
    end = jax.lax.while_loop(lambda carry: (carry.turns < most) & ~carry.ended, turn, first)
    return UpperCurvature(end.value, end.vector)


def _followed(problem: Problem, point: Point, move: Tree, samples: PerTask[UpperSample]) -> PerTask[Tree]:
    """Every y_i moved by -A^-1 J' u, as y_i* would where x moves by u."""

    def one(task: TaskView, y: Tree, sample: UpperSample) -> Tree:
        right = response(task.lower, point.x, y, move, sample.lower)
        product = lambda v: hessian_product(task.lower, point.x, y, v, sample.lower)  # noqa: E731
        follow = linear.conjugate_gradient(product, right, None, 10, 1e-3)
        return optax.tree.sub(y, follow)

    return problem.each(one, point.y, samples)
