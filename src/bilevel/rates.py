"""Rates chosen for the user and kept up to date, for plain gradient steps.

With K the number of steps, decay(k) = (1 + 50 k / K)^(-1/2), L_i the measured curvature of g_i in y, L_x that of the
weighted upper objective and kappa the largest condition of a lower problem:

    lower     1 / L_i, one rate per task; L_i follows every step
    upper     decay / (2 L_x); L_x is measured again every K/100 steps and never falls below half its last value;
              directions longer than twice their running norm are cut there
    weights   0.3 decay / (worst loss (1 + kappa / 3))

Why a decay: at constant rates the pair (x, weights) circles a saddle point. Why the condition: the losses that drive
the weights lag behind x by about kappa steps, and a lag divides the rate at which the weights still settle.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel import curvature, tree
from bilevel.problem import Problem

MEMORY = 0.9  # of the running mean that tells a direction from its noise
CUT = 2.0  # directions longer than so many times their running norm are cut


class AutomaticUpper(NamedTuple):
    """What the upper rate is made of."""

    curvature: curvature.UpperCurvature
    norm: jax.Array  # running norm of the direction; 0 before the first
    mean: Any = None  # running mean of the direction, where batches are drawn
    square: Any = None  # running mean of its squared norm


class AutomaticWeights(NamedTuple):
    """What the weights' rate is made of."""

    condition: tuple[curvature.Condition, ...]
    worst: jax.Array  # running size of the worst loss; 0 before the first


class Automatic(NamedTuple):
    """The state of automatic rates; None where the user gave one."""

    horizon: jax.Array  # K
    lower: tuple[curvature.Lower, ...] | None
    upper: AutomaticUpper | None
    weights: AutomaticWeights | None


def decay(step: jax.Array, horizon: jax.Array) -> jax.Array:
    """(1 + 50 k / K)^(-1/2)."""
    return (1 + 50 * step / horizon) ** -0.5


def start(
    problem: Problem,
    x: Any,
    y: tuple,
    weights: jax.Array,
    key: jax.Array,
    steps: Any,
    which: tuple[bool, bool, bool],
) -> Automatic:
    """Measures what the rates named by `which` (lower, upper, weights) need."""
    with_lower, with_upper, with_weights = which
    keys = jax.random.split(key, 4)
    large = curvature.measuring(problem)
    known = curvature.lower(problem, x, y, keys[0]) if with_lower or with_upper else None
    upper = None
    if with_upper:
        assert known is not None
        settled = curvature.settle(large, x, y, keys[1], known, 50)
        vector = tree.unit(optax.tree.random_like(keys[2], x))
        measured = curvature.upper(large, x, settled, half_uniform(weights), keys[3], vector, 10)
        zero = jnp.zeros((), weights.dtype)
        upper = AutomaticUpper(measured, zero)
        if problem.draws:
            upper = upper._replace(mean=optax.tree.zeros_like(x), square=zero)
    watched = None
    if with_weights:
        watched = AutomaticWeights(
            curvature.condition(large, x, y, keys[3], iterations=30), jnp.zeros((), weights.dtype)
        )
    return Automatic(jnp.asarray(steps, weights.dtype), known if with_lower else None, upper, watched)


def refresh(problem: Problem, x: Any, y: tuple, weights: jax.Array, key: jax.Array, known: Automatic) -> Automatic:
    """Measures again what changes as x moves."""
    large = curvature.measuring(problem)
    if known.upper is not None:
        old = known.upper.curvature
        new = curvature.upper(large, x, y, half_uniform(weights), key, old.vector, 1)
        value = jnp.where(new.value > 0, jnp.maximum(new.value, old.value / 2), old.value)
        known = known._replace(upper=known.upper._replace(curvature=new._replace(value=value)))
    if known.weights is not None:
        again = curvature.condition(large, x, y, key, known.weights.condition)
        known = known._replace(weights=known.weights._replace(condition=again))
    return known


def half_uniform(weights: jax.Array) -> jax.Array:
    """Halfway between the weights and uniform ones: the curvature of tasks that may matter soon counts too."""
    return (weights + 1 / weights.shape[0]) / 2


def lower_rates(known: tuple[curvature.Lower, ...]) -> tuple[jax.Array, ...]:
    """1 / L_i."""
    return tuple(1 / jnp.where(group.value > 0, group.value, 1) for group in known)


def upper_rate(known: AutomaticUpper, step: jax.Array, horizon: jax.Array) -> jax.Array:
    """Decay / (2 L_x)."""
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


def weights_rate(
    known: AutomaticWeights, losses: jax.Array, step: jax.Array, horizon: jax.Array
) -> tuple[jax.Array, AutomaticWeights]:
    """0.3 decay / (worst (1 + kappa/3)), and the running worst loss."""
    worst = jnp.max(jnp.abs(losses))
    worst = jnp.where(known.worst > 0, 0.9 * known.worst + 0.1 * worst, worst).astype(known.worst.dtype)
    kappa = jnp.max(jnp.concatenate([group.value for group in known.condition]))
    rate = 0.3 * decay(step, horizon) / (jnp.where(worst > 0, worst, 1) * (1 + kappa / 3))
    return rate, known._replace(worst=worst)
