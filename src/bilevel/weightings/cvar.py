"""Conditional value at risk: the mean over the worst fraction of the tasks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate
from bilevel._core.simplex_program import Bounds
from bilevel.weightings.base import Weighting, uniform
from bilevel.weightings.tail import Tail


@part
class CVaR(Weighting[tuple[()]]):
    """Projected ascent on the capped simplex {0 <= weights <= 1 / (fraction n)}.

    At the solution the weighted loss is the mean over the worst `fraction` of the tasks: fraction = 1 is min-avg,
    fraction <= 1/n is min-max, and one outlier among many tasks no longer decides alone.

    Of tasks from a distribution (`bl.sampling.Fresh`) it is the mean over the worst `fraction` of all that there are:
    `bilevel.weightings.tail` has the estimate, and what of it is unbiased. It needs no rate there.

    A move of n weights sorts them, and passes over them 60 times. Where a step sees m of them, they move every
    n // (8 m) steps: a sort's share, 8 m log n, and about 500 m numbers a step. `SimplexAscent` costs much less.

    References: Rockafellar and Uryasev, "Optimization of conditional value-at-risk", 2000; Mehta, Lee, Gray, "Minimax
    multi-task learning", 2012; of a distribution, Levy, Carmon, Duchi, Sidford, "Large-scale methods for
    distributionally robust optimization", NeurIPS 2020. With bilevel problems it is an extension of ours.
    """

    fraction: float = leaf()
    lr: Rate = leaf(default=None)

    moves = True
    weighs_draws = True

    def check(self, n: int) -> None:
        """0 < fraction <= 1."""
        values.share("fraction", self.fraction, of="CVaR")

    def init(self, n: int, dtype: DTypeLike) -> tuple[jax.Array, tuple[()]]:
        """1/n for each task."""
        return uniform(n, dtype), ()

    def update(
        self, weights: jax.Array, losses: jax.Array, state: tuple[()], rate: ArrayLike
    ) -> tuple[jax.Array, tuple[()]]:
        """One step of projected ascent."""
        cap = 1 / (self.fraction * weights.shape[0])
        projected = project_capped(weights + rate * (losses - jnp.max(losses)), cap)
        return projected.astype(weights.dtype), state

    def bounds(self, n: int, dtype: DTypeLike) -> Bounds:
        """The capped simplex."""
        return Bounds(jnp.zeros(n, dtype), jnp.minimum(jnp.full(n, 1 / n, dtype) / self.fraction, 1).astype(dtype))

    def start_draws(self, dtype: DTypeLike) -> Tail:
        """The tail is not known yet."""
        return Tail.start(dtype)

    def weigh_draw(self, losses: jax.Array, state: Tail) -> tuple[jax.Array, Tail]:
        """1 / (fraction m) for each task in the tail."""
        return state.weigh(losses, self.fraction)


def _closed_up(values: jax.Array, cap: jax.Array) -> jax.Array:
    """The same values with gaps of at most `cap` between neighbours, which have the same projection.

    Where a gap is wider, no shift leaves values on both sides of it strictly between 0 and the cap. Bisection over
    values that lie 1e30 apart would lose all digits.
    """
    order = jnp.argsort(-values)
    gaps = jnp.minimum(-jnp.diff(values[order]), cap)
    return values.at[order[1:]].set(values[order[0]] - jnp.cumsum(gaps))


def project_capped(values: jax.Array, cap: ArrayLike) -> jax.Array:
    """The projection onto {0 <= w <= cap, sum w = 1}: clip(values - t, 0, cap) with t such that the sum is 1.

    >>> project_capped(jnp.array([3.0, 2.0, -1.0]), 0.5).tolist()
    [0.5, 0.5, 0.0]
    """
    cap = jnp.clip(jnp.asarray(cap, values.dtype), 1 / values.shape[0], 1)
    values = _closed_up(values, cap)
    low, high = jnp.min(values) - cap, jnp.max(values)

    def halve(_: int, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = ends
        middle = (low + high) / 2
        above = jnp.sum(jnp.clip(values - middle, 0, cap)) >= 1
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    low, high = jax.lax.fori_loop(0, 60, halve, (low, high))
    # Bisection has found which entries are strictly between 0 and the cap; their exact common shift follows.
    shifted = values - (low + high) / 2
    between, capped = (shifted > 0) & (shifted < cap), shifted >= cap
    free = jnp.sum(between, dtype=values.dtype)
    rest = 1 - cap * jnp.sum(capped, dtype=values.dtype)
    shift = (jnp.sum(jnp.where(between, shifted, 0)) - rest) / jnp.maximum(free, 1)
    exact = jnp.where(capped, cap, jnp.where(between, jnp.clip(shifted - shift, 0, cap), 0))
    return jnp.where(free > 0, exact, jnp.clip(shifted, 0, cap))
