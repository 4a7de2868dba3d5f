"""Weights that the user has chosen."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core.module import leaf, part


@part
class Fixed:
    """The given weights, one per task in the order of the tasks: non-negative, of sum 1.

    >>> Fixed([0.75, 0.25]).init(2, jnp.float32)[0].tolist()
    [0.75, 0.25]
    """

    weights: Any = leaf()

    lr = None
    moves = False

    def check(self, n: int) -> None:
        """The weights must be n numbers on the simplex."""
        given = np.asarray(self.weights, float)
        if given.shape != (n,) or not np.all(given >= 0) or abs(given.sum() - 1) > 1e-5:
            raise ValueError(f"Fixed(weights={self.weights!r}): it needs {n} non-negative numbers of sum 1.")

    def init(self, n: int, dtype: Any) -> tuple[jax.Array, tuple]:
        """The given weights."""
        return jnp.asarray(self.weights, dtype), ()

    def update(self, weights: jax.Array, losses: jax.Array, state: tuple, rate: Any) -> tuple[jax.Array, tuple]:
        """Nothing moves."""
        return weights, state
