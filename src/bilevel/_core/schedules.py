"""Learning rates: numbers, schedules, or None where the solver chooses.

The identity of a kept run names `Power` by this module: moving it would refuse folders that were written before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
from jax.typing import ArrayLike

from bilevel._core.module import leaf, part

Schedule: TypeAlias = Callable[[jax.Array], ArrayLike]
"""step -> rate, like optax's schedules."""

Rate: TypeAlias = float | jax.Array | Schedule | None
"""A learning rate: a number, a schedule, or None = chosen and kept up to date by the solver."""


def rate_at(rate: Rate, step: jax.Array) -> Any:  # a number unless the rate is None, which only the caller knows
    """The value of a rate at a step; None stays None."""
    return rate(step) if callable(rate) else rate


@dataclasses.dataclass(frozen=True)
class Power:
    """The schedule scale (1 + step)^exponent; equal ones compile once.

    >>> Power(2.0, -1 / 2)(3)
    1.0
    """

    scale: float
    exponent: float

    def __call__(self, step: ArrayLike) -> ArrayLike:
        """Its value at a step."""
        return self.scale * (1.0 + step) ** self.exponent


@part
class ScaledSchedule:
    """A schedule times a factor; the factor is data, so that another one compiles nothing.

    >>> ScaledSchedule(Power(2.0, -1 / 2), 0.5)(3)
    0.5
    """

    schedule: Schedule
    factor: float = leaf()

    def __call__(self, step: jax.Array) -> ArrayLike:
        """Its value at a step."""
        return self.factor * self.schedule(step)
