"""Weightings that allow for the noise of losses on few rows.

`UpperBound` counts such a loss as the larger one that it may be. `Shrunk` counts differences between tasks only as far
as they are more than noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel.weightings.base import Compared, Shifted, StateT, Weighting
from bilevel.weightings.min_max import SimplexAscent


@part
class UpperBound(Shifted[StateT]):
    """The tasks are compared by f_i + factor se_i, with se_i the standard error of f_i: min of max_i of the bounds.

    x overfits validation rows, and sooner those of a task that has few of them: its loss on new rows is farther above
    f_i, by about as much as f_i is uncertain. An upper bound keeps such a task in sight. A negative factor gives a
    lower bound: a task then counts only as far as its loss is surely large.

    Args:
        errors: se_i, one number per task in their order, 0 or more; what `bl.loss_errors` measures, or c / sqrt(rows).
        factor: the number of standard errors.
        weighting: the weighting that the bounds move; any other one.

    Reference: Sagawa, Koh, Hashimoto, Liang, "Distributionally robust neural networks for group shifts", ICLR 2020,
    section 3.3 (group adjustments C / sqrt(rows)). With bilevel problems it is an extension of ours.

    >>> bound = UpperBound([0.0, 0.3])
    >>> weights, state = bound.init(2, jnp.float32)
    >>> bound.update(weights, jnp.array([1.0, 0.9]), state, 0.1)[0].round(3).tolist()
    [0.49..., 0.5...]
    """

    WORD = "upper bound"
    errors: ArrayLike | Sequence[float] = leaf()
    factor: float = leaf(default=1.0)
    weighting: Weighting[StateT] = SimplexAscent()  # type: ignore[assignment]

    def check(self, n: int) -> None:
        """n numbers, 0 or more, and a finite factor."""
        values.one_per_task("errors", self.errors, n, least=0, of="UpperBound")
        values.number("factor", self.factor, of="UpperBound")
        self.weighting.check(n)

    def keep(self, n: int, dtype: DTypeLike) -> jax.Array:
        """The widths of the bounds."""
        return jnp.asarray(self.factor, dtype) * jnp.asarray(self.errors, dtype)

    def seen(self, losses: jax.Array, kept: jax.Array) -> jax.Array:
        """f + factor se."""
        return losses + kept


class Shrinkage(NamedTuple):
    """The shrinkage of every task."""

    errors: jax.Array
    shares: jax.Array  # s_i, the share of the distance to the mean that is left


@part
class Shrunk(Compared[StateT]):
    """The tasks are compared by m + s_i (f_i - m), their losses pulled to the mean m by empirical-Bayes shrinkage.

    With se_i the standard error of f_i, every step estimates the variance that the losses would have without noise by
    tau^2 = max(0, variance of the f_i - mean of the se_i^2), and

        s_i = tau^2 / (tau^2 + se_i^2)

    If all differences may be noise (tau = 0), no weight moves. x descends the shrunk losses too: a task's loss counts
    s_i weights_i + mean_j (1 - s_j) weights_j, so that tasks count more alike the noisier the weighted ones are.

    Args:
        errors: se_i, one number per task in their order, 0 or more; what `bl.loss_errors` measures.
        weighting: the weighting that the shrunk losses move; any other one.

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
        """The shares at these losses."""
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
