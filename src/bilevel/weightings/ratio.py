"""min-max of ratios: each loss in units of what its task could reach."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel.weightings.base import StateT, Weighting
from bilevel.weightings.baselines import Baselines, values_of
from bilevel.weightings.simplex_ascent import SimplexAscent
from bilevel.weightings.wrapper import Compared


@part
class Ratio(Compared[StateT]):
    """The tasks are compared by f_i / b_i, with b_i > 0 the unit of task i: min over x of max_i f_i / b_i.

    For losses whose units differ between tasks, such as squared errors of different quantities, or where a loss twice
    what a task could reach is equally bad for all. x then descends sum_i (weights_i / b_i) f_i.

    Args:
        baseline: b_i, one positive number per task in their order, or what `bl.baselines` returns. By name:
            `bl.Baselines(values, names=names).array(problem)`.
        weighting: what the ratios move; any other weighting.

    Ours; the ratios are the competitive analysis of online algorithms and the "relative regret" of robust optimization
    (Kouvelis and Yu, "Robust discrete optimization and its applications", 1997).

    >>> worst = Ratio([0.5, 2.0])
    >>> weights, state = worst.init(2, jnp.float32)
    >>> worst.in_direction(weights, state).tolist()
    [1.0, 0.25]
    """

    WORD = "ratio"
    baseline: ArrayLike | Sequence[float] | Baselines = leaf()  # b
    weighting: Weighting[StateT] = SimplexAscent()  # type: ignore[assignment]

    def check(self, n: int) -> None:
        """n positive numbers."""
        values.one_per_task("baseline", values_of(self.baseline), n, above=0, of="Ratio")
        self.weighting.check(n)

    def keep(self, n: int, dtype: DTypeLike) -> jax.Array:
        """b."""
        return jnp.asarray(values_of(self.baseline), dtype)

    def seen(self, losses: jax.Array, kept: jax.Array) -> jax.Array:
        """f / b."""
        return losses / kept

    def known_baselines(self, n: int) -> np.ndarray:
        """b."""
        return np.asarray(values_of(self.baseline), float)
