"""Rates relative to the size of what they move, falling to zero at the end of the run: Tandem's. Ours.

With K steps, t = k / K, L_i the curvature of g_i as it is followed, and U the size of x, leaf by leaf:

    lower     min(1, 2 (1 - t)) / L_i
              along Newton's direction min(1, 2 (1 - t)); of batches min(1, 10 alpha), ten times the share that x moves
    upper     x <- proj_X (x - alpha U Adam(d)),   alpha = min(0.03, 1.5 / sqrt(K)) (1 - t)
              U is the root mean square of a leaf: at least a quarter of the largest so far, because steps must not
              vanish where x crosses zero; for a leaf that starts at zero, that of all x, or 1
    weights   0.02 (1 - t) / worst loss

Nothing is measured but L_i, and the last point needs no averaging. The constants were chosen on the problems of
docs/choosing.md, on draws that are not reported there. There is no theorem. Limits: a step of x is a share of its size,
so that a short run moves it only a little, and on small smooth problems `Measured` takes fewer steps.

Reference: none of its own; Shazeer and Stern (Adafactor), ICML 2018, for relative steps; Kingma and Ba (Adam), ICLR
2015.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel._core.module import part
from bilevel._core.types import Tree
from bilevel.hypergradients.upper import Point
from bilevel.problem.per_task import PerTask, for_tasks
from bilevel.problem.problem import Problem
from bilevel.rates.curvature import MAX_DROP
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


class RelativeState(NamedTuple):
    """State of relative rates; None for rates that the user gave."""

    largest: Tree  # the largest size of every leaf of x so far
    worst: jax.Array | None  # running size of the worst loss; 0 before the first


@part
class Relative(Rates):
    """Rates in units of what they move, for x by Adam; nothing needs to be given."""

    upper_rule = staticmethod(optax.adam)
    newton_steps = True

    def init_own(self, problem: Problem, point: Point, needs: Needs) -> RelativeState:
        """The first sizes of x."""
        zero = jnp.zeros((), point.weights.dtype)
        return RelativeState(first_sizes(point.x) if needs.upper else None, zero if needs.weights else None)

    def upper(self, state: RatesState, x: Tree, direction: Tree, step: jax.Array) -> UpperStep:
        """min(0.03, 1.5 / sqrt(K)) (1 - t), in units of the size of x."""
        sizes = jax.tree.map(size, x)
        largest = jax.tree.map(jnp.maximum, state.own.largest, sizes)
        units = jax.tree.map(lambda high, now: jnp.maximum(high / MAX_DROP, now), largest, sizes)
        return UpperStep(
            direction, self.share(state, step), units, state._replace(own=state.own._replace(largest=largest))
        )

    def share(self, state: RatesState, step: jax.Array) -> jax.Array:
        """alpha, which is the share of its size that x moves by."""
        return jnp.minimum(0.03, 1.5 * state.horizon**-0.5) * state.remaining(step)

    def lower(self, problem: Problem, state: RatesState, step: jax.Array) -> PerTask[jax.Array]:
        """min(1, 2 (1 - t)) / L_i; a share of Newton's step where no curvature is followed."""
        factor = jnp.minimum(1, 2 * state.remaining(step))
        if state.curvature is None:
            return problem.fill(
                jnp.minimum(1, 10 * self.share(state, step)) if problem.is_stochastic else factor, state.horizon.dtype
            )
        return for_tasks(lambda rate: rate * factor.astype(rate.dtype), inverse_curvatures(state))

    def weights(self, state: RatesState, losses: jax.Array, step: jax.Array) -> WeightsStep:
        """0.02 (1 - t) / worst."""
        assert state.own.worst is not None
        worst = follow_worst(state.own.worst, losses)
        rate = 0.02 * state.remaining(step) / or_one(worst)
        return WeightsStep(rate, state._replace(own=state.own._replace(worst=worst)))


def size(x: jax.Array) -> jax.Array:
    """The root mean square."""
    return jnp.sqrt(jnp.mean(x**2))


def first_sizes(x: Tree) -> Tree:
    """The size of every leaf; of a zero leaf, that of x; of a zero x, 1.

    >>> first_sizes({"w": jnp.full(3, 2.0), "b": jnp.zeros(1)})["b"].round(3).item()
    1.732...
    """
    count = sum(leaf.size for leaf in jax.tree.leaves(x))
    whole = optax.tree.norm(x) / jnp.sqrt(count)
    other = or_one(whole)
    return jax.tree.map(lambda x: jnp.where(size(x) > 0, size(x), other.astype(x.dtype)), x)


def share_moved(old: Tree, new: Tree) -> jax.Array:
    """How far x moved, relative to its size; at most a half."""
    length, way = optax.tree.norm(new), optax.tree.norm(optax.tree.sub(new, old))
    return jnp.where(way < length / 2, way / jnp.where(length > 0, length, 1), jnp.where(way > 0, 0.5, 0.0))
