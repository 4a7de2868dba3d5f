"""What bilevel solvers share: their start, and the moves of a step.

A solver inherits `EstimatorSolver`, with any hypergradient, or `LinearSystemSolver`, where v is a variable like y. It
writes `step(problem, state, key) -> (state, info)` in the order that its paper has.
"""

from __future__ import annotations

import abc
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import optax

from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate, rate_at
from bilevel._core.types import Count, Tree
from bilevel.hypergradients import Tracked
from bilevel.hypergradients.hypergradient import Hypergradient
from bilevel.hypergradients.upper import Evaluation, Point, Upper
from bilevel.lower.rules import Rule
from bilevel.lower.steps import Replay, descend, draw_steps, first_of, reduction, steps_of, update
from bilevel.problem.per_task import PerTask, fields_of, for_tasks
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Sample
from bilevel.rates import Measured
from bilevel.rates.given import Scaled
from bilevel.rates.protocol import Needs, Rates, RatesState, curvatures
from bilevel.solvers._base.checks import check_objects, check_options
from bilevel.solvers._base.solver import Solver
from bilevel.solvers._base.state import Info, State
from bilevel.solvers._base.tracking import LastPoint
from bilevel.solvers.sampling import All, Sampling
from bilevel.weightings import SimplexAscent
from bilevel.weightings.base import Weighting


