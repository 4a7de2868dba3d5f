"""The compiled loop: the only place where steps are looped over.

How many steps a call takes is data, so neither the number of steps nor how often a run is evaluated changes what is
compiled. Step k draws from fold_in(key, k), so how a run is cut into calls does not change it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bilevel._core import pytrees
from bilevel.problem.problem import Grouped
from bilevel.solvers._base.solver import Info

AVERAGE_POWER = 3  # weights ~ k^3: nearly half of the run counts, its end the most


class Point(NamedTuple):
    """What an iterate consists of."""

    x: Any
    y: tuple
    weights: jax.Array


class Watch(NamedTuple):
    """What is summed up between evaluations."""

    squares: jax.Array  # of the direction's norm
    travel: jax.Array  # of the weights: sum of |changes|
    low: jax.Array  # the least and the largest that each weight was
    high: jax.Array

    @classmethod
    def start(cls, weights: jax.Array) -> Watch:
        """Nothing seen yet."""
        zero = jnp.zeros((), weights.dtype)
        return cls(zero, zero, weights, weights)

    def see(self, norm: jax.Array, before: jax.Array, after: jax.Array) -> Watch:
        """One step more."""
        return Watch(
            self.squares + norm**2,
            self.travel + jnp.sum(jnp.abs(after - before)),
            jnp.minimum(self.low, after),
            jnp.maximum(self.high, after),
        )


class Run(NamedTuple):
    """What a compiled call carries."""

    state: Any
    average: Point
    random: Point
    info: Info  # of the last step
    watch: Watch
    finite: jax.Array  # losses and direction in every step; x, y and the weights after the last


@jax.jit
def first(solver: Any, problem: Grouped, state: Any, key: jax.Array) -> Run:
    """A run before its first step."""
    point = Point(state.x, state.y, state.weights)
    _, info = jax.eval_shape(solver.step, problem, state, key)
    nothing = jax.tree.map(lambda a: jnp.full(a.shape, jnp.nan, a.dtype), info)
    return Run(state, point, point, nothing, Watch.start(state.weights), jnp.array(True))


@jax.jit
def steps(solver: Any, problem: Grouped, run: Run, key: jax.Array, stop: Any, pick: Any) -> Run:
    """Steps up to `stop`; the state before step `pick`, with y after it, becomes the random iterate."""

    def one(run: Run) -> Run:
        state, info = solver.step(problem, run.state, jax.random.fold_in(key, run.state.step))
        k = state.step.astype(state.weights.dtype)
        share = (1 + AVERAGE_POWER) / (k + AVERAGE_POWER)
        point = Point(state.x, state.y, state.weights)
        average = jax.tree.map(lambda a, p: a + (share * (p - a)).astype(a.dtype), run.average, point)
        watch = run.watch.see(info.direction_norm, run.state.weights, state.weights)
        finite = jnp.all(jnp.isfinite(info.losses)) & jnp.isfinite(info.direction_norm)
        return Run(state, average, run.random, info, watch, finite)

    # Three stretches, before the picked step, the step itself and after it, in a loop so that `one` is compiled once.
    ends = jnp.stack([jnp.minimum(pick, stop), jnp.minimum(pick + 1, stop), jnp.asarray(stop)])

    def stretch(run: Run, part: tuple) -> tuple[Run, None]:
        number, end = part
        run = jax.lax.while_loop(lambda run: (run.state.step < end) & run.finite, one, run)
        state, kept = run.state, run.random
        here, after = (pick < stop) & (number == 0), (pick < stop) & (number == 1)
        choose = lambda when, new, old: jax.tree.map(lambda n, o: jnp.where(when, n, o), new, old)  # noqa: E731
        kept = Point(
            choose(here, state.x, kept.x),
            choose(after, state.y, kept.y),
            choose(here, state.weights, kept.weights),
        )
        return run._replace(random=kept), None

    run = jax.lax.scan(stretch, run, (jnp.arange(3), ends))[0]
    state = run.state
    return run._replace(finite=run.finite & pytrees.all_finite((state.x, state.y, state.weights)))
