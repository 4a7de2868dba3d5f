"""min-avg: every task counts the same, always."""

from __future__ import annotations

import jax
from jax.typing import ArrayLike, DTypeLike

from bilevel._core.module import part
from bilevel.weightings.base import Weighting, uniform


@part
class Average(Weighting[tuple[()]]):
    """Weights 1/n: minimises the mean of the tasks' losses (min-avg, the common practice)."""

    lr = None
    moves = False

    def init(self, n: int, dtype: DTypeLike) -> tuple[jax.Array, tuple[()]]:
        """1/n for each task."""
        return uniform(n, dtype), ()

    def update(
        self, weights: jax.Array, losses: jax.Array, state: tuple[()], rate: ArrayLike
    ) -> tuple[jax.Array, tuple[()]]:
        """Nothing moves."""
        return weights, state
