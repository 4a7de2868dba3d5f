"""Weights that losses do not move: `Average` is min-avg, `Fixed` has weights that the user has chosen."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from bilevel._core import pytrees, values
from bilevel._core.module import leaf, part
from bilevel._core.simplex_program import Bounds
from bilevel._core.types import Tree
from bilevel.weightings.base import Weighting, uniform


@part
class Average(Weighting[tuple[()]]):
    """Weights 1/n: minimises the mean of the tasks' losses (min-avg, the common practice), or of their distribution."""

    lr = None
    moves = False
    weighs_draws = True

    def init(self, n: int, dtype: DTypeLike) -> tuple[jax.Array, tuple[()]]:
        """1/n for each task."""
        return uniform(n, dtype), ()

    def update(
        self, weights: jax.Array, losses: jax.Array, state: tuple[()], rate: ArrayLike
    ) -> tuple[jax.Array, tuple[()]]:
        """The weights as they are."""
        return weights, state

    def bounds(self, n: int, dtype: DTypeLike) -> Bounds:
        """One point: the weights never move."""
        return Bounds(uniform(n, dtype), uniform(n, dtype))

    def weigh_draw(self, losses: jax.Array, state: Tree) -> tuple[jax.Array, Tree]:
        """1/m for each task."""
        return uniform(losses.shape[0], losses.dtype), state


@part
class Fixed(Weighting[tuple[()]]):
    """The given weights, one per task in the order of the tasks: non-negative, of sum 1.

    >>> Fixed([0.75, 0.25]).init(2, jnp.float32)[0].tolist()
    [0.75, 0.25]
    """

    weights: ArrayLike | list[float] | tuple[float, ...] = leaf()

    lr = None
    moves = False

    def check(self, n: int) -> None:
        """The weights must be n numbers on the simplex."""
        if pytrees.is_traced(self.weights):
            return
        given = values.numbers_of("weights", self.weights, of="Fixed")
        if given.shape != (n,) or not np.all(given >= 0) or abs(given.sum() - 1) > 1e-5:
            raise ValueError(f"Fixed(weights={self.weights!r}): it needs {n} non-negative numbers of sum 1.")

    def init(self, n: int, dtype: DTypeLike) -> tuple[jax.Array, tuple[()]]:
        """The given weights."""
        return jnp.asarray(self.weights, dtype), ()

    def update(
        self, weights: jax.Array, losses: jax.Array, state: tuple[()], rate: ArrayLike
    ) -> tuple[jax.Array, tuple[()]]:
        """The weights as they are."""
        return weights, state

    def bounds(self, n: int, dtype: DTypeLike) -> Bounds:
        """One point: the weights never move."""
        return Bounds(jnp.asarray(self.weights, dtype), jnp.asarray(self.weights, dtype))
