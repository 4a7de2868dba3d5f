"""Weightings that group tasks: `Watched` tasks have no weight; the `Folds` of a cross-fitted task count as one."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from bilevel._core import values
from bilevel._core.module import part
from bilevel._core.simplex_program import Bounds
from bilevel._core.types import Tree
from bilevel.weightings.base import StateT, Weighting, Wrapper
from bilevel.weightings.min_max import SimplexAscent

T = TypeVar("T")


@part
class Watched(Wrapper[StateT]):
    """The first `seen` tasks are weighted by `weighting`; the others, unseen by x, have weight 0.

    Unseen tasks fit their y to the shared x along the run but do not influence x: their losses say how well x serves
    tasks that it was not trained on.

    Args:
        seen: the number of tasks that count, the first ones.
        weighting: the weighting of these.

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
        """That of the seen tasks; the others get the smallest value, so that they are never the worst."""
        found = self.weighting.compared(losses[: self.seen])
        return np.pad(found, (0, len(losses) - self.seen), constant_values=found.min())

    def known_baselines(self, n: int) -> np.ndarray | None:
        """Those of the seen tasks; NaN for the others."""
        found = self.weighting.known_baselines(self.seen)
        return None if found is None else np.pad(found, (0, n - self.seen), constant_values=np.nan)

    def _seen(self, rows: Tree) -> Tree:
        return jax.tree.map(lambda a: a[: self.seen], rows)


def _padded(rows: T, n: int) -> T:
    """The rows, with rows of zeros for the tasks beyond the seen ones."""
    return jax.tree.map(lambda a: jnp.pad(a, [(0, n - a.shape[0])] + [(0, 0)] * (a.ndim - 1)), rows)


@part
class Folds(Wrapper[StateT]):
    """A task is compared by the mean loss of its K folds, and each fold has 1/K of its weight; for `bl.cross_fit`.

    The tasks are in the order that `bl.cross_fit` gives them: the first fold of every task, then the second of every
    task. Arguments per task of the weighting inside (baselines, errors) are per task before cross-fitting.

    Args:
        folds: K.
        weighting: the weighting of the tasks.

    >>> weights, state = Folds(2).init(6, jnp.float32)
    >>> Folds(2).update(weights, jnp.array([3.0, 0.0, 0.0, 1.0, 2.0, 0.0]), state, 2.0)[0].tolist()
    [0.5, 0.0, 0.0, 0.5, 0.0, 0.0]
    """

    folds: int
    weighting: Weighting[StateT] = SimplexAscent()  # type: ignore[assignment]

    def check(self, n: int) -> None:
        """The tasks are a multiple of the folds."""
        values.whole("folds", self.folds, most=n, of="Folds")
        if n % self.folds:
            raise ValueError(f"Folds(folds={self.folds}): it needs a multiple of {self.folds} tasks, not {n} of them.")
        self.weighting.check(n // self.folds)

    def init(self, n: int, dtype: DTypeLike) -> tuple[jax.Array, StateT]:
        """The first weights."""
        weights, state = self.weighting.init(n // self.folds, dtype)
        return self._for_folds(weights / self.folds), self._for_folds(state)

    def update(self, weights: jax.Array, losses: jax.Array, state: StateT, rate: ArrayLike) -> tuple[jax.Array, StateT]:
        """The tasks' weights move by the means."""
        moved, own = self.weighting.update(self._sums(weights), self._sums(losses) / self.folds, self._of(state), rate)
        return self._for_folds(moved / self.folds), self._for_folds(own)

    def in_direction(self, weights: jax.Array, state: StateT) -> jax.Array:
        """That of a task, in equal parts for its folds."""
        return self._for_folds(self.weighting.in_direction(self._sums(weights), self._of(state)) / self.folds)

    def sizes(self, losses: jax.Array, state: StateT) -> jax.Array:
        """Those of the means."""
        return self.weighting.sizes(self._sums(losses) / self.folds, self._of(state))

    def scores(self, losses: jax.Array, state: StateT) -> jax.Array:
        """Those of the means."""
        return self.weighting.scores(self._sums(losses) / self.folds, self._of(state))

    def bounds(self, n: int, dtype: DTypeLike) -> Bounds:
        """Those of the tasks before cross-fitting."""
        return self.weighting.bounds(n // self.folds, dtype)

    def spread(self, weights: jax.Array, n: int) -> jax.Array:
        """That of a task, in equal parts for its folds."""
        return self._for_folds(self.weighting.spread(weights, n // self.folds) / self.folds)

    def compared(self, losses: np.ndarray) -> np.ndarray:
        """By the means, the same for all folds of a task."""
        return np.tile(self.weighting.compared(losses.reshape(self.folds, -1).mean(axis=0)), self.folds)

    def known_baselines(self, n: int) -> np.ndarray | None:
        """Those of the tasks, for each of their folds."""
        found = self.weighting.known_baselines(n // self.folds)
        return None if found is None else np.tile(found, self.folds)

    def _sums(self, rows: jax.Array) -> jax.Array:
        return jnp.sum(rows.reshape(self.folds, -1), axis=0)

    def _of(self, state: T) -> T:
        """The rows of the tasks: every fold has the same."""
        return jax.tree.map(lambda a: a[: a.shape[0] // self.folds], state)

    def _for_folds(self, rows: Tree) -> Tree:
        return jax.tree.map(lambda a: jnp.concatenate([a] * self.folds), rows)