class BilevelSolver(Solver[Problem]):
    """How bilevel solvers start, and the moves of their steps. Its bases declare the options."""

    upper_lr: Rate  # alpha
    lower_lr: Rate  # beta
    weighting: Weighting
    upper_rule: Rule | None
    lower_rule: Rule
    rates: Rates
    sampling: Sampling

    problem_type = Problem
    chooses_rates = True
    replays: ClassVar[bool] = False  # whether x moves after lower steps that `Unrolled` can take again
    moves_at_once: ClassVar[bool] = False  # whether x moves by what y and v were before the step
    compares_points: ClassVar[bool] = False  # whether a step uses the last point of its tasks
    needs_all_tasks: ClassVar[str | None] = None  # why every step must see all tasks; None = it need not

    @property
    @abc.abstractmethod
    def estimator(self) -> Hypergradient:
        """The estimator of the implicit term."""

    # ------------------------------------------------------------------ starting

    @property
    def needs(self) -> Needs:
        """Which rates must be chosen."""
        lower = self.lower_lr is None
        weights = self.weighting.moves and self.weighting.lr is None
        return Needs(self.upper_lr is None, lower, weights, lower or self.estimator.needs_curvature)

    def first_order(self) -> Self:
        """The solver without options that need a task to be in every step; most solvers have none."""
        return self

    @property
    def has_chosen_rates(self) -> bool:
        """Whether a rate was not given, so that `rates` choose it."""
        return self.rates.chooses and (self.needs.upper or self.needs.lower or self.needs.weights)

    @property
    def rule_of_x(self) -> Rule:
        """The rule that was given, or that of the rates."""
        return self.upper_rule or self.rates.upper_rule or optax.sgd

    def check_kind(self, problem: object) -> None:
        """Checks the options first, because one of them says which tasks it sees."""
        check_objects(self)
        super().check_kind(problem)

    def check(self, problem: Problem) -> None:
        """Raises where an option makes no sense."""
        check_options(self, problem)

    def stepper(self) -> Solver:
        """The solver, or a wrapper that shows it the tasks that its sampling draws."""
        from bilevel.solvers._base.fresh_tasks import FreshTasks  # they import this module
        from bilevel.solvers._base.some_tasks import SomeTasks

        if self.sampling.fresh:
            return FreshTasks(self.first_order())
        return SomeTasks(self.first_order()) if self.sampling.draws else self

    def start(self, problem: Problem, x: Tree, y: PerTask[Tree], key: jax.Array, steps: jax.Array) -> State:
        """The first state, without checks; pure."""
        first, keys = self.first(problem, x, y), self.start_keys(key)
        point = Point(x, y, first.weights, PerTask(((),) * len(y)))
        return self.started(problem, first, self.rates.init(problem, point, self.needs, keys[0], steps), keys)

    def start_keys(self, key: jax.Array) -> jax.Array:
        """The keys of the rates, v and the memory of the first state."""
        return jax.random.split(jax.random.fold_in(key, 1), 3)

    def first(self, problem: Problem, x: Tree, y: PerTask[Tree]) -> State:
        """The part of the first state that needs no measurement."""
        dtype = jnp.promote_types(jnp.result_type(*jax.tree.leaves(x)), jnp.float32)
        return State(jnp.zeros((), jnp.int32), x, y, *self.weighting.init(problem.size, dtype))

    def started(self, problem: Problem, first: State, rates: RatesState, keys: jax.Array) -> State:
        """The first state, whole."""
        x, y = first.x, first.y
        point = Point(x, y, first.weights, PerTask(((),) * len(y)), curvatures(rates))
        v = Upper(problem, self.estimator).init(point, problem.draw_upper(keys[1]))
        state = first._replace(
            # Optimisers keep moments, whose shapes do not depend on the rate.
            upper=self.rule_of_x(0.1).init(x),
            lower=for_tasks(self.lower_rule(0.1).init, y),
            v=v,
            rates=rates,
        )
        return state._replace(memory=self.start_memory(problem, state, keys[2]))

    def start_memory(self, problem: Problem, state: State, key: jax.Array) -> Tree:
        """The first extra state of the method; for most, empty."""
        return ()

    def measures(self, state: State) -> bool:
        """Whether `refresh` has anything to measure."""
        return self.rates.measures(state.rates)

    def refresh(self, problem: Problem, state: State, key: jax.Array, iterations: Count = 1) -> State:
        """Between chunks of steps: measures again what automatic rates need."""
        # Halfway to uniform weights: the curvature of tasks that may matter soon counts too.
        point = self.point(state._replace(weights=(state.weights + 1 / problem.size) / 2))
        return state._replace(rates=self.rates.refresh(problem, point, state.rates, key, iterations))

    def with_scaled_rates(self, factor: float) -> Self:
        """Given rates times a factor, and automatic rates too, if there are any."""
        given = super().with_scaled_rates(factor) or self
        if not (self.needs.upper or self.needs.lower or self.needs.weights):
            return given
        return given.replace(rates=Scaled(self.rates, factor))

    # ------------------------------------------------------------------ the step

    @abc.abstractmethod
    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """One step of all tasks of a problem, in the order that the method's paper has."""

    def with_last_point(self, state: State, last: LastPoint) -> State:
        """The state of some tasks with this last point; for solvers that compare points."""
        return state

    # ------------------------------------------------------------------ the moves of a step
    # Each takes a state and returns it moved, and the rate that it took. The number of the step and v stay as they are
    # until `finish`, so that a later move still sees what it needs of step k.

    def point(self, state: State) -> Point:
        """The point of the upper level: the x, y, weights and v of the state."""
        return Point(state.x, state.y, self.weights_of_x(state), state.v, curvatures(state.rates))

    def weights_of_x(self, state: State) -> jax.Array:
        """The share of each task's loss in the objective of x: the weights, unless x has another objective."""
        return self.weighting.in_direction(state.weights, state.weighting)

    def lower_rates(self, problem: Problem, state: State, rows: PerTask[Sample]) -> tuple[State, PerTask[jax.Array]]:
        """beta, one per task, given or chosen; the curvature is followed on these rows, where anything needs it."""
        rates = self.rates.follow(problem, state.x, state.y, rows, state.rates)
        given = rate_at(self.lower_lr, state.step)
        if given is None:
            beta = self.rates.lower(problem, rates, state.step)
        else:
            beta = problem.fill(given, rates.horizon.dtype)
        return state._replace(rates=rates), beta

    def descend(
        self, problem: Problem, state: State, key: jax.Array, count: int = 1
    ) -> tuple[State, PerTask[jax.Array], Replay]:
        """y_i <- y_i - beta_i grad_y g_i(x, y_i; fresh rows), `count` times; beta; and the steps, to be taken again."""
        samples = draw_steps(problem, key, count)
        state, beta = self.lower_rates(problem, state, first_of(samples))
        replay = Replay(steps_of(state.y, state.lower, beta, samples), self.lower_rule, count)
        y, optimiser = descend(problem, state.x, replay)
        return state._replace(y=y, lower=optimiser), beta, replay

    def move_lower(self, state: State, directions: PerTask[Tree], beta: PerTask[jax.Array]) -> State:
        """y_i <- y_i - beta_i u_i, where the u_i are known."""

        def one(y: Tree, optimiser: optax.OptState, u: Tree, rate: jax.Array) -> tuple:
            updates, optimiser = self.lower_rule(rate).update(u, optimiser, y)
            return optax.apply_updates(y, updates), optimiser

        y, optimiser = fields_of(for_tasks(one, state.y, state.lower, directions, beta))
        return state._replace(y=y, lower=optimiser)

    def move_x(self, problem: Problem, state: State, seen: Evaluation) -> tuple[State, jax.Array]:
        """x <- projection of (x - alpha direction); and alpha."""
        direction, units, rates = seen.direction, None, state.rates
        alpha = rate_at(self.upper_lr, state.step)
        if alpha is None:
            direction, alpha, units, rates = self.rates.upper(rates, state.x, direction, state.step)
        loss = jnp.vdot(self.weights_of_x(state), seen.losses)
        updates, optimiser = update(self.rule_of_x(alpha), direction, state.upper, state.x, loss)
        if units is not None:
            updates = jax.tree.map(lambda u, unit: (unit * u).astype(u.dtype), updates, units)
        x = problem.constraint.project(optax.apply_updates(state.x, updates))
        alpha = jnp.asarray(alpha * reduction(optimiser), state.weights.dtype)
        return state._replace(x=x, upper=optimiser, rates=rates), alpha

    def weights_rate(self, state: State, losses: jax.Array) -> tuple[State, jax.Array]:
        """gamma; 0 for weights that do not move."""
        gamma = rate_at(self.weighting.lr, state.step)
        if gamma is None and self.weighting.moves:
            sizes = self.weighting.sizes(losses, state.weighting)
            gamma, rates = self.rates.weights(state.rates, sizes, state.step)
            state = state._replace(rates=rates)
        return state, jnp.asarray(0.0 if gamma is None else gamma, state.weights.dtype)

    def move_weights(self, state: State, losses: jax.Array) -> tuple[State, jax.Array]:
        """Weights <- weights moved by the losses; and gamma."""
        state, gamma = self.weights_rate(state, losses)
        weights, weighting = self.update_weights(state.weights, losses, state.weighting, gamma)
        return state._replace(weights=weights, weighting=weighting), gamma

    def update_weights(
        self, weights: jax.Array, losses: jax.Array, weighting: Tree, rate: jax.Array
    ) -> tuple[jax.Array, Tree]:
        """The next weights, and what the weighting carries."""
        return self.weighting.update(weights, losses, weighting, rate)

    def move_x_and_weights(
        self, problem: Problem, state: State, beta: PerTask[jax.Array], seen: Evaluation
    ) -> tuple[State, Info]:
        """Moves x and the weights, both by what was seen, and ends the step."""
        state, alpha = self.move_x(problem, state, seen)
        state, gamma = self.move_weights(state, seen.losses)
        return self.finish(problem, state, seen, alpha, beta, gamma)

    def finish(
        self,
        problem: Problem,
        state: State,
        seen: Evaluation,
        alpha: jax.Array,
        beta: PerTask[jax.Array],
        gamma: jax.Array,
    ) -> tuple[State, Info]:
        """The state after the step, and what the step reports."""
        norm = optax.tree.norm(seen.direction).astype(state.weights.dtype)
        used = PerTask(tuple(rate * reduction(own) for rate, own in zip(beta, state.lower, strict=True)))
        info = Info(seen.losses, norm, alpha, problem.join(used), gamma)
        return state._replace(step=state.step + 1, v=seen.v), info


@part
class EstimatorSolver(BilevelSolver):
    """Options of solvers that take any estimator.

    Args:
        upper_lr: the rate of x (alpha): a number, a schedule, or None = chosen and kept up to date.
        lower_lr: the rate of y (beta), likewise; None gives every task its own.
        hypergradient: an estimator from `bl.hypergradients`.
        weighting: how the tasks' losses move their weights, from `bl.weightings`; its `lr` is gamma.
        upper_rule: from a rate to an optax transformation, for x; None = what the rates are made for.
        lower_rule: likewise for y, per task.
        rates: where rates come from that are None, from `bl.rates`.
        sampling: which tasks a step sees, from `bl.sampling`.
    """

    upper_lr: Rate = leaf(default=None)  # alpha
    lower_lr: Rate = leaf(default=None)  # beta
    hypergradient: Hypergradient = Tracked()
    weighting: Weighting = SimplexAscent()
    upper_rule: Rule | None = None
    lower_rule: Rule = optax.sgd
    rates: Rates = Measured()
    sampling: Sampling = All()

    @property
    def estimator(self) -> Hypergradient:
        """The hypergradient."""
        return self.hypergradient
