"""What solvers of single-level min-max problems share: their options, and the moves of a step.

A solver inherits `SingleLevelSolver` and writes `step(problem, state, key) -> (state, info)` in its paper's order.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate, rate_at
from bilevel._core.types import Tree
from bilevel.lower.rules import Rule
from bilevel.lower.steps import reduction, update
from bilevel.problem.minmax import MinMaxProblem
from bilevel.problem.per_task import PerTask
from bilevel.solvers._base.checks import check_objects
from bilevel.solvers._base.solver import Solver
from bilevel.solvers._base.state import Info, State
from bilevel.weightings import SimplexAscent
from bilevel.weightings.base import Weighting


class Slope(NamedTuple):
    """sum_i weights_i grad F_i(x), and every F_i(x)."""

    direction: Tree
    losses: jax.Array


class SingleLevelMove(NamedTuple):
    """x after its move."""

    x: Tree
    optimiser: optax.OptState
    rate: jax.Array


@part
class SingleLevelSolver(Solver):
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

    def check(self, problem: MinMaxProblem) -> None:
        """Raises where an option makes no sense."""
        check_objects(self)
        values.rate("upper_lr", self.upper_lr, given=True, of=type(self).__name__)
        if self.weighting.moves:
            values.rate("lr", self.weighting.lr, given=True, of=type(self.weighting).__name__)
        self.weighting.check(problem.size)

    def start(self, problem: MinMaxProblem, x: Tree, y: PerTask[Tree], key: jax.Array, steps: jax.Array) -> State:
        """The first state, without checks; pure."""
        dtype = jnp.promote_types(jnp.result_type(*jax.tree.leaves(x)), jnp.float32)
        weights, weighting = self.weighting.init(problem.size, dtype)
        return State(jnp.zeros((), jnp.int32), x, y, weights, weighting, upper=self.start_optimiser(x))

    def start_optimiser(self, x: Tree) -> Tree:
        """The first state of the optimiser of x, which does not depend on the rate."""
        return self.upper_rule(0.1).init(x)

    # ------------------------------------------------------------------ the moves of a step

    def move_x(self, problem: MinMaxProblem, state: State, seen: Slope) -> SingleLevelMove:
        """x <- projection of (x - rate direction)."""
        rate = rate_at(self.upper_lr, state.step)
        loss = jnp.vdot(self.weights_of_x(state), seen.losses)
        updates, optimiser = update(self.upper_rule(rate), seen.direction, state.upper, state.x, loss)
        x = problem.constraint.project(optax.apply_updates(state.x, updates))
        return SingleLevelMove(x, optimiser, jnp.asarray(rate * reduction(optimiser), state.weights.dtype))

    def weights_of_x(self, state: State) -> jax.Array:
        """The share of each task's loss in the objective of x: the weights, unless x has another objective."""
        return self.weighting.in_direction(state.weights, state.weighting)

    def weights_rate(self, state: State) -> jax.Array:
        """The weighting's rate; 0 for weights that do not move."""
        rate = rate_at(self.weighting.lr, state.step)
        return jnp.asarray(0.0 if rate is None else rate, state.weights.dtype)

    def finish(self, problem: MinMaxProblem, state: State, seen: Slope) -> tuple[State, Info]:
        """Moves x and the weights, both from what was seen at the old x and the old weights."""
        moved = self.move_x(problem, state, seen)
        rate = self.weights_rate(state)
        weights, weighting = self.weighting.update(state.weights, seen.losses, state.weighting, rate)
        state = state._replace(
            step=state.step + 1, x=moved.x, weights=weights, weighting=weighting, upper=moved.optimiser
        )
        norm = optax.tree.norm(seen.direction)
        return state, Info.of(seen.losses, norm, upper_rate=moved.rate, weights_rate=rate)


def weighted_slope(problem: MinMaxProblem, x: Tree, weights: jax.Array, samples: PerTask[Tree]) -> Slope:
    """sum_i weights_i grad F_i(x), by one reverse pass, and every F_i(x)."""

    def weighted(x: Tree) -> tuple[jax.Array, jax.Array]:
        losses = problem.objectives(x, samples)
        return jnp.vdot(weights.astype(losses.dtype), losses), losses

    direction, losses = jax.grad(weighted, has_aux=True)(x)
    return Slope(direction, losses.astype(weights.dtype))
