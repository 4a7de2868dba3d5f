"""What the moves of a step return."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import optax

from bilevel.oracles.lower import Replay
from bilevel.problem.per_task import PerTask
from bilevel.rates.base import RatesState


class MovedLower(NamedTuple):
    """The lower level after its steps."""

    y: PerTask[Any]
    optimiser: PerTask[optax.OptState]
    rate: PerTask[jax.Array]  # one per task
    rates: RatesState
    replay: Replay | None = None  # the steps, where they can be taken again


class LowerRates(NamedTuple):
    """beta of every task, and the rates' state after the curvature was followed."""

    rate: PerTask[jax.Array]
    rates: RatesState


class MovedX(NamedTuple):
    """x after its move."""

    x: Any
    optimiser: optax.OptState
    rates: RatesState
    rate: jax.Array  # alpha
    norm: jax.Array  # of the direction


class MovedWeights(NamedTuple):
    """The weights after their move."""

    weights: jax.Array
    weighting: Any
    rates: RatesState
    rate: jax.Array  # gamma
