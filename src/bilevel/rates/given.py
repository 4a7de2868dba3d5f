"""Rates that the user gives, together and with one shape over the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate, rate_at
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem
from bilevel.rates.base import Needs, Rates, RatesState, UpperStep, WeightsStep

Shape = Callable[[jax.Array], jax.Array]


def constant(t: jax.Array) -> jax.Array:
    """1, constant."""
    return jnp.ones_like(t)


def linear(t: jax.Array) -> jax.Array:
    """1 - t: zero at the end."""
    return 1 - t


def cosine(t: jax.Array) -> jax.Array:
    """(1 + cos(pi t)) / 2: zero at the end."""
    return (1 + jnp.cos(jnp.pi * t)) / 2


@part
class Given(Rates):
    """Numbers or schedules for all three rates, times a shape over the run.

    Args:
        upper_rate: of x (alpha): a number, or a schedule of the step.
        lower_rate: of every y_i (beta), likewise.
        weights_rate: of the weights (gamma), likewise.
        shape: what they are multiplied by, as a function of t = k / K, the fraction of the run that is over:
            `constant`, `linear`, `cosine`, or your own. K is the length of the run, which a schedule of the step
            does not know.

    A rate that the solver has (`upper_lr`, `lower_lr`, the weighting's `lr`) wins over the one here.

    >>> import bilevel as bl
    >>> bl.SOBA(rates=bl.rates.Given(0.1, 0.3, 0.01, shape=bl.rates.linear)).rates.upper_rate
    0.1
    """

    upper_rate: Rate = leaf(default=None)
    lower_rate: Rate = leaf(default=None)
    weights_rate: Rate = leaf(default=None)
    shape: Shape = constant

    upper_rule = None
    lower_rule = None
    chooses = False

    def check(self, owner: str, needs: Needs) -> None:
        """Every rate that the solver needs must be here."""
        for name in ("upper", "lower", "weights"):
            rate = getattr(self, f"{name}_rate")
            values.rate(f"{name}_rate", rate, of="Given")
            if rate is None and getattr(needs, name):
                raise ValueError(
                    f"Given({name}_rate=None): {owner} was not given this rate either; it needs a positive number or a "
                    "schedule."
                )
        if not callable(self.shape):
            raise TypeError(f"Given(shape=...) got {self.shape!r}: it needs a function of the fraction that is over.")

    def _at(self, rate: Rate, state: RatesState, step: jax.Array) -> Any:
        dtype = state.horizon.dtype
        return jnp.asarray(rate_at(rate, step), dtype) * self.shape(jnp.minimum(step / state.horizon, 1).astype(dtype))

    def upper(self, state: RatesState, x: Any, direction: Any, step: jax.Array) -> UpperStep:
        """alpha."""
        return UpperStep(direction, self._at(self.upper_rate, state, step), None, state)

    def lower(self, problem: Problem, state: RatesState, step: jax.Array) -> PerTask[jax.Array]:
        """beta, the same for all tasks."""
        return problem.fill(self._at(self.lower_rate, state, step), state.horizon.dtype)

    def weights(self, state: RatesState, losses: jax.Array, step: jax.Array) -> WeightsStep:
        """gamma."""
        return WeightsStep(self._at(self.weights_rate, state, step), state)
