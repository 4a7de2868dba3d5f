"""min-max of regrets: the worst task that can be helped."""

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
from bilevel.weightings.wrapper import Shifted


@part
class Regret(Shifted[StateT]):
    """The tasks are compared by f_i - b_i, with b_i a loss that task i could reach: min over x of max_i (f_i - b_i).

    A task whose labels are noise has the largest loss whatever x is, and the min-max of losses then serves nobody. Its
    regret is small, and the worst task that x can still help comes first. The direction of x is that of the losses, as
    b_i does not depend on x.

    Args:
        baseline: b_i, one number per task in their order, or what `bl.baselines` returns. By name:
            `bl.Baselines(values, names=names).array(problem)`.
        weighting: what the regrets move; any other weighting.

    Reference: Agarwal and Zhang, "Minimax regret optimization for robust machine learning under distribution shift",
    COLT 2022. With bilevel problems it is an extension of ours.

    >>> worst = Regret([0.0, 2.5], SimplexAscent())
    >>> weights, state = worst.init(2, jnp.float32)
    >>> worst.update(weights, jnp.array([1.0, 3.0]), state, 0.5)[0].tolist()
    [0.625, 0.375]
    """

    WORD = "regret"
    baseline: ArrayLike | Sequence[float] | Baselines = leaf()  # b
    weighting: Weighting[StateT] = SimplexAscent()  # type: ignore[assignment]

    def check(self, n: int) -> None:
        """n finite numbers."""
        values.one_per_task("baseline", values_of(self.baseline), n, of="Regret")
        self.weighting.check(n)

    def keep(self, n: int, dtype: DTypeLike) -> jax.Array:
        """b."""
        return jnp.asarray(values_of(self.baseline), dtype)

    def seen(self, losses: jax.Array, kept: jax.Array) -> jax.Array:
        """f - b."""
        return losses - kept

    def known_baselines(self, n: int) -> np.ndarray | None:
        """b; None where it is 0 for every task, as regrets then are the losses."""
        found = np.asarray(values_of(self.baseline), float)
        return found if np.any(found) else None
