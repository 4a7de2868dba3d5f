"""Tasks that are only watched: they fit their y along the run and move nothing else."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bilevel._core.module import part
from bilevel._core.schedules import Rate
from bilevel.weightings.base import Weighting
from bilevel.weightings.simplex_ascent import SimplexAscent


@part
class Watched:
    """The first `seen` tasks are weighed by `weighting`; the others, unseen by x, have weight 0.

    Unseen tasks fit their heads to the shared x along the run, and x knows nothing of them: how well they do says how
    well x serves tasks that it was not made for.

    Args:
        seen: how many tasks, the first ones, count.
        weighting: of these.

    >>> weights, state = Watched(2).init(3, jnp.float32)
    >>> weights.tolist()
    [0.5, 0.5, 0.0]
    """

    seen: int
    weighting: Weighting = SimplexAscent()

    def __post_init__(self) -> None:
        if isinstance(self.weighting, type) or not hasattr(self.weighting, "update"):
            raise TypeError(f"Watched(weighting={self.weighting!r}): it needs a weighting object, such as Average().")

    @property
    def lr(self) -> Rate:
        """That of the seen tasks' weighting."""
        return self.weighting.lr

    @property
    def moves(self) -> bool:
        """Whether the seen tasks' weights move."""
        return self.weighting.moves

    def check(self, n: int) -> None:
        """1 <= seen <= n."""
        if isinstance(self.seen, bool) or not isinstance(self.seen, int) or not 1 <= self.seen <= n:
            raise ValueError(f"Watched(seen={self.seen!r}): it needs a whole number from 1 to the {n} tasks.")
        self.weighting.check(self.seen)

    def init(self, n: int, dtype: Any) -> tuple[jax.Array, Any]:
        """The first weights."""
        weights, state = self.weighting.init(self.seen, dtype)
        return jnp.pad(weights, (0, n - self.seen)), state

    def update(self, weights: jax.Array, losses: jax.Array, state: Any, rate: Any) -> tuple[jax.Array, Any]:
        """The next weights."""
        moved, state = self.weighting.update(weights[: self.seen], losses[: self.seen], state, rate)
        return jnp.pad(moved, (0, len(weights) - self.seen)), state
