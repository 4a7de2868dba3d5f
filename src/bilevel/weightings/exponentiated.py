"""min-max by exponentiated gradient (Hedge): multiplicative weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate
from bilevel._core.simplex_program import Bounds
from bilevel.weightings.base import Weighting, uniform


@part
class Exponentiated(Weighting[jax.Array]):
    """weights_i proportional to weights_i exp(lr * loss_i), then mixed with floor / n.

    The state keeps logarithms, so that a weight that underflowed can still grow again. In units of `SimplexAscent` a
    step is smaller by about the weight itself, so usable rates are larger by about n.

    A move of n weights passes over them about five times. Where a step sees m of them, they move every n // (8 m)
    steps: about 40 m numbers a step.

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
