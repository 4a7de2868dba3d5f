"""min-avg: every task counts the same, always."""

from __future__ import annotations

from typing import Any

import jax
from jax.typing import ArrayLike, DTypeLike

from bilevel._core.module import part
from bilevel._core.simplex_program import Bounds
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
        """Nothing moves."""
        return weights, state

    def bounds(self, n: int, dtype: DTypeLike) -> Bounds:
        """One point."""
        return Bounds(uniform(n, dtype), uniform(n, dtype))

    def weigh_draw(self, losses: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        """1/m for each task."""
        return uniform(losses.shape[0], losses.dtype), state
