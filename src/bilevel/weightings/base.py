"""The protocol of weightings, and what they share."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from bilevel._core.schedules import Rate

State = Any


class Weighting(Protocol):
    """Weights on the tasks."""

    @property
    def lr(self) -> Rate:
        """gamma; None = chosen by the solver."""
        ...

    @property
    def moves(self) -> bool:
        """Whether the losses move the weights, so that a rate is needed."""
        ...

    def check(self, n: int) -> None:
        """Raises where an argument makes no sense for n tasks."""
        ...

    def init(self, n: int, dtype: Any) -> tuple[jax.Array, State]:
        """The first weights."""
        ...

    def update(self, weights: jax.Array, losses: jax.Array, state: State, rate: Any) -> tuple[jax.Array, State]:
        """The next weights."""
        ...


def uniform(n: int, dtype: Any) -> jax.Array:
    """1/n for everyone."""
    return jnp.full(n, 1 / n, dtype)


def check_fraction(name: str, value: Any, *, one: bool) -> None:
    """Raises unless 0 <= value < 1 (or, with `one`, 0 < value <= 1)."""
    good = not isinstance(value, str) and (0 < value <= 1 if one else 0 <= value < 1)
    if not good:
        raise ValueError(f"{name}={value!r}: it needs a number {'above 0, up to 1' if one else 'from 0 to below 1'}.")
