"""min-avg: every task counts the same, always."""

from __future__ import annotations

from typing import Any

import jax

from bilevel._core.module import part
from bilevel.weightings.base import uniform


@part
class Average:
    """Weights 1/n: minimises the mean of the tasks' losses (min-avg, today's habit)."""

    lr = None
    moves = False

    def check(self, n: int) -> None:
        """Nothing can be wrong."""

    def init(self, n: int, dtype: Any) -> tuple[jax.Array, tuple]:
        """1/n for everyone."""
        return uniform(n, dtype), ()

    def update(self, weights: jax.Array, losses: jax.Array, state: tuple, rate: Any) -> tuple[jax.Array, tuple]:
        """Nothing moves."""
        return weights, state
