"""The worst fraction of a distribution of losses, of which every step sees another draw.

CVaR_fraction(F) = min over t of  t + E[(F - t)_+] / fraction,  and t = the (1 - fraction) quantile of F is a minimiser
(Rockafellar and Uryasev, 2000). So a task i of a draw of m counts

    weight_i = 1[F_i > t] / (fraction m),          1 / m where F_i = t,

and sum_i weight_i grad F_i is, for a t that does not depend on the draw, an unbiased estimate of the gradient in x of
t + E[(F - t)_+] / fraction: whatever m is. t follows the quantile by the derivative of the same formula in t, which is
1 - sum_i weight_i on average, in units of how far losses lie from it, s:

    t <- t + s clip(a_k (sum_i weight_i - 1), -1, 1),     s <- s + a_k (mean_i |F_i - t| - s),     a_k = 10 / (20 + k)

Losses times a number, or plus one, give t times, or plus, that number, and the same weights. a_k falls as 10 / k: t is
an average over about a tenth of the run so far, which follows while x is far off, and whose noise vanishes in the end.

What is biased. (a) t lags behind falling losses, so that fewer tasks count than the fraction, and x is slower; where
losses no longer fall the weights sum to 1 on average, because t rises where they sum to more. (b) As long as t is
noisy, the mean direction is that of a mixture of quantiles: an error of second order in the noise. (c) A loss on few
rows is noisy: what is taken is the tail of noisy losses, in which noise takes the place of some of the worst tasks. The
direction is measured on other rows, so that this noise is not in it; that of y_i, which both look at, is. The worst
tasks of the draw itself, in place of a t that is followed, would be biased by O(1 / m) for ever (Levy, Carmon, Duchi,
Sidford, 2020).

References: Rockafellar and Uryasev, "Optimization of conditional value-at-risk", Journal of Risk, 2000; Levy, Carmon,
Duchi, Sidford, "Large-scale methods for distributionally robust optimization", NeurIPS 2020. The way in which t moves
is stochastic approximation of a quantile (Robbins and Monro, 1951); that it is in units of the spread is ours.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

MEMORY = 10.0  # t is an average over about 1 / MEMORY of the draws so far
EARLY = 20.0  # draws, before which it follows with a constant share


class Tail(NamedTuple):
    """Where the tail begins."""

    level: jax.Array  # t
    spread: jax.Array  # s
    draws: jax.Array  # k

    @classmethod
    def start(cls, dtype: DTypeLike) -> Tail:
        """Nothing is known; the first draw's own quantile is taken."""
        zero = jnp.zeros((), dtype)
        return cls(zero, zero, jnp.zeros((), jnp.int32))

    def weigh(self, losses: jax.Array, fraction: ArrayLike) -> tuple[jax.Array, Tail]:
        """The weights of a draw, by what the draws before it have shown, and what is known after it."""
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
    """How much each task of a draw counts, where the tail begins at `level`.

    >>> shares(jnp.array([3.0, 1.0, 2.0, 5.0]), 2.5, 0.5).tolist()
    [0.5, 0.0, 0.0, 0.5]
    >>> shares(jnp.array([3.0, 1.0, 2.0, 5.0]), 2.5, 1.0).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    fraction = jnp.asarray(fraction, losses.dtype)
    above = jnp.where(losses > level, 1 / fraction, jnp.where(losses == level, 1, 0))
    return jnp.where(fraction >= 1, 1, above).astype(losses.dtype) / losses.shape[0]
