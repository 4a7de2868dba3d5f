"""Rates chosen for the user and kept up to date, for plain gradient steps.

With K the number of steps, decay(k) = (1 + 50 k / K)^(-1/2), L_i the measured curvature of g_i in y, L_x that of the
weighted upper objective and kappa the largest condition of a lower problem:

    lower     1 / L_i, one rate per task; L_i follows every step
    upper     decay / (2 L_x); L_x is measured again along the run, never falls below half its last value nor a
              quarter of the largest seen;
              directions longer than twice their running norm are cut there; where batches are drawn, the rate is
              multiplied by the share of the direction that is not noise
    weights   0.3 decay / (worst loss (1 + kappa / 3))

Why a decay: at constant rates the pair (x, weights) circles a saddle point. Why the condition: the losses that drive
the weights lag behind x by about kappa steps, and a lag divides the rate at which the weights still settle.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel._core import pytrees
from bilevel.problem.problem import Problem
from bilevel.rates import curvature

MEMORY = 0.9  # of the running mean that tells a direction from its noise
CUT = 2.0  # directions longer than so many times their running norm are cut


class AutomaticUpper(NamedTuple):
    """What the upper rate is made of."""

    curvature: curvature.UpperCurvature
    highest: jax.Array  # the largest curvature seen
    norm: jax.Array  # running norm of the direction; 0 before the first
    mean: Any = None  # running mean of the direction, where batches are drawn
    square: Any = None  # running mean of its squared norm


class Automatic(NamedTuple):
    """The state of automatic rates; None where the user gave one."""

    horizon: jax.Array  # K
    lower: tuple[curvature.Lower, ...] | None
    upper: AutomaticUpper | None
    condition: tuple[curvature.Condition, ...] | None
    worst: jax.Array | None  # running size of the worst loss, for the weights; 0 before the first


def decay(step: jax.Array, horizon: jax.Array) -> jax.Array:
    """(1 + 50 k / K)^(-1/2)."""
    return (1 + 50 * step / horizon) ** -0.5


def start(
    problem: Problem, x: Any, y: tuple, weights: jax.Array, key: jax.Array, steps: Any, which: tuple[bool, bool, bool]
) -> Automatic:
    """What the rates named by `which` (lower, upper, weights) need; `refresh` then measures."""
    with_lower, with_upper, with_weights = which
    zero = jnp.zeros((), weights.dtype)
    upper = None
    if with_upper:
        vector = pytrees.generic(x)
        none = jnp.zeros((), optax.tree.norm(x).dtype)
        upper = AutomaticUpper(curvature.UpperCurvature(none, vector), none, zero)
        if problem.draws:
            upper = upper._replace(mean=optax.tree.zeros_like(x), square=zero)
    return Automatic(
        horizon=jnp.asarray(steps, weights.dtype),
        lower=curvature.lower(problem, x, y, key) if with_lower else None,
        upper=upper,
        condition=curvature.unmeasured(y) if with_upper or with_weights else None,
        worst=zero if with_weights else None,
    )


def refresh(
    problem: Problem, x: Any, y: tuple, weights: jax.Array, key: jax.Array, known: Automatic, iterations: Any
) -> Automatic:
    """Measures again what changes as x moves; the more iterations, the less is taken from the last time."""
    if known.condition is None:
        return known
    large = curvature.measuring(problem)
    keys = jax.random.split(key, 3)
    condition = curvature.condition(large, x, y, keys[0], known.condition, 5 * iterations)
    known = known._replace(condition=condition)
    if known.upper is not None:
        old = known.upper.curvature
        settled = curvature.settle(large, x, y, keys[1], condition, 5 * iterations)
        new = curvature.upper(large, x, settled, half_uniform(weights), keys[2], old.vector, iterations)
        highest = jnp.maximum(known.upper.highest, new.value)
        least = jnp.maximum(old.value / 2, highest / curvature.FALL)
        value = jnp.where(new.value > 0, jnp.maximum(new.value, least), old.value)
        known = known._replace(upper=known.upper._replace(curvature=new._replace(value=value), highest=highest))
    return known


def half_uniform(weights: jax.Array) -> jax.Array:
    """Halfway between the weights and uniform ones: the curvature of tasks that may matter soon counts too."""
    return (weights + 1 / weights.shape[0]) / 2


def lower_rates(known: tuple[curvature.Lower, ...]) -> tuple[jax.Array, ...]:
    """1 / L_i."""
    return tuple(1 / jnp.where(group.value > 0, group.value, 1) for group in known)


def upper_rate(known: AutomaticUpper, step: jax.Array, horizon: jax.Array) -> jax.Array:
    """decay / (2 L_x)."""
    value = known.curvature.value
    rate = decay(step, horizon) / (2 * jnp.where(value > 0, value, 1))
    return rate if known.mean is None else rate * signal(known)


def signal(known: AutomaticUpper) -> jax.Array:
    """|mean direction|^2 / mean |direction|^2: 1 without noise, towards 0 where noise is all there is."""
    square = jnp.where(known.square > 0, known.square, 1)
    return jnp.where(known.square > 0, jnp.minimum(optax.tree.norm(known.mean, squared=True) / square, 1), 1)


def cut(direction: Any, norm: jax.Array, known: AutomaticUpper) -> tuple[Any, AutomaticUpper]:
    """The direction, cut where it is longer than `CUT` running norms, and the running norm after it."""
    limit = jnp.where(known.norm > 0, CUT * known.norm, norm)
    kept = jnp.minimum(norm, limit)
    scale = jnp.where(norm > 0, kept / jnp.where(norm > 0, norm, 1), 1)
    running = jnp.where(known.norm > 0, 0.9 * known.norm + 0.1 * kept, norm).astype(known.norm.dtype)
    direction = jax.tree.map(lambda d: (scale * d).astype(d.dtype), direction)
    known = known._replace(norm=running)
    if known.mean is not None:
        share = jnp.where(known.square > 0, 1 - MEMORY, 1)
        mean = jax.tree.map(lambda m, d: m + (share * (d - m)).astype(m.dtype), known.mean, direction)
        known = known._replace(mean=mean, square=known.square + share * (kept**2 - known.square))
    return direction, known


def weights_rate(known: Automatic, losses: jax.Array, step: jax.Array) -> tuple[jax.Array, Automatic]:
    """0.3 decay / (worst (1 + kappa/3)), and the running worst loss."""
    assert known.condition is not None
    known = follow_worst(known, losses)
    kappa = jnp.max(jnp.concatenate([group.value for group in known.condition]))  # type: ignore[union-attr]
    worst = jnp.where(known.worst > 0, known.worst, 1)  # type: ignore[operator]
    return 0.3 * decay(step, known.horizon) / (worst * (1 + kappa / 3)), known


def follow_worst(known: Automatic, losses: jax.Array) -> Automatic:
    """The running size of the worst loss, one step on."""
    assert known.worst is not None
    worst = jnp.max(jnp.abs(losses))
    worst = jnp.where(known.worst > 0, 0.9 * known.worst + 0.1 * worst, worst)
    return known._replace(worst=worst.astype(known.worst.dtype))
