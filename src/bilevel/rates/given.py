"""Rates that the user gives, with one shape over the run; and other rates, all times one factor."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate, rate_at
from bilevel._core.types import Count, Tree
from bilevel.hypergradients.upper import Point
from bilevel.lower.rules import Rule
from bilevel.problem.per_task import PerTask, for_tasks
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Sample
from bilevel.rates.protocol import Needs, Rates, RatesState, UpperStep, WeightsStep

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

    def _at(self, rate: Rate, state: RatesState, step: jax.Array) -> Tree:
        dtype = state.horizon.dtype
        return jnp.asarray(rate_at(rate, step), dtype) * self.shape(jnp.minimum(step / state.horizon, 1).astype(dtype))

    def upper(self, state: RatesState, x: Tree, direction: Tree, step: jax.Array) -> UpperStep:
        """alpha."""
        return UpperStep(direction, self._at(self.upper_rate, state, step), None, state)

    def lower(self, problem: Problem, state: RatesState, step: jax.Array) -> PerTask[jax.Array]:
        """beta, the same for all tasks."""
        return problem.fill(self._at(self.lower_rate, state, step), state.horizon.dtype)

    def weights(self, state: RatesState, losses: jax.Array, step: jax.Array) -> WeightsStep:
        """gamma."""
        return WeightsStep(self._at(self.weights_rate, state, step), state)


@part
class Scaled(Rates):
    """The rates of another kind, multiplied by a factor: shorter steps where what was chosen turns out too long.

    Args:
        rates: which.
        factor: what alpha, every beta_i and gamma are multiplied by.

    The state is that of `rates`, so that a run under way can go on with it. The factor is data: another one compiles
    nothing.

    >>> import bilevel as bl
    >>> bl.MORBiT(rates=bl.rates.Scaled(bl.rates.Measured(), 0.5)).rates
    Scaled(rates=Measured(), factor=0.5)
    """

    rates: Rates
    factor: float = leaf()

    # Read-only, as every field of a part is; pyright would allow them to be assigned to.
    @property
    def upper_rule(self) -> Rule | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The rule that alpha is chosen for."""
        return self.rates.upper_rule

    @property
    def lower_rule(self) -> Rule | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The rule that every beta_i is chosen for."""
        return self.rates.lower_rule

    @property
    def newton_steps(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the rates do."""
        return self.rates.newton_steps

    @property
    def chooses(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the rates are chosen for the problem."""
        return getattr(self.rates, "chooses", True)  # asked before `check` refuses what is no rates object

    def check(self, owner: str, needs: Needs) -> None:
        """A positive factor, and rates that are as they must be."""
        if not isinstance(self.rates, Rates):
            raise TypeError(f"Scaled(rates={self.rates!r}): it needs a rates object, such as bl.rates.Measured().")
        values.positive("factor", self.factor, of="Scaled")
        self.rates.check(owner, needs)

    def init(self, problem: Problem, point: Point, needs: Needs, key: jax.Array, steps: jax.Array) -> RatesState:
        """That of the rates."""
        return self.rates.init(problem, point, needs, key, steps)

    def measures(self, state: RatesState) -> bool:
        """Whether the rates measure."""
        return self.rates.measures(state)

    def refresh(
        self, problem: Problem, point: Point, state: RatesState, key: jax.Array, iterations: Count
    ) -> RatesState:
        """That of the rates."""
        return self.rates.refresh(problem, point, state, key, iterations)

    def follow(
        self, problem: Problem, x: Tree, y: PerTask, rows: PerTask[Sample], state: RatesState, stale: bool = False
    ) -> RatesState:
        """That of the rates."""
        return self.rates.follow(problem, x, y, rows, state, stale)

    def upper(self, state: RatesState, x: Tree, direction: Tree, step: jax.Array) -> UpperStep:
        """alpha times the factor."""
        move = self.rates.upper(state, x, direction, step)
        return move._replace(rate=(self.factor * move.rate).astype(move.rate.dtype))

    def lower(self, problem: Problem, state: RatesState, step: jax.Array) -> PerTask[jax.Array]:
        """Every beta_i times the factor; a share of Newton's step as it is: x moves less, and y is to follow it."""
        if state.curvature is None and self.newton_steps:
            return self.rates.lower(problem, state, step)
        return for_tasks(lambda rate: (self.factor * rate).astype(rate.dtype), self.rates.lower(problem, state, step))

    def weights(self, state: RatesState, losses: jax.Array, step: jax.Array) -> WeightsStep:
        """Gamma times the factor."""
        move = self.rates.weights(state, losses, step)
        return move._replace(rate=(self.factor * move.rate).astype(move.rate.dtype))
