"""Measured bounds on curvature, from which rates are chosen.

lower   the largest curvature L_i of g_i in y, by one power iteration a step
        the condition L_i / mu_i, by power iteration on A and on L_i - A
upper   the largest curvature of sum_i w_i l_i(x), by power iteration on differences of the hypergradient
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel._core import pytrees
from bilevel._core.derivatives import hessian_product, largest_curvature, response, stretch
from bilevel._core.linear import conjugate_gradient
from bilevel.hypergradients.conjugate_gradient import ConjugateGradient
from bilevel.oracles.upper import Upper
from bilevel.problem.group import TaskView, UpperSample
from bilevel.problem.problem import Problem

FALL = 4.0  # a curvature never falls below so great a part of the largest seen: where a loss is flat, 1 / L has no end
TOLD = 1.2  # a step bends more than L says where it bends so many times as much
DOUBLINGS = 60
MEASURING_BATCH = 128  # rows to measure with, where steps draw fewer: noise makes curvature look larger


class Lower(NamedTuple):
    """The largest curvature of each lower problem of a group."""

    value: jax.Array
    vector: Any  # the direction it lies in
    highest: jax.Array  # the largest value of late


class Condition(NamedTuple):
    """The largest ratio of curvatures of each lower problem of a group."""

    value: jax.Array  # L_i / mu_i
    largest: jax.Array  # L_i
    high: Any  # the directions they lie in
    low: Any


class Probe(NamedTuple):
    """Where the measurement of the upper curvature is."""

    value: jax.Array  # L
    vector: Any
    slope: Any  # the direction at x
    turns: jax.Array
    ended: jax.Array


class UpperCurvature(NamedTuple):
    """The largest curvature of the weighted upper objective."""

    value: jax.Array
    vector: Any


def measuring(problem: Problem) -> Problem:
    """The same problem with batches large enough to measure on."""

    def enlarge(batch: int | None) -> int | None:
        return None if batch is None else max(batch, MEASURING_BATCH)

    return problem.rebatched(enlarge)


def lower(problem: Problem, x: Any, y: tuple, key: jax.Array) -> tuple[Lower, ...]:
    """Measures every lower curvature from scratch."""

    def one(task: TaskView, y: Any, key: jax.Array) -> Lower:
        value, vector = largest_curvature(task.lower, x, y, task.draw(key))
        return Lower(value, vector, value)

    return tuple(g.each(one, yg, g.keys(key)) for g, yg in zip(problem.groups, y, strict=True))


def follow_lower(problem: Problem, x: Any, y: tuple, samples: tuple, known: tuple[Lower, ...]) -> tuple[Lower, ...]:
    """One power iteration more: L <- max(.99 L, |A u|); where batches are drawn, at least a quarter of the largest.

    A logistic loss is flat on rows that are fitted well, and bends as before on the next one that is not. The largest
    is forgotten slowly, as x may change the problem for good.
    """
    fall = FALL if problem.draws else jnp.inf

    def one(task: TaskView, y: Any, sample: Any, known: Lower) -> Lower:
        value, vector = stretch(task.lower, x, y, known.vector, sample)
        highest = jnp.maximum(0.9997 * known.highest, value).astype(known.value.dtype)
        value = jnp.maximum(jnp.maximum(0.99 * known.value, value), highest / fall)
        return Lower(value.astype(highest.dtype), vector, highest)

    rows = zip(problem.groups, y, samples, known, strict=True)
    return tuple(g.each(one, yg, s, k) for g, yg, s, k in rows)


def unmeasured(y: tuple) -> tuple[Condition, ...]:
    """Directions to start from."""

    def one(y: Any) -> Condition:
        one = jnp.ones((), optax.tree.norm(y).dtype)
        return Condition(one, one, pytrees.generic(y, 2.4), pytrees.generic(y, 1.7))

    return tuple(map(jax.vmap(one), y))


def condition(
    problem: Problem, x: Any, y: tuple, key: jax.Array, known: tuple[Condition, ...], iterations: Any
) -> tuple[Condition, ...]:
    """Measures L_i / mu_i further on from what is known."""

    def one(task: TaskView, y: Any, key: jax.Array, known: Condition) -> Condition:
        sample = task.draw(key)
        dtype = known.value.dtype

        def higher(_: Any, carry: tuple) -> tuple:
            return stretch(task.lower, x, y, carry[1], sample)

        largest, high = jax.lax.fori_loop(0, iterations, higher, (known.largest, known.high))

        def lowest(_: Any, carry: tuple) -> tuple:
            image = hessian_product(task.lower, x, y, carry[1], sample)
            smallest = jnp.asarray(optax.tree.vdot(carry[1], image), dtype)
            return smallest, pytrees.unit(
                jax.tree.map(lambda v, a: (1.1 * largest * v - a).astype(v.dtype), carry[1], image)
            )

        smallest, low = jax.lax.fori_loop(0, iterations, lowest, (largest, known.low))
        ratio = largest / jnp.clip(smallest, 1e-6 * largest, largest)
        return Condition(jnp.where(largest > 0, ratio, 1).astype(dtype), largest.astype(dtype), high, low)

    rows = zip(problem.groups, y, known, strict=True)
    return tuple(g.each(one, yg, g.keys(key), k) for g, yg, k in rows)


def settle(problem: Problem, x: Any, y: tuple, key: jax.Array, known: tuple[Condition, ...], steps: Any) -> tuple:
    """y after so many lower steps of size 1/L_i on one sample: where y will be once it has followed x."""

    def one(task: TaskView, y: Any, key: jax.Array, largest: jax.Array) -> Any:
        sample = task.draw(key)
        rate = 1 / jnp.where(largest > 0, largest, 1)

        def down(_: Any, y: Any) -> Any:
            gradient = jax.grad(task.lower, argnums=1)(x, y, sample)
            return jax.tree.map(lambda y, g: y - (rate * g).astype(y.dtype), y, gradient)

        return jax.lax.fori_loop(0, steps, down, y)

    rows = zip(problem.groups, y, known, strict=True)
    return tuple(g.each(one, yg, g.keys(key), k.largest) for g, yg, k in rows)


def upper(
    problem: Problem, x: Any, y: tuple, weights: jax.Array, key: jax.Array, vector: Any, iterations: int
) -> UpperCurvature:
    """Power iteration on the Hessian of sum_i w_i l_i, a product being a central difference of the hypergradient.

    At x + u each y_i is moved by -A^-1 J' u, as y_i* would move; both ends use one sample. Afterwards L is doubled
    until the hypergradient changes no more over a step of 1 / (2 L) than L allows.
    """
    samples = problem.draw_upper(key)
    upper = Upper(ConjugateGradient(iterations=10, tolerance=1e-3))
    state = upper.init(problem, x, y, samples)
    size = optax.tree.norm(x)
    dtype = size.dtype
    reach = (jnp.finfo(dtype).eps ** (1 / 3) * jnp.where(size > 0, size, 1)).astype(dtype)

    def shifted(task: TaskView, y: Any, move: Any, sample: UpperSample) -> Any:
        right = response(task.lower, x, y, move, sample.lower)
        product = lambda v: hessian_product(task.lower, x, y, v, sample.lower)  # noqa: E731
        follow = conjugate_gradient(product, right, optax.tree.zeros_like(y), 10, 1e-3)
        return optax.tree.sub(y, follow)

    def gradient(there: Any) -> Any:
        move = optax.tree.sub(there, x)
        ys = tuple(
            group.each(lambda task, y, s: shifted(task, y, move, s), yg, s)
            for group, yg, s in zip(problem.groups, y, samples, strict=True)
        )
        return upper.direction(problem, there, ys, weights, state, samples).direction

    def turn(carry: Probe) -> Probe:
        """First a power iteration, at both ends of a short way; later a look at where a step of 1 / (2 L) leads."""
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
        long = ~powering & (apart > 0) & ~(bend <= TOLD * carry.value)
        value = jnp.where(powering & good, bend, jnp.where(long, 2 * carry.value, carry.value))
        vector = optax.tree.where(powering & good, pytrees.unit(change), carry.vector)
        slope = optax.tree.where(powering, jax.tree.map(lambda a: (a[0] + a[1]) / 2, there), carry.slope)
        return Probe(value, vector, slope, carry.turns + 1, ~powering & ~long)

    first = Probe(jnp.zeros((), dtype), vector, optax.tree.zeros_like(x), jnp.zeros((), jnp.int32), jnp.array(False))
    most = iterations + DOUBLINGS
    end = jax.lax.while_loop(lambda carry: (carry.turns < most) & ~carry.ended, turn, first)
    return UpperCurvature(end.value, end.vector)
