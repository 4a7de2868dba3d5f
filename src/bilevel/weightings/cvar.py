"""Conditional value at risk: the mean over the worst fraction of the tasks, of a list or of a distribution.

For a distribution F of losses, of which every step sees another draw,

    CVaR_fraction(F) = min over t of  t + E[(F - t)_+] / fraction

and t = the (1 - fraction) quantile of F is a minimiser (Rockafellar and Uryasev, 2000). So task i of a draw of m has

    weight_i = 1[F_i > t] / (fraction m),          1 / m where F_i = t

If t does not depend on the draw, sum_i weight_i grad F_i is an unbiased estimate of the gradient in x of
t + E[(F - t)_+] / fraction, for any m. t follows the quantile by the derivative of the same formula in t, which is
1 - sum_i weight_i on average, in units of the distance s of losses from t:

    t <- t + s clip(a_k (sum_i weight_i - 1), -1, 1),     s <- s + a_k (mean_i |F_i - t| - s),     a_k = 10 / (20 + k)

If losses are scaled or shifted, t is scaled or shifted likewise and the weights stay the same. a_k falls as 10 / k, so
that t is an average over about a tenth of the run so far: it follows while x is far off, and its noise vanishes in the
end.

What is biased: (a) t lags behind falling losses, so that fewer tasks count than the fraction and x is slower. Once
losses stop falling the weights sum to 1 on average, because t rises while they sum to more. (b) While t is noisy, the
mean direction is that of a mixture of quantiles, an error of second order in the noise. (c) A loss on few rows is
noisy, and in the tail of noisy losses noise takes the place of some of the worst tasks. The direction is measured on
other rows and does not have this noise, but it does have that of y_i, which both use. Taking the worst tasks of the
draw itself, instead of following t, would keep a bias of O(1 / m) for ever (Levy, Carmon, Duchi, Sidford, 2020).

References: Rockafellar and Uryasev, "Optimization of conditional value-at-risk", Journal of Risk, 2000; Levy, Carmon,
Duchi, Sidford, "Large-scale methods for distributionally robust optimization", NeurIPS 2020. t moves by stochastic
approximation of a quantile (Robbins and Monro, 1951); doing so in units of the spread is ours.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate
from bilevel._core.simplex_program import Bounds
from bilevel.weightings.base import Weighting, uniform

MEMORY = 10.0  # t is an average over about 1 / MEMORY of the draws so far
EARLY = 20.0  # draws, before which t follows with a constant share


@part
class CVaR(Weighting[tuple[()]]):
    """Projected ascent on the capped simplex {0 <= weights <= 1 / (fraction n)}.

    At the solution the weighted loss is the mean over the worst `fraction` of the tasks: fraction = 1 is min-avg,
    fraction <= 1/n is min-max, and one outlier among many tasks no longer decides alone.

    With tasks from a distribution (`bl.sampling.Fresh`) it is the mean over the worst `fraction` of the distribution:
    `bilevel.weightings.cvar` has the estimate, and says what of it is biased. No rate is needed then.

    A move sorts the n weights and passes over them 60 times. If a step sees m tasks, the weights move every n // (8 m)
    steps: a sort's share, 8 m log n, and about 500 m numbers a step. `SimplexAscent` costs much less.

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
        """An unknown tail."""
        return Tail.start(dtype)

    def weigh_draw(self, losses: jax.Array, state: Tail) -> tuple[jax.Array, Tail]:
        """1 / (fraction m) for each task in the tail."""
        return state.weigh(losses, self.fraction)


def _closed_up(values: jax.Array, cap: jax.Array) -> jax.Array:
    """The values with gaps between neighbours cut to `cap`, which does not change the projection.

    Across a wider gap no shift leaves values on both sides strictly between 0 and the cap. Without this, bisection over
    values that are 1e30 apart would lose all digits.
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


class Tail(NamedTuple):
    """Estimate of where the tail of a distribution begins, from the draws so far."""

    level: jax.Array  # t
    spread: jax.Array  # s
    draws: jax.Array  # k

    @classmethod
    def start(cls, dtype: DTypeLike) -> Tail:
        """An unknown tail: the first draw takes its own quantile."""
        zero = jnp.zeros((), dtype)
        return cls(zero, zero, jnp.zeros((), jnp.int32))

    def weigh(self, losses: jax.Array, fraction: ArrayLike) -> tuple[jax.Array, Tail]:
        """The weights of a draw according to the draws before it, and the tail after it."""
        dtype, first = self.level.dtype, self.draws == 0
        losses = losses.astype(dtype)
        share = jnp.asarray(fraction, dtype)
        level = jnp.where(first, jnp.quantile(losses, 1 - share), self.level)
        distance = jnp.mean(jnp.abs(losses - level))
        spread = jnp.where(first, distance, self.spread)
        weights = shares(losses, level, share)
        gain = (MEMORY / (EARLY + self.draws)).astype(dtype)
        rise = jnp.clip(gain * (jnp.sum(weights) - 1), -1, 1)
        return weights, Tail(level + spread * rise, spread + gain * (distance - spread), self.draws + 1)


def shares(losses: jax.Array, level: ArrayLike, fraction: ArrayLike) -> jax.Array:
    """The weight of each task of a draw, if the tail begins at `level`.

    >>> shares(jnp.array([3.0, 1.0, 2.0, 5.0]), 2.5, 0.5).tolist()
    [0.5, 0.0, 0.0, 0.5]
    >>> shares(jnp.array([3.0, 1.0, 2.0, 5.0]), 2.5, 1.0).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    fraction = jnp.asarray(fraction, losses.dtype)
    above = jnp.where(losses > level, 1 / fraction, jnp.where(losses == level, 1, 0))
    return jnp.where(fraction >= 1, 1, above).astype(losses.dtype) / losses.shape[0]
