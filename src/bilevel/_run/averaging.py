"""What an iterate consists of, and the average of the iterates, also where a step sees a few of the tasks only."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bilevel.solvers._base.state import State

POWER = 3  # weights ~ k^3: nearly half of the run counts, its end the most


class Variables(NamedTuple):
    """What an iterate consists of."""

    x: Any
    y: Any
    weights: jax.Array

    @classmethod
    def of(cls, state: State) -> Variables:
        """The point that a state is at."""
        return cls(state.x, state.y, state.weights)


def add(average: Any, point: Any, step: jax.Array, dtype: Any) -> Any:
    """The average after step k: a <- a + (1 + p) / (k + p) (point - a)."""
    share = (1 + POWER) / (step.astype(dtype) + POWER)
    return jax.tree.map(lambda a, p: a + (share * (p - a)).astype(a.dtype), average, point)


def rested(average: Any, point: Any, since: jax.Array, until: jax.Array, dtype: Any) -> Any:
    """The average after step `until` of what has been at one point since step `since`, where the average was this.

    A step from j - 1 to j keeps (j - 1) / (j + p) of the distance; the product over the steps telescopes.
    """
    kept = jnp.ones_like(since, dtype)
    for i in range(1 + POWER):
        # As floats first: the ratio of two int32 is a float32, also where the run is in float64.
        kept = kept * (since + i).astype(dtype) / jnp.maximum(until + i, 1).astype(dtype)
    kept = jnp.where(since == until, 1, kept)
    return jax.tree.map(lambda a, p: p + (kept * (a - p)).astype(a.dtype), average, point)


class LateAverage(NamedTuple):
    """The average where the weights move every so many steps only: theirs is brought up to date when they move.

    Where a step moves y of some of the tasks, y has no average: at the end of the run it is fitted to the average of x.
    """

    point: Variables  # with y None where it has no average
    weights: jax.Array  # the step of which the average of the weights is

    @classmethod
    def start(cls, state: State, all_move: bool) -> LateAverage:
        """Before the first step; `all_move` says whether every step moves y of all tasks."""
        point = Variables.of(state)
        return cls(point if all_move else point._replace(y=None), jnp.zeros((), jnp.int32))

    def see(self, after: State) -> LateAverage:
        """After a step that moved x and y."""
        average, new = (self.point.x, self.point.y), (after.x, None if self.point.y is None else after.y)
        x, y = add(average, new, after.step, after.weights.dtype)
        return self._replace(point=self.point._replace(x=x, y=y))

    def weigh(self, before: State, after: State) -> LateAverage:
        """After a move of the weights."""
        dtype, step = after.weights.dtype, after.step
        current = rested(self.point.weights, before.weights, self.weights, step - 1, dtype)
        weights = add(current, after.weights, step, dtype)
        return LateAverage(self.point._replace(weights=weights), step)

    def at(self, state: State) -> Variables:
        """The average now, of everything; of y that has none, as it is."""
        weights = rested(self.point.weights, state.weights, self.weights, state.step, state.weights.dtype)
        return Variables(self.point.x, state.y if self.point.y is None else self.point.y, weights)


@jax.jit
def average_of(average: Variables | LateAverage, state: State) -> Variables:
    """The average of the iterates up to a state."""
    return average.at(state) if isinstance(average, LateAverage) else average
