"""min-max of shrunk losses: differences between tasks count as far as they are more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel.weightings.base import StateT, Weighting
from bilevel.weightings.simplex_ascent import SimplexAscent
from bilevel.weightings.wrapper import Compared


class Shrinkage(NamedTuple):
    """Of every task."""

    errors: jax.Array
    shares: jax.Array  # of the way from the mean to its loss that is left


@part
class Shrunk(Compared[StateT]):
    """The tasks are compared by m + s_i (f_i - m), their losses pulled to the mean m by empirical-Bayes shrinkage.

    With se_i the standard error of f_i, the spread of what the losses would be without noise is estimated in every step
    by tau^2 = max(0, variance of the f_i - mean of the se_i^2), and

        s_i = tau^2 / (tau^2 + se_i^2)

    Where all differences may be noise (tau = 0), no weight moves. x descends the shrunk losses too: a task's loss
    counts s_i weights_i + mean_j (1 - s_j) weights_j, the more like all others the noisier the weighted tasks are.

    Args:
        errors: se_i, one number per task in their order, 0 or more; what `bl.loss_errors` measures.
        weighting: what the shrunk losses move; any other weighting.

    Reference: Efron and Morris, "Data analysis using Stein's estimator and its generalizations", 1975; tau^2 by moments
    as DerSimonian and Laird, 1986. As a weighting it is ours.

    >>> shrunk = Shrunk([0.0, 0.0, 3.0])
    >>> weights, state = shrunk.init(3, jnp.float32)
    >>> weights, state = shrunk.update(weights, jnp.array([0.0, 0.0, 6.0]), state, 10.0)  # tau^2 = 12 - 3
    >>> weights.tolist(), shrunk.in_direction(weights, state).tolist()
    ([0.0, 0.0, 1.0], [0.166..., 0.166..., 0.66...])
    """

    WORD = "shrunk loss"
    errors: ArrayLike | Sequence[float] = leaf()
    weighting: Weighting[StateT] = SimplexAscent()  # type: ignore[assignment]

    def check(self, n: int) -> None:
        """n numbers, 0 or more."""
        values.one_per_task("errors", self.errors, n, least=0, of="Shrunk")
        self.weighting.check(n)

    def keep(self, n: int, dtype: DTypeLike) -> Shrinkage:
        """The errors, and nothing shrunk before the first losses."""
        return Shrinkage(jnp.asarray(self.errors, dtype), jnp.ones(n, dtype))

    def renew(self, losses: jax.Array, kept: Shrinkage) -> Shrinkage:
        """The shares by these losses."""
        noise = kept.errors**2
        apart = losses - jnp.mean(losses)
        variance = jnp.sum(apart**2) / max(len(losses) - 1, 1)
        spread = jnp.maximum(variance - jnp.mean(noise), 0)  # tau^2
        whole = spread + noise
        shares = jnp.where(whole > 0, spread / jnp.where(whole > 0, whole, 1), 1)
        return kept._replace(shares=shares.astype(kept.shares.dtype))

    def seen(self, losses: jax.Array, kept: Shrinkage) -> jax.Array:
        """m + s (f - m)."""
        return losses - (1 - kept.shares) * (losses - jnp.mean(losses))
