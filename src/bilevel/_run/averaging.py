"""What an iterate consists of, and the average of the iterates, also where a step moves a few of the tasks only."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bilevel.problem.per_task import PerTask, for_groups
from bilevel.solvers._base.rows import Rows
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

    A step from j - 1 to j keeps (j - 1) / (j + p) of the distance; the product over the steps telescopes. `since` may
    be one number for each row.
    """
    kept = jnp.ones_like(since, dtype)
    for i in range(1 + POWER):
        # As floats first: the ratio of two int32 is a float32, also where the run is in float64.
        kept = kept * (since + i).astype(dtype) / jnp.maximum(until + i, 1).astype(dtype)
    kept = jnp.where(since == until, 1, kept)

    def one(a: jax.Array, p: jax.Array) -> jax.Array:
        return p + (kept.reshape(kept.shape + (1,) * (a.ndim - kept.ndim)) * (a - p)).astype(a.dtype)

    return jax.tree.map(one, average, point)


class LateAverage(NamedTuple):
    """The average of iterates of which a step moves a few rows: each row is brought up to date when it moves."""

    point: Variables
    rows: PerTask[jax.Array]  # the step of which the average of each row of y is
    weights: jax.Array  # and of that of the weights

    @classmethod
    def start(cls, state: State) -> LateAverage:
        """Before the first step."""
        rows = for_groups(lambda y: jnp.zeros(jax.tree.leaves(y)[0].shape[0], jnp.int32), state.y)
        return cls(Variables.of(state), rows, jnp.zeros((), jnp.int32))

    def see(self, before: State, after: State, tasks: Rows) -> LateAverage:
        """After a step that moved x, and y of these tasks."""
        dtype, step = after.weights.dtype, after.step

        def current(average: Any, old: Any, new: Any, since: jax.Array) -> Any:
            return add(rested(average, old, since, step - 1, dtype), new, step, dtype)

        known = self.point.y, self.rows
        average, since = taken = tasks.take(known)
        y = for_groups(current, average, tasks.take(before.y), tasks.take(after.y), since)
        # The maximum is the step. Without it rows could be written before they are read, and all would be copied.
        now = for_groups(lambda own: jnp.maximum(own, step), since)
        y, rows = tasks.put(known, taken, (y, now))
        x = add(self.point.x, after.x, step, dtype)
        return LateAverage(self.point._replace(x=x, y=y), rows, self.weights)

    def weigh(self, before: State, after: State) -> LateAverage:
        """After a move of the weights."""
        dtype, step = after.weights.dtype, after.step
        current = rested(self.point.weights, before.weights, self.weights, step - 1, dtype)
        weights = add(current, after.weights, step, dtype)
        return self._replace(point=self.point._replace(weights=weights), weights=step)

    def at(self, state: State) -> Variables:
        """The average now, of everything."""
        dtype, step = state.weights.dtype, state.step
        late = lambda average, y, since: rested(average, y, since, step, dtype)  # noqa: E731
        y = for_groups(late, self.point.y, state.y, self.rows)
        return Variables(self.point.x, y, rested(self.point.weights, state.weights, self.weights, step, dtype))


@jax.jit
def average_of(average: Variables | LateAverage, state: State) -> Variables:
    """The average of the iterates up to a state."""
    return average.at(state) if isinstance(average, LateAverage) else average
