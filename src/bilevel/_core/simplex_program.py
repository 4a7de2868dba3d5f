"""Maximisation over weights: a linear or a concave quadratic function on {low <= p <= high, sum p = 1}.

    respond     max over p of  <scores, p> - pull |p - 1/m|^2      in closed form, by sorting or bisection
    maximise    max over p of  <scores, p> - p' K p / 2            by an interior-point method

`maximise` is Mehrotra's predictor-corrector: some ten to twenty factorisations of an m x m matrix, whatever the
condition of K, which may be singular. `optax` has projections and no quadratic programs; first-order methods take
thousands of steps where K is ill-conditioned, as it is when tasks have similar slopes.

Reference: Mehrotra, "On the implementation of a primal-dual interior point method", SIAM J. Optim. 1992.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bilevel._core import dense

ITERATIONS = 50
TO_BOUNDARY = 0.995  # the share of the way to the nearest bound that a step goes at most
HALVINGS = 80


class Bounds(NamedTuple):
    """The set of weights: low <= p <= high and sum p = 1."""

    low: jax.Array
    high: jax.Array


class Response(NamedTuple):
    """The best weights for some scores, and their value."""

    weights: jax.Array
    value: jax.Array


def respond(scores: jax.Array, bounds: Bounds, pull: jax.Array | float) -> Response:
    """argmax and max over the set of <scores, p> - pull |p - 1/m|^2; without a pull, over its vertices."""
    pull = jnp.asarray(pull, scores.dtype)
    m, curved = scores.shape[0], pull > 0
    centre = 1 / m + scores / (2 * jnp.where(curved, pull, 1))
    weights = jnp.where(curved, project(centre, bounds), _filled(scores, bounds))
    return Response(weights, jnp.vdot(scores, weights) - pull * jnp.sum((weights - 1 / m) ** 2))


def _filled(scores: jax.Array, bounds: Bounds) -> jax.Array:
    """Weights at their lower bounds, with the rest given to the largest scores up to their upper bounds."""
    order = jnp.argsort(-scores)
    room = (jnp.minimum(bounds.high, 1) - bounds.low)[order]
    before = jnp.cumsum(room) - room
    share = jnp.clip(1 - jnp.sum(bounds.low) - before, 0, room)
    return bounds.low.at[order].add(share)


def project(values: jax.Array, bounds: Bounds) -> jax.Array:
    """The nearest point of the set: clip(values - t, low, high), with t by bisection."""
    reach = jnp.max(jnp.abs(values)) + 2

    def halve(_: int, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        least, most = ends
        middle = (least + most) / 2
        above = jnp.sum(jnp.clip(values - middle, *bounds)) >= 1
        return jnp.where(above, middle, least), jnp.where(above, most, middle)

    least, most = jax.lax.fori_loop(0, HALVINGS, halve, (-reach, reach))
    return jnp.clip(values - (least + most) / 2, *bounds)


class _InteriorPoint(NamedTuple):
    """The state of the method: weights, multipliers of sum and of both bounds, the mean complementarity."""

    p: jax.Array
    of_sum: jax.Array
    of_low: jax.Array
    of_high: jax.Array
    mean: jax.Array
    step: jax.Array


def maximise(K: jax.Array, scores: jax.Array, bounds: Bounds, total: jax.Array | float = 1.0) -> jax.Array:
    """argmax of <scores, p> - p' K p / 2 over low <= p <= high, sum p = total; K symmetric and not negative."""
    total = jnp.asarray(total, scores.dtype)
    low, high = bounds.low, jnp.where(bounds.high >= total, 2 * total, bounds.high).astype(scores.dtype)
    width = high - low
    share = (total - jnp.sum(low)) / jnp.maximum(jnp.sum(width), jnp.finfo(scores.dtype).tiny)
    start = low + width * jnp.minimum(share, 1)
    # A set of one point, or an entry that cannot move, has no interior.
    free = (width > 1e-9) & (share < 1 - 1e-6) & (share > 1e-9)
    scores = scores - jnp.max(scores)
    size = jnp.maximum(jnp.max(jnp.abs(scores)), jnp.max(jnp.diagonal(K)))
    size = jnp.where(size > 0, size, 1)
    K, scores = K / size, scores / size
    eps = jnp.finfo(scores.dtype).eps
    enough, count = eps**0.8, jnp.maximum(jnp.sum(free), 1)
    both = free[:, None] & free[None, :]

    def gaps(p: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.where(free, p - low, 1), jnp.where(free, high - p, 1)

    def longest(value: jax.Array, move: jax.Array) -> jax.Array:
        ratio = jnp.where(free & (move < 0), -value / jnp.where(move < 0, move, -1), jnp.inf)
        return jnp.min(ratio)

    def one(here: _InteriorPoint) -> _InteriorPoint:
        a, b = gaps(here.p)
        slope = jnp.where(free, K @ here.p - scores + here.of_sum - here.of_low + here.of_high, 0)
        missing = jnp.sum(here.p) - total
        diagonal = jnp.where(free, here.of_low / a + here.of_high / b, 1) + 10 * eps
        matrix = jnp.where(both, K, 0) + jnp.diag(diagonal)

        def direction(to_low: jax.Array, to_high: jax.Array) -> tuple:
            right = jnp.where(free, -slope + to_low / a - to_high / b, 0)
            sides = jnp.stack([right, free.astype(right.dtype)], axis=1)
            solved = dense.solve_positive(matrix, sides)
            along, ones = solved[:, 0], solved[:, 1]
            of_sum = (jnp.sum(along) + missing) / jnp.maximum(jnp.sum(ones), eps)
            p = jnp.where(free, along - of_sum * ones, 0)
            return p, of_sum, (to_low - here.of_low * p) / a, (to_high + here.of_high * p) / b

        def lengths(move: tuple) -> jax.Array:
            p, _, of_low, of_high = move
            primal = jnp.minimum(longest(a, p), longest(b, -p))
            dual = jnp.minimum(longest(here.of_low, of_low), longest(here.of_high, of_high))
            return jnp.minimum(1, TO_BOUNDARY * jnp.minimum(primal, dual))

        aim = direction(-a * here.of_low, -b * here.of_high)
        t = lengths(aim)
        reached = jnp.where(free, (a + t * aim[0]) * (here.of_low + t * aim[2]), 0)
        reached += jnp.where(free, (b - t * aim[0]) * (here.of_high + t * aim[3]), 0)
        centre = (jnp.sum(reached) / (2 * count) / here.mean) ** 3 * here.mean
        move = direction(centre - a * here.of_low - aim[0] * aim[2], centre - b * here.of_high + aim[0] * aim[3])
        t = lengths(move)
        p, of_sum = here.p + t * move[0], here.of_sum + t * move[1]
        of_low = jnp.where(free, here.of_low + t * move[2], 0)
        of_high = jnp.where(free, here.of_high + t * move[3], 0)
        a, b = gaps(p)
        mean = jnp.sum(jnp.where(free, a * of_low + b * of_high, 0)) / (2 * count)
        there = _InteriorPoint(p, of_sum, of_low, of_high, mean, here.step + 1)
        fine = jnp.isfinite(mean) & jnp.all(jnp.isfinite(p))
        stay = here._replace(mean=jnp.zeros_like(mean), step=here.step + 1)  # rounding ends it
        return jax.tree.map(lambda new, old: jnp.where(fine, new, old), there, stay)

    ones = free.astype(scores.dtype)
    a, b = gaps(start)
    first = jnp.sum(jnp.where(free, a + b, 0)) / (2 * count)
    begin = _InteriorPoint(start, jnp.zeros((), scores.dtype), ones, ones, first, jnp.zeros((), jnp.int32))
    end = jax.lax.while_loop(lambda here: (here.mean > enough) & (here.step < ITERATIONS), one, begin)
    inside = jnp.clip(end.p, low, bounds.high)
    return inside * (total / jnp.maximum(jnp.sum(inside), jnp.finfo(scores.dtype).tiny))
