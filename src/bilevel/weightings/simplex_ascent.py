"""min-max: projected gradient ascent on the simplex, MORBiT's third line."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate
from bilevel.weightings.base import check_fraction, uniform


@part
class SimplexAscent:
    """weights <- projection onto the simplex of (weights + lr * losses).

    Args:
        lr: gamma; a number, a schedule, or None = chosen by the solver.
        pull: the strength e of a pull to uniform weights, the term -e ||weights - 1/n||^2 that the paper adds for its
            sinusoids. It moves the solution: the worst loss is then approximated to within e (1 - 1/n).
        floor: no weight falls below floor / n, so that no task is forgotten. A small floor leaves a solution where
            several tasks tie where it is.

    The floor is exact: projecting onto {weights >= floor/n} is projecting onto a simplex of total 1 - floor and adding
    floor/n, because a projection onto a simplex does not feel a shift of all its entries.

    Reference: Gu, Lu, Ram, Weng, "Min-max multi-objective bilevel optimization with applications in robust machine
    learning", ICLR 2023, Algorithm 1 and appendix C.1.

    >>> ascent = SimplexAscent(lr=0.1)
    >>> weights, state = ascent.init(2, jnp.float32)
    >>> ascent.update(weights, jnp.array([1.0, 3.0]), state, 0.1)[0].round(3).tolist()
    [0.4..., 0.6...]
    """

    lr: Rate = leaf(default=None)  # gamma
    pull: float = leaf(default=0.0)  # epsilon_lambda
    floor: float = leaf(default=0.0)  # delta

    moves = True

    def check(self, n: int) -> None:
        """0 <= floor < 1 and pull >= 0."""
        check_fraction("SimplexAscent(floor)", self.floor, one=False)
        if isinstance(self.pull, str) or not self.pull >= 0:
            raise ValueError(f"SimplexAscent(pull={self.pull!r}): it needs a number, 0 or more.")

    def init(self, n: int, dtype: Any) -> tuple[jax.Array, tuple]:
        """1/n for everyone."""
        return uniform(n, dtype), ()

    def update(self, weights: jax.Array, losses: jax.Array, state: tuple, rate: Any) -> tuple[jax.Array, tuple]:
        """One step of projected ascent."""
        n = weights.shape[0]
        # Only differences of losses matter; without their common part the sum keeps its digits, and n = 1 is exact.
        ascent = losses - jnp.max(losses) - 2 * self.pull * (weights - 1 / n)
        floor = jnp.asarray(self.floor, weights.dtype)
        projected = optax.projections.projection_simplex(weights + rate * ascent, 1 - floor)
        return (floor / n + projected).astype(weights.dtype), state
