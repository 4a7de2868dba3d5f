"""Rates that a solver was not given.

A solver has three rates: alpha of x, beta of every y_i, gamma of the weights. What its user gave wins. For the others
it asks its `rates`, a part that follows the run in a state of its own.
"""

from __future__ import annotations

import abc
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel._core.types import Count, Tree
from bilevel.hypergradients.upper import Point
from bilevel.lower.rules import Rule
from bilevel.problem.per_task import PerTask, for_tasks
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Sample
from bilevel.rates import curvature
from bilevel.rates.curvature import LowerCurvature


class Needs(NamedTuple):
    """Which rates were not given, and whether anything needs the curvature of the lower problems."""

    upper: bool
    lower: bool
    weights: bool
    curvature: bool
    sampled: bool = False  # whether a step sees some of the tasks only, so that its direction is noisy


class RatesState(NamedTuple):
    """State of the rates; fields that nothing needs are None."""

    horizon: jax.Array  # K, the planned number of steps
    curvature: PerTask[LowerCurvature] | None  # of the lower problems
    own: Tree  # of the kind of rates

    def remaining(self, step: jax.Array) -> jax.Array:
        """1 - k / K, the fraction of the run that is left; beyond step K, that of one step."""
        return jnp.maximum(self.horizon - step, 1) / self.horizon


class UpperStep(NamedTuple):
    """How x moves: x <- x - units rule(rate)(direction)."""

    direction: Tree
    rate: jax.Array
    units: Tree  # a number for every leaf of x; None = 1
    state: RatesState


class WeightsStep(NamedTuple):
    """gamma, and the state after it."""

    rate: jax.Array
    state: RatesState


class Rates(abc.ABC):
    """Chooses the rates that a bilevel solver was not given, and keeps them up to date.

    To write one, make a part (`bl.part`) that inherits this and has the three rates.
    """

    upper_rule: ClassVar[Rule | None] = staticmethod(optax.sgd)  # what alpha is chosen for; None = for any rule
    lower_rule: ClassVar[Rule | None] = staticmethod(optax.sgd)
    chooses: ClassVar[bool] = True  # whether the rates are chosen for the problem, rather than passed on from the user

    newton_steps: ClassVar[bool] = False  # whether `lower` knows, without curvature, a share of Newton's step

    def check(self, owner: str, needs: Needs) -> None:  # noqa: B027  (most have nothing to refuse)
        """Raises where a rate that the solver needs cannot be provided."""

    def init(self, problem: Problem, point: Point, needs: Needs, key: jax.Array, steps: jax.Array) -> RatesState:
        """The first state; what `refresh` measures is not known yet."""
        followed = curvature.lower(problem, point.x, point.y, key) if needs.curvature else None
        horizon = jnp.asarray(steps, point.weights.dtype)
        return RatesState(horizon, followed, self.init_own(problem, point, needs))

    def init_own(self, problem: Problem, point: Point, needs: Needs) -> Tree:
        """The first state of this kind of rates."""
        return ()

    def measures(self, state: RatesState) -> bool:
        """Whether `refresh` has anything to measure."""
        return False

    def refresh(
        self, problem: Problem, point: Point, state: RatesState, key: jax.Array, iterations: Count
    ) -> RatesState:
        """Between steps, at intervals: measures again what changes as x moves; the point has half-uniform weights."""
        return state

    def follow(
        self, problem: Problem, x: Tree, y: PerTask, rows: PerTask[Sample], state: RatesState, stale: bool = False
    ) -> RatesState:
        """Makes a power iteration on every lower problem in every step, if anything needs curvature.

        `stale`: what is known of these tasks may be of long ago.
        """
        if state.curvature is None:
            return state
        return state._replace(curvature=curvature.follow_lower(problem, x, y, rows, state.curvature, stale))

    @abc.abstractmethod
    def upper(self, state: RatesState, x: Tree, direction: Tree, step: jax.Array) -> UpperStep:
        """alpha, and the direction as it is to be taken."""

    @abc.abstractmethod
    def lower(self, problem: Problem, state: RatesState, step: jax.Array) -> PerTask[jax.Array]:
        """beta_i, one per task."""

    @abc.abstractmethod
    def weights(self, state: RatesState, losses: jax.Array, step: jax.Array) -> WeightsStep:
        """gamma, from the losses that move the weights, or the sizes of what does in their place."""


def curvatures(state: RatesState) -> PerTask[jax.Array] | None:
    """L_i of every task, where it is followed."""
    return None if state.curvature is None else PerTask(tuple(group.value for group in state.curvature))


def inverse_curvatures(state: RatesState) -> PerTask[jax.Array]:
    """1 / L_i."""
    known = curvatures(state)
    assert known is not None
    return for_tasks(lambda value: 1 / jnp.where(value > 0, value, 1), known)


def follow_worst(worst: jax.Array, losses: jax.Array) -> jax.Array:
    """The running size of the worst loss, one step on; 0 before the first."""
    new = jnp.max(jnp.abs(losses))
    return jnp.where(worst > 0, 0.9 * worst + 0.1 * new, new).astype(worst.dtype)


def or_one(value: jax.Array) -> jax.Array:
    """The value, or 1 where it is not positive."""
    return jnp.where(value > 0, value, 1)
