"""Rates from measured curvature, for plain gradient steps: MORBiT's.

With K the number of steps, decay(k) = (1 + 50 k / K)^(-1/2), L_i the measured curvature of g_i in y, L_x that of the
weighted upper objective and kappa the largest condition of a lower problem:

    lower     1 / L_i, one rate per task; L_i follows every step
    upper     decay / (2 L_x); L_x is measured again along the run, never falls below half its last value nor a
              quarter of the largest seen;
              directions longer than twice their running norm are clipped; where batches are drawn, the rate is
              multiplied by the share of the direction that is not noise
    weights   0.3 decay / (worst loss (1 + lag / 3)) with lag = min(kappa, K / 20)

Why a decay: at constant rates the pair (x, weights) circles a saddle point. Why the condition: the losses that drive
the weights lag behind x by about kappa steps, and a lag divides the rate at which the weights still settle. Why no more
than K / 20: where some direction of y is nearly flat, kappa is in the thousands. No run settles such a y, and weights
that wait for it stay where the first steps have put them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel._core import pytrees
from bilevel._core.module import part
from bilevel._core.types import Count, Tree
from bilevel.hypergradients.upper import Point
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem
from bilevel.rates import curvature
from bilevel.rates.curvature import Condition, UpperCurvature
from bilevel.rates.protocol import (
    Needs,
    Rates,
    RatesState,
    UpperStep,
    WeightsStep,
    follow_worst,
    inverse_curvatures,
    or_one,
)

MEMORY = 0.9  # factor of the running mean that separates a direction from its noise
LONGEST = 0.05  # lag of y that weights wait for, as a share of the run
CLIP = 2.0  # directions longer than this many running norms are clipped
SHARE = 0.1  # share of a new norm in the running norm


class UpperRate(NamedTuple):
    """State of the upper rate."""

    curvature: UpperCurvature
    highest: jax.Array  # the largest curvature seen
    norm: jax.Array  # running norm of the direction; 0 before the first
    mean: Tree = None  # running mean of the direction, where batches are drawn
    square: Tree = None  # running mean of its squared norm


class MeasuredState(NamedTuple):
    """State of measured rates; None for rates that the user gave."""

    upper: UpperRate | None
    condition: PerTask[Condition] | None
    kappa: jax.Array | None  # the largest condition
    worst: jax.Array | None  # running size of the worst loss; 0 before the first


@part
class Measured(Rates):
    """Rates from curvature that is measured and kept up to date; nothing needs to be given."""

    def init_own(self, problem: Problem, point: Point, needs: Needs) -> MeasuredState:
        """Directions to measure along; `refresh` measures."""
        zero = jnp.zeros((), point.weights.dtype)
        upper = None
        if needs.upper:
            none = jnp.zeros((), optax.tree.norm(point.x).dtype)
            upper = UpperRate(UpperCurvature(none, pytrees.generic(point.x)), none, zero)
            if problem.is_stochastic or needs.sampled:
                upper = upper._replace(mean=optax.tree.zeros_like(point.x), square=zero)
        condition = curvature.unmeasured(point.y) if needs.upper or needs.weights else None
        kappa = None if condition is None else zero + 1
        return MeasuredState(upper, condition, kappa, zero if needs.weights else None)

    def measures(self, state: RatesState) -> bool:
        """Whether alpha or gamma is chosen."""
        return state.own.condition is not None

    def refresh(
        self, problem: Problem, point: Point, state: RatesState, key: jax.Array, iterations: Count
    ) -> RatesState:
        """The more iterations, the less is taken from the last measurement."""
        own: MeasuredState = state.own
        if own.condition is None:
            return state
        large = curvature.measuring(problem)
        keys = jax.random.split(key, 3)
        condition = curvature.condition(large, point.x, point.y, keys[0], own.condition, 5 * iterations)
        kappa = jnp.max(jnp.concatenate([group.value for group in condition])).astype(point.weights.dtype)
        own = own._replace(condition=condition, kappa=kappa)
        if own.upper is not None:
            old = own.upper.curvature
            settled = curvature.settle(large, point.x, point.y, keys[1], condition, 5 * iterations)
            there = point._replace(y=settled)
            new = curvature.upper(large, there, keys[2], old.vector, iterations)
            highest = jnp.maximum(own.upper.highest, new.value)
            least = jnp.maximum(old.value / 2, highest / curvature.MAX_DROP)
            value = jnp.where(new.value > 0, jnp.maximum(new.value, least), old.value)
            own = own._replace(upper=own.upper._replace(curvature=new._replace(value=value), highest=highest))
        return state._replace(own=own)

    def upper(self, state: RatesState, x: Tree, direction: Tree, step: jax.Array) -> UpperStep:
        """decay / (2 L_x), and the direction clipped."""
        direction, known = clip(direction, state.own.upper)
        rate = decay(step, state.horizon) / (2 * or_one(known.curvature.value))
        rate = rate if known.mean is None else rate * signal(known)
        return UpperStep(direction, rate, None, state._replace(own=state.own._replace(upper=known)))

    def lower(self, problem: Problem, state: RatesState, step: jax.Array) -> PerTask[jax.Array]:
        """1 / L_i."""
        return inverse_curvatures(state)

    def weights(self, state: RatesState, losses: jax.Array, step: jax.Array) -> WeightsStep:
        """0.3 decay / (worst (1 + lag / 3))."""
        own: MeasuredState = state.own
        assert own.kappa is not None
        assert own.worst is not None
        worst = follow_worst(own.worst, losses)
        lag = jnp.minimum(own.kappa, LONGEST * state.horizon)
        rate = 0.3 * decay(step, state.horizon) / (or_one(worst) * (1 + lag / 3))
        return WeightsStep(rate, state._replace(own=own._replace(worst=worst)))


def decay(step: jax.Array, horizon: jax.Array) -> jax.Array:
    """(1 + 50 k / K)^(-1/2)."""
    return (1 + 50 * step / horizon) ** -0.5


def signal(known: UpperRate) -> jax.Array:
    """|mean direction|^2 / mean |direction|^2: 1 without noise, towards 0 where noise is all there is."""
    ratio = optax.tree.norm(known.mean, squared=True) / or_one(known.square)
    return jnp.where(known.square > 0, jnp.minimum(ratio, 1), 1)


def clip(direction: Tree, known: UpperRate) -> tuple[Tree, UpperRate]:
    """The direction, clipped at some running norms, and the running norm after it.

    Where y and v lag behind x, the direction is wrong, and grows as x follows it: short steps let them catch up.
    """
    norm = optax.tree.norm(direction).astype(known.norm.dtype)
    kept = jnp.minimum(norm, jnp.where(known.norm > 0, CLIP * known.norm, norm))
    scale = jnp.where(norm > 0, kept / jnp.where(norm > 0, norm, 1), 1)
    running = jnp.where(known.norm > 0, known.norm + SHARE * (kept - known.norm), norm).astype(known.norm.dtype)
    direction = jax.tree.map(lambda d: (scale * d).astype(d.dtype), direction)
    known = known._replace(norm=running)
    if known.mean is not None:
        share = jnp.where(known.square > 0, 1 - MEMORY, 1)
        mean = jax.tree.map(lambda m, d: m + (share * (d - m)).astype(m.dtype), known.mean, direction)
        known = known._replace(mean=mean, square=known.square + share * (kept**2 - known.square))
    return direction, known
