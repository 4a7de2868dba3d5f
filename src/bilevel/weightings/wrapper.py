"""Weightings around another one."""

from __future__ import annotations

import abc
from typing import Any, ClassVar, Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from bilevel._core.schedules import Rate
from bilevel._core.simplex_program import Bounds
from bilevel.weightings.base import StateT, Weighting


class Wrapper(Weighting[StateT]):
    """A weighting whose field `weighting` is another one, which has the rate and moves the weights.

    A move costs what one of the weighting inside does, and a pass or two over n numbers.
    """

    weighting: Weighting

    def __post_init__(self) -> None:
        if isinstance(self.weighting, type) or not hasattr(self.weighting, "update"):
            name = type(self).__name__
            raise TypeError(f"{name}(weighting={self.weighting!r}): it needs a weighting object, such as Average().")

    # Read-only, as every field of a part is; pyright would allow them to be assigned to.
    @property
    def lr(self) -> Rate:  # pyright: ignore[reportIncompatibleVariableOverride]
        """That of the weighting inside."""
        return self.weighting.lr

    @property
    def pull(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """That of the weighting inside."""
        return self.weighting.pull

    @property
    def moves(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the weighting inside moves the weights."""
        return self.weighting.moves

    @property
    def compares(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What the weighting inside compares."""
        return self.weighting.compares

    def scores(self, losses: jax.Array, state: StateT) -> jax.Array:
        """Those of the weighting inside."""
        return self.weighting.scores(losses, state)

    def bounds(self, n: int, dtype: DTypeLike) -> Bounds:
        """Those of the weighting inside."""
        return self.weighting.bounds(n, dtype)

    def spread(self, weights: jax.Array, n: int) -> jax.Array:
        """That of the weighting inside."""
        return self.weighting.spread(weights, n)

    def compared(self, losses: np.ndarray) -> np.ndarray:
        """That of the weighting inside."""
        return self.weighting.compared(losses)

    def known_baselines(self, n: int) -> np.ndarray | None:
        """Those of the weighting inside."""
        return self.weighting.known_baselines(n)


class Wrapped(NamedTuple, Generic[StateT]):
    """The state of the weighting inside, and what the one around it keeps of every task."""

    inside: StateT
    kept: Any


class Compared(Wrapper[Wrapped[StateT]]):
    """A weighting that compares tasks by a function of their losses, linear but for a constant: `seen`.

    With s(f) = M f + c the objective is the largest s_i, and the weighting inside sees s in place of the losses f. What
    x descends is then sum_i weights_i s_i, so that the losses count M' weights in its direction. This is the transpose
    of the derivative of `seen`, taken from `seen` itself: the two cannot disagree.

    What is given per task is kept in the state, where a solver finds the rows of the tasks that it looks at.
    """

    WORD: ClassVar[str] = "compared loss"  # what is seen

    @property
    def compares(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Such as "regret"; where another one is inside, "regret of ratios"."""
        inside = self.weighting.compares
        return self.WORD if inside == "loss" else f"{inside} of {self.WORD}s"

    @abc.abstractmethod
    def keep(self, n: int, dtype: DTypeLike) -> Any:
        """What is kept of every task: one row each."""

    @abc.abstractmethod
    def seen(self, losses: jax.Array, kept: Any) -> jax.Array:
        """What the tasks are compared by."""

    def renew(self, losses: jax.Array, kept: Any) -> Any:
        """What is kept after these losses; for most, what it was."""
        return kept

    def init(self, n: int, dtype: DTypeLike) -> tuple[jax.Array, Wrapped[StateT]]:
        """That of the weighting inside, and what is kept."""
        weights, inside = self.weighting.init(n, dtype)
        return weights, Wrapped(inside, self.keep(n, dtype))

    def update(
        self, weights: jax.Array, losses: jax.Array, state: Wrapped[StateT], rate: ArrayLike
    ) -> tuple[jax.Array, Wrapped[StateT]]:
        """The weighting inside moves by what is seen."""
        kept = self.renew(losses, state.kept)
        weights, inside = self.weighting.update(weights, self.seen(losses, kept), state.inside, rate)
        return weights, Wrapped(inside, kept)

    def scores(self, losses: jax.Array, state: Wrapped[StateT]) -> jax.Array:
        """What the weighting inside makes of what is seen."""
        return self.weighting.scores(self.seen(losses, state.kept), state.inside)

    def compared(self, losses: np.ndarray) -> np.ndarray:
        """What the weighting inside makes of what is seen."""
        kept = self.renew(losses, self.keep(len(losses), jnp.result_type(float)))  # type: ignore[arg-type]
        seen = self.seen(losses, jax.tree.map(np.asarray, kept))  # type: ignore[arg-type]
        return self.weighting.compared(np.asarray(seen))

    def in_direction(self, weights: jax.Array, state: Wrapped[StateT]) -> jax.Array:
        """M' weights."""
        inside = self.weighting.in_direction(weights, state.inside)
        _, transposed = jax.vjp(lambda losses: self.seen(losses, state.kept), jnp.zeros_like(inside))
        return transposed(inside)[0]

    def sizes(self, losses: jax.Array, state: Wrapped[StateT]) -> jax.Array:
        """Of what is seen."""
        return self.weighting.sizes(self.seen(losses, state.kept), state.inside)


class Shifted(Compared[StateT]):
    """A weighting that compares tasks by their losses plus a constant of each task."""

    SMALLEST = 0.5  # the share of a loss that its size is at least

    def sizes(self, losses: jax.Array, state: Wrapped[StateT]) -> jax.Array:
        """|f_i + c_i|, but between half of |f_i| and all of it.

        A shift does not change slopes, and it is slopes that limit the rate: |grad f_i|^2 <= 2 L (f_i - min f_i). Where
        losses are not negative f_i bounds the right side, and f_i + c_i is near to it where -c_i is about min f_i; but
        where f_i + c_i crosses zero the rate must not grow without bound.
        """
        plain = jnp.abs(losses)
        size = jnp.clip(jnp.abs(self.seen(losses, state.kept)), self.SMALLEST * plain, plain)
        return self.weighting.sizes(size, state.inside)
