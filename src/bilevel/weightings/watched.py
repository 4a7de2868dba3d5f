"""Tasks that are only watched: they fit their y along the run and move nothing else."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from bilevel._core import values
from bilevel._core.module import part
from bilevel._core.simplex_program import Bounds
from bilevel.weightings.base import StateT, Weighting
from bilevel.weightings.simplex_ascent import SimplexAscent
from bilevel.weightings.wrapper import Wrapper

T = TypeVar("T")


@part
class Watched(Wrapper[StateT]):
    """The first `seen` tasks are weighted by `weighting`; the others, unseen by x, have weight 0.

    Unseen tasks fit their y to the shared x along the run but do not influence x: their losses say how well x serves
    tasks that it was not trained on.

    Args:
        seen: how many tasks, the first ones, count.
        weighting: of these.

    The state is that of `weighting`, with rows of zeros for the unseen tasks.

    >>> weights, state = Watched(2).init(3, jnp.float32)
    >>> weights.tolist()
    [0.5, 0.5, 0.0]
    """

    seen: int
    weighting: Weighting[StateT] = SimplexAscent()  # type: ignore[assignment]

    def check(self, n: int) -> None:
        """1 <= seen <= n."""
        values.whole("seen", self.seen, most=n, of="Watched")
        self.weighting.check(self.seen)

    def init(self, n: int, dtype: DTypeLike) -> tuple[jax.Array, StateT]:
        """The first weights."""
        return _padded(self.weighting.init(self.seen, dtype), n)

    def update(self, weights: jax.Array, losses: jax.Array, state: StateT, rate: ArrayLike) -> tuple[jax.Array, StateT]:
        """The next weights."""
        own_weights, own_losses, own = self._seen((weights, losses, state))
        return _padded(self.weighting.update(own_weights, own_losses, own, rate), len(weights))

    def in_direction(self, weights: jax.Array, state: StateT) -> jax.Array:
        """That of the seen tasks; 0 for the others."""
        return _padded(self.weighting.in_direction(*self._seen((weights, state))), len(weights))

    def sizes(self, losses: jax.Array, state: StateT) -> jax.Array:
        """Those of the seen tasks; the others move nothing."""
        return _padded(self.weighting.sizes(*self._seen((losses, state))), len(losses))

    def scores(self, losses: jax.Array, state: StateT) -> jax.Array:
        """Those of the seen tasks."""
        return self.weighting.scores(*self._seen((losses, state)))

    def bounds(self, n: int, dtype: DTypeLike) -> Bounds:
        """Those of the seen tasks."""
        return self.weighting.bounds(self.seen, dtype)

    def spread(self, weights: jax.Array, n: int) -> jax.Array:
        """0 for the others."""
        return _padded(self.weighting.spread(weights, self.seen), n)

    def compared(self, losses: np.ndarray) -> np.ndarray:
        """That of the seen tasks; the others, which do not count, are never the worst."""
        found = self.weighting.compared(losses[: self.seen])
        return np.pad(found, (0, len(losses) - self.seen), constant_values=found.min())

    def known_baselines(self, n: int) -> np.ndarray | None:
        """Those of the seen tasks; NaN for the others."""
        found = self.weighting.known_baselines(self.seen)
        return None if found is None else np.pad(found, (0, n - self.seen), constant_values=np.nan)

    def _seen(self, rows: Any) -> Any:
        return jax.tree.map(lambda a: a[: self.seen], rows)


def _padded(rows: T, n: int) -> T:
    """Rows of zeros are added for the tasks beyond the seen ones."""
    return jax.tree.map(lambda a: jnp.pad(a, [(0, n - a.shape[0])] + [(0, 0)] * (a.ndim - 1)), rows)
