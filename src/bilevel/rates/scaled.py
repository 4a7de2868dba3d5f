"""Other rates, all times one factor."""

from __future__ import annotations

from typing import Any

import jax

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel.oracles.upper import Point
from bilevel.problem.per_task import PerTask, for_tasks
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Sample
from bilevel.rates.base import Needs, Rates, RatesState, UpperStep, WeightsStep
from bilevel.rules.base import Rule


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
        """What alpha is chosen for."""
        return self.rates.upper_rule

    @property
    def lower_rule(self) -> Rule | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What every beta_i is chosen for."""
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
        """Where the rates measure."""
        return self.rates.measures(state)

    def refresh(self, problem: Problem, point: Point, state: RatesState, key: jax.Array, iterations: Any) -> RatesState:
        """That of the rates."""
        return self.rates.refresh(problem, point, state, key, iterations)

    def follow(
        self, problem: Problem, x: Any, y: PerTask, rows: PerTask[Sample], state: RatesState, stale: bool = False
    ) -> RatesState:
        """That of the rates."""
        return self.rates.follow(problem, x, y, rows, state, stale)

    def upper(self, state: RatesState, x: Any, direction: Any, step: jax.Array) -> UpperStep:
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
