"""min-max: `SimplexAscent`, MORBiT's third line, and `Exponentiated`, multiplicative weights (Hedge)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike, DTypeLike

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate
from bilevel._core.simplex_program import Bounds
from bilevel.weightings.base import Weighting, uniform

SORTED = 1000  # more values are projected without sorting, which would take far longer


@part
class SimplexAscent(Weighting[tuple[()]]):
    """weights <- projection onto the simplex of (weights + lr * losses).

    Args:
        lr: gamma; a number, a schedule, or None = chosen by the solver.
        pull: the strength e of a pull to uniform weights, the term -e ||weights - 1/n||^2 that the paper adds for its
            sinusoids. It moves the solution: the worst loss is then approximated to within e (1 - 1/n).
        floor: no weight falls below floor / n, so that no task is forgotten. A small floor does not move
            a solution at which several tasks tie.

    The floor is exact: projecting onto {weights >= floor/n} is projecting onto a simplex of total 1 - floor and adding
    floor/n, because a projection onto a simplex does not depend on a shift of all entries.

    A move sorts the n weights; more than 1,000 weights are instead passed over about ten times. If a step sees m tasks,
    the weights move every n // (8 m) steps, which is about 80 m numbers a step.

    Reference: Gu, Lu, Ram, Weng, "Min-max multi-objective bilevel optimization with applications in robust machine
    learning", ICLR 2023, Algorithm 1 and appendix C.1.

    >>> ascent = SimplexAscent(lr=0.1)
    >>> weights, state = ascent.init(2, jnp.float32)
    >>> ascent.update(weights, jnp.array([1.0, 3.0]), state, 0.1)[0].round(3).tolist()
    [0.4..., 0.6...]
    """

    lr: Rate = leaf(default=None)  # gamma
    pull: float = leaf(default=0.0)  # epsilon_lambda
    floor: float = leaf(default=0.0)  # delta

    moves = True

    def check(self, n: int) -> None:
        """0 <= floor < 1 and pull >= 0."""
        values.fraction("floor", self.floor, of="SimplexAscent")
        values.number("pull", self.pull, least=0, of="SimplexAscent")

    def init(self, n: int, dtype: DTypeLike) -> tuple[jax.Array, tuple[()]]:
        """1/n for each task."""
        return uniform(n, dtype), ()

    def update(
        self, weights: jax.Array, losses: jax.Array, state: tuple[()], rate: ArrayLike
    ) -> tuple[jax.Array, tuple[()]]:
        """One step of projected ascent."""
        n = weights.shape[0]
        # Only differences of losses matter; without their common part the sum keeps its digits, and n = 1 is exact.
        ascent = losses - jnp.max(losses) - 2 * self.pull * (weights - 1 / n)
        floor = jnp.asarray(self.floor, weights.dtype)
        moved = weights + rate * ascent
        # A weight 1 below the largest becomes 0 in any case, and sums near the largest float would overflow.
        moved = jnp.maximum(moved, jnp.max(moved) - 1)
        projected = project(moved, 1 - floor)
        return (floor / n + projected).astype(weights.dtype), state

    def bounds(self, n: int, dtype: DTypeLike) -> Bounds:
        """The simplex above the floor."""
        return Bounds(jnp.full(n, self.floor / n, dtype), jnp.ones(n, dtype))


def project(values: jax.Array, total: ArrayLike) -> jax.Array:
    """The projection onto {w >= 0, sum w = total}: max(values - t, 0), with t such that the sum is right.

    Many values are not sorted. Instead t is set to that of the values above it, again and again, until all stay above.

    Reference: Michelot, "A finite algorithm for finding the projection of a point onto the canonical simplex", 1986.

    >>> project(jnp.concatenate([jnp.array([3.0, 2.5]), jnp.zeros(5000)]), 1.0)[:3].tolist()
    [0.75, 0.25, 0.0]
    """
    if values.shape[0] <= SORTED:
        return optax.projections.projection_simplex(values, total)
    values = values - jnp.max(values)  # for the sums to keep their digits

    def rise(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        least, _ = state
        above = values > least
        count = jnp.sum(above, dtype=values.dtype)
        new = (jnp.sum(jnp.where(above, values, 0)) - total) / jnp.maximum(count, 1)
        return jnp.maximum(least, new).astype(values.dtype), new > least

    start = jnp.min(values) - 1, jnp.array(True)
    least, _ = jax.lax.while_loop(lambda state: state[1], rise, start)
    return jnp.maximum(values - least, 0)


@part
class Exponentiated(Weighting[jax.Array]):
    """weights_i proportional to weights_i exp(lr * loss_i), then mixed with floor / n.

    The state keeps logarithms, so that a weight that underflowed can grow again. A step is smaller than one of
    `SimplexAscent` by about a factor of the weight itself, so usable rates are larger by about n.

    A move passes over the n weights about five times. If a step sees m tasks, the weights move every n // (8 m) steps,
    which is about 40 m numbers a step.

    Reference: Freund and Schapire, "Adaptive game playing using multiplicative weights", 1999. With bilevel problems it
    is an extension of ours; the paper has the projected step.
    """

    lr: Rate = leaf(default=None)
    floor: float = leaf(default=0.0)

    moves = True

    def check(self, n: int) -> None:
        """0 <= floor < 1."""
        values.fraction("floor", self.floor, of="Exponentiated")

    def init(self, n: int, dtype: DTypeLike) -> tuple[jax.Array, jax.Array]:
        """1/n for each task; the state is their logarithm."""
        weights = uniform(n, dtype)
        return weights, jnp.log(weights)

    def update(
        self, weights: jax.Array, losses: jax.Array, state: jax.Array, rate: ArrayLike
    ) -> tuple[jax.Array, jax.Array]:
        """One multiplicative step."""
        logs = jax.nn.log_softmax(state + rate * (losses - jnp.max(losses)))
        floor = jnp.asarray(self.floor, weights.dtype)
        return ((1 - floor) * jnp.exp(logs) + floor / weights.shape[0]).astype(weights.dtype), logs.astype(state.dtype)

    def bounds(self, n: int, dtype: DTypeLike) -> Bounds:
        """The simplex above the floor."""
        return Bounds(jnp.full(n, self.floor / n, dtype), jnp.ones(n, dtype))
