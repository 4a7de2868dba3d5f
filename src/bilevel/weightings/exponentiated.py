"""min-max by exponentiated gradient (Hedge): multiplicative weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate
from bilevel.weightings.base import check_fraction, uniform


@part
class Exponentiated:
    """weights_i proportional to weights_i exp(lr * loss_i), then mixed with floor / n.

    The state keeps logarithms, so that a weight too small for a float still comes back. In units of `SimplexAscent` a
    step is smaller by about the weight itself, so usable rates are larger by about n.

    Reference: Freund and Schapire, "Adaptive game playing using multiplicative weights", 1999. With bilevel problems it
    is an extension of ours; the paper has the projected step.
    """

    lr: Rate = leaf(default=None)
    floor: float = leaf(default=0.0)

    moves = True

    def check(self, n: int) -> None:
        """0 <= floor < 1."""
        check_fraction("Exponentiated(floor)", self.floor, one=False)

    def init(self, n: int, dtype: Any) -> tuple[jax.Array, jax.Array]:
        """1/n for everyone; the state is their logarithm."""
        weights = uniform(n, dtype)
        return weights, jnp.log(weights)

    def update(self, weights: jax.Array, losses: jax.Array, state: jax.Array, rate: Any) -> tuple[jax.Array, jax.Array]:
        """One multiplicative step."""
        logs = jax.nn.log_softmax(state + rate * (losses - jnp.max(losses)))
        floor = jnp.asarray(self.floor, weights.dtype)
        return ((1 - floor) * jnp.exp(logs) + floor / weights.shape[0]).astype(weights.dtype), logs.astype(state.dtype)
