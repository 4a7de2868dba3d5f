"""All tasks in every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bilevel._core.module import part
from bilevel.sampling.base import Draw, Sampling


@part
class All(Sampling):
    """All tasks in every step, as published."""

    draws = False

    def check(self, sizes: Sequence[int]) -> None:
        """There is nothing to check."""

    def counts(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """All of them."""
        return tuple(sizes)

    def draw(self, urn: Any, weights: jax.Array, count: int, key: jax.Array) -> Draw:
        """All of them, in their order."""
        return Draw(jnp.arange(count), jnp.ones_like(weights))
