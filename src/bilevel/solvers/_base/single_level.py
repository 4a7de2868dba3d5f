"""What solvers of single-level min-max problems share: their options, their state, and the moves of a step.

A solver inherits `SingleLevelSolver` and writes `step(problem, state, key) -> (state, info)` in its paper's order.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate, rate_at
from bilevel.problem import checks, initial_point
from bilevel.problem.minmax import MinMaxProblem
from bilevel.rules import base as rules
from bilevel.rules.base import Rule
from bilevel.solvers._base.solver import Info
from bilevel.weightings import SimplexAscent
from bilevel.weightings.base import Weighting


class State(NamedTuple):
    """Where a run is; y is nothing, once per group."""

    step: jax.Array
    x: Any
    y: tuple
    weights: jax.Array
    upper: Any  # of the optimiser of x
    weighting: Any


@part
class SingleLevelSolver:
    """Options that every single-level solver has. No rate is chosen: both must be given.

    Args:
        upper_lr: the rate of x, a number or a schedule.
        weighting: how the tasks' losses move their weights, from `bl.weightings`, with an `lr`.
        upper_rule: from a rate to an optax transformation, for x.
    """

    upper_lr: Rate = leaf(default=None)
    weighting: Weighting = SimplexAscent()
    upper_rule: Rule = optax.sgd

    problem_type = MinMaxProblem
    chooses_rates = False

    def init(self, problem: MinMaxProblem, x: Any, y: Any = None, *, key: jax.Array, steps: int) -> State:
        """Validates everything and returns the first state; `y` must be None."""
        checks.check_kind(self, problem)
        if y is not None:
            raise ValueError(f"y got {type(y).__name__}: a bl.MinMaxProblem has no y, so it needs None.")
        x = initial_point.arrays(x, "x")
        self.check(problem)
        checks.check_count("steps", steps)
        nothing = ((),) * len(problem.groups)
        checks.check_start(problem, x, nothing)
        self.check_start(problem, x)
        return self.start(problem, x, nothing, key, steps)

    def check(self, problem: MinMaxProblem) -> None:
        """Raises where an option makes no sense."""
        name = type(self).__name__
        for field, method, needed in (
            ("weighting", "update", "a weighting object, such as bl.weightings.SimplexAscent(0.1)"),
            ("upper_rule", "__call__", "a function from a rate to a transformation, such as optax.sgd"),
        ):
            value = getattr(self, field)
            if isinstance(value, type) or not hasattr(value, method):
                raise TypeError(f"{name}({field}=...) got {value!r}: it needs {needed}.")
        checks.check_given(f"{name}(upper_lr)", self.upper_lr)
        if self.weighting.moves:
            checks.check_given(f"{type(self.weighting).__name__}(lr)", self.weighting.lr)
        self.weighting.check(problem.size)

    def check_start(self, problem: MinMaxProblem, x: Any) -> None:
        """Raises where the solver cannot start from x; most can."""

    def start(self, problem: MinMaxProblem, x: Any, y: tuple, key: jax.Array, steps: Any) -> State:
        """The first state, without checks; pure."""
        dtype = jnp.promote_types(jnp.result_type(*jax.tree.leaves(x)), jnp.float32)
        weights, weighting = self.weighting.init(problem.size, dtype)
        return State(jnp.zeros((), jnp.int32), x, y, weights, self.start_optimiser(x), weighting)

    def start_optimiser(self, x: Any) -> Any:
        """The first state of the optimiser of x, which does not depend on the rate."""
        return self.upper_rule(0.1).init(x)

    def refresh(self, problem: MinMaxProblem, state: State, key: jax.Array, iterations: Any = 1) -> State:
        """Nothing is measured."""
        return state

    def measures(self, state: State) -> bool:
        """Nothing is measured."""
        return False

    def step(self, problem: MinMaxProblem, state: State, key: jax.Array) -> tuple[State, Info]:
        """One step."""
        raise NotImplementedError

    # ------------------------------------------------------------------ the moves of a step

    def move(
        self, problem: MinMaxProblem, state: State, direction: Any, losses: jax.Array
    ) -> tuple[Any, Any, jax.Array]:
        """x <- projection of (x - rate direction): x, its optimiser and the rate."""
        rate = rate_at(self.upper_lr, state.step)
        loss = jnp.vdot(state.weights, losses)
        updates, optimiser = rules.update(self.upper_rule(rate), direction, state.upper, state.x, loss)
        x = problem.constraint.project(optax.apply_updates(state.x, updates))
        return x, optimiser, jnp.asarray(rate * rules.reduction(optimiser), state.weights.dtype)

    def weights_rate(self, state: State) -> jax.Array:
        """The weighting's rate; 0 for weights that do not move."""
        rate = rate_at(self.weighting.lr, state.step)
        return jnp.asarray(0.0 if rate is None else rate, state.weights.dtype)

    def finish(self, problem: MinMaxProblem, state: State, direction: Any, losses: jax.Array) -> tuple[State, Info]:
        """Moves x and the weights, both from what was seen at the old x and the old weights."""
        norm = optax.tree.norm(direction).astype(state.weights.dtype)
        x, upper, upper_rate = self.move(problem, state, direction, losses)
        rate = self.weights_rate(state)
        weights, weighting = self.weighting.update(state.weights, losses, state.weighting, rate)
        state = State(state.step + 1, x, state.y, weights, upper, weighting)
        return state, Info(losses, norm, upper_rate, without_lower(state), rate)

    def replace(self, **options: Any) -> Self:
        """The same solver with other options."""
        return dataclasses.replace(self, **options)  # type: ignore[type-var]


def without_lower(state: State) -> jax.Array:
    """The lower rates that an `Info` has: there are none."""
    return jnp.full_like(state.weights, jnp.nan)


def weighted_slope(problem: MinMaxProblem, x: Any, weights: jax.Array, samples: tuple) -> tuple[Any, jax.Array]:
    """sum_i weights_i grad F_i(x), by one reverse pass, and every F_i(x)."""

    def weighted(x: Any) -> tuple[jax.Array, jax.Array]:
        losses = problem.objectives(x, samples)
        return jnp.vdot(weights.astype(losses.dtype), losses), losses

    direction, losses = jax.grad(weighted, has_aux=True)(x)
    return direction, losses.astype(weights.dtype)
