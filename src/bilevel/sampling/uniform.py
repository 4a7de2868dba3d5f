"""Some tasks, all of them equally likely."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bilevel._core.module import part
from bilevel.sampling.base import Draw, Sampling


@part
class Uniform(Sampling):
    """`tasks` tasks in every step, drawn uniformly without replacement.

    Where few tasks decide, as in min-max problems, most of what it draws has a weight of almost 0: see `Mixture`.

    >>> import bilevel as bl
    >>> bl.SOBA(sampling=bl.sampling.Uniform(64)).sampling
    Uniform(tasks=64)
    """

    tasks: int

    def draw(self, urn: Any, weights: jax.Array, count: int, key: jax.Array) -> Draw:
        """`count` places, at a cost that does not depend on how many there are."""
        size = weights.shape[0]
        share = jnp.full(count, count / size, weights.dtype)
        if count == size:
            return Draw(jnp.arange(count), share)
        last = jnp.arange(size - count, size)
        return Draw(subset(jax.random.randint(key, (count,), 0, last + 1), size), share)


def subset(numbers: jax.Array, size: int) -> jax.Array:
    """Different places below `size`, all subsets equally likely, from m numbers: number j of 0..size-m+j.

    Reference: Floyd's algorithm, in Bentley, "Programming pearls: a sample of brilliance", 1987.

    >>> subset(jnp.array([1, 1]), 3).tolist()
    [1, 2]
    """
    count = numbers.shape[0]

    def add(j: jax.Array, places: jax.Array) -> jax.Array:
        taken = jnp.any(places == numbers[j])
        return places.at[j].set(jnp.where(taken, size - count + j, numbers[j]))

    return jax.lax.fori_loop(0, count, add, jnp.full(count, -1, numbers.dtype))
