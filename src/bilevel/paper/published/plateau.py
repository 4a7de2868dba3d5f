"""Rates that fall on plateaus, as PyTorch's ReduceLROnPlateau has it: optax's waits one evaluation less."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

BETTER = 1e-4  # a metric counts as lower if it is below (1 - BETTER) times the lowest so far
LEAST = 1e-8  # a rate that would fall by less stays


class Falling(NamedTuple):
    """A rate, and what decides whether it falls."""

    rate: jax.Array
    lowest: jax.Array
    bad: jax.Array  # evaluations since a lower metric, or since the rate last fell

    @classmethod
    def start(cls, rate: jax.Array) -> Falling:
        """Before the first metric."""
        return cls(rate, jnp.full_like(rate, jnp.inf), jnp.zeros(rate.shape, jnp.int32))

    def after(self, metric: jax.Array, patience: int, factor: float) -> Falling:
        """The rate after a metric: it falls when more than `patience` were no lower."""
        lower = metric < self.lowest * (1 - BETTER)
        bad = jnp.where(lower, 0, self.bad + 1)
        falls = bad > patience
        smaller = (self.rate * factor).astype(self.rate.dtype)
        rate = jnp.where(falls & (self.rate - smaller > LEAST), smaller, self.rate)
        return Falling(rate, jnp.where(lower, metric, self.lowest), jnp.where(falls, 0, bad))
