"""min-max of upper confidence bounds: a loss that few rows vouch for counts as the larger one that it may be."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel.weightings.base import StateT, Weighting
from bilevel.weightings.simplex_ascent import SimplexAscent
from bilevel.weightings.wrapper import Shifted


@part
class UpperBound(Shifted[StateT]):
    """The tasks are compared by f_i + factor se_i, with se_i the standard error of f_i: min of max_i of the bounds.

    x learns validation rows by heart, and those of a task that has few of them sooner: its loss on new rows is farther
    above f_i, by about as much as f_i is uncertain. An upper bound keeps such a task in sight. A negative factor is a
    lower bound: a task counts only as far as its loss is surely large.

    Args:
        errors: se_i, one number per task in their order, 0 or more; what `bl.loss_errors` measures, or c / sqrt(rows).
        factor: how many standard errors.
        weighting: what the bounds move; any other weighting.

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
