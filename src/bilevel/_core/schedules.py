"""Learning rates that are numbers, functions of the step, or not given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import overload

import jax

Schedule = Callable[[jax.Array], jax.Array]
Rate = float | jax.Array | Schedule | None
"""A learning rate: a number, a schedule (step -> rate, as optax's are), or None = chosen and kept up to date."""


@overload
def rate_at(rate: None, step: jax.Array) -> None: ...
@overload
def rate_at(rate: float | jax.Array | Schedule, step: jax.Array) -> float | jax.Array: ...
@overload
def rate_at(rate: Rate, step: jax.Array) -> float | jax.Array | None: ...
def rate_at(rate: Rate, step: jax.Array) -> float | jax.Array | None:
    """The value of a rate at a step; None stays None."""
    return rate(step) if callable(rate) else rate


@dataclasses.dataclass(frozen=True)
class Power:
    """The schedule scale (1 + step)^exponent; equal ones compile once."""

    scale: float
    exponent: float

    def __call__(self, step: jax.Array) -> jax.Array:
        """Its value at a step."""
        return self.scale * (1.0 + step) ** self.exponent
