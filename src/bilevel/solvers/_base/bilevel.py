"""What bilevel solvers share: their options, their state, and the moves that a step is made of.

A solver inherits `BilevelSolver` and writes `step(problem, state, key) -> (state, info)` in the order its paper has.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from bilevel._core.module import Rate, leaf, part, rate_at
from bilevel.hypergradients import Tracked
from bilevel.hypergradients.base import Hypergradient
from bilevel.oracles.upper import Evaluation, Upper, Walk, descend, draw_steps, first_of
from bilevel.problem import checks, initial_point
from bilevel.problem.problem import Problem
from bilevel.rates import curvature, measured
from bilevel.rules import plateau
from bilevel.rules.plateau import Rule
from bilevel.solvers._base.solver import Info
from bilevel.weightings import SimplexAscent
from bilevel.weightings.base import Weighting

FIRST_MEASUREMENT = 10  # power iterations before the first step


class State(NamedTuple):
    """Where a run is. `y` and what belongs to it is stacked over tasks, one entry per group."""

    step: jax.Array  # k
    x: Any
    y: tuple
    weights: jax.Array  # lambda
    upper: Any  # of the upper optimiser
    lower: tuple  # of the lower optimisers
    hypergradient: tuple
    weighting: Any
    automatic: measured.Automatic
    trackers: Any = ()


class Lowered(NamedTuple):
    """The lower level after its steps."""

    y: tuple
    optimiser: tuple
    rate: tuple[jax.Array, ...]  # one per task, per group
    automatic: measured.Automatic
    walks: tuple[Walk, ...] | None = None  # the steps, where they can be taken again


@part
class BilevelSolver:
    """Options that every bilevel solver has.

    Args:
        upper_lr: the rate of x (alpha): a number, a schedule, or None = chosen and kept up to date.
        lower_lr: the rate of y (beta), likewise; None gives every task its own.
        hypergradient: an estimator from `bl.hypergradients`.
        weighting: how the tasks' losses move their weights, from `bl.weightings`; its `lr` is gamma.
        upper_rule: from a rate to an optax transformation, for x.
        lower_rule: likewise for y, per task.
    """

    upper_lr: Rate = leaf(default=None)  # alpha
    lower_lr: Rate = leaf(default=None)  # beta
    hypergradient: Hypergradient = Tracked()
    weighting: Weighting = SimplexAscent()
    upper_rule: Rule = optax.sgd
    lower_rule: Rule = optax.sgd

    problem_type = Problem
    chooses_rates = True
    replays = False  # whether x moves after lower steps that `Unrolled` can take again

    # ------------------------------------------------------------------ starting

    def init(self, problem: Problem, x: Any, y: Any = None, *, key: jax.Array, steps: int) -> State:
        """Validates everything, measures what automatic rates need, and returns the first state.

        `steps` is the length of the run that automatic rates decay over.
        """
        checks.check_kind(self, problem)
        x = initial_point.arrays(x, "x")
        y = initial_point.lower_points(problem, y, jax.random.fold_in(key, 0))
        self.check(problem)
        checks.check_count("steps", steps)
        checks.check_start(problem, x, y)
        self.check_size(problem, x, y)
        state = _start(self, problem, x, y, key, jnp.asarray(steps, jnp.int32))
        return measure(self, problem, state, jax.random.fold_in(key, 2), FIRST_MEASUREMENT)

    def check(self, problem: Problem) -> None:
        """Raises where an option makes no sense."""
        name = type(self).__name__
        for field, method, needed in (
            ("weighting", "update", "a weighting object, such as bl.weightings.SimplexAscent()"),
            ("hypergradient", "surrogate", "an estimator object, such as bl.hypergradients.Tracked()"),
            ("upper_rule", "__call__", "a function from a rate to a transformation, such as optax.sgd"),
            ("lower_rule", "__call__", "a function from a rate to a transformation, such as optax.sgd"),
        ):
            value = getattr(self, field)
            if isinstance(value, type) or not hasattr(value, method):
                raise TypeError(f"{name}({field}=...) got {value!r}: it needs {needed}.")
        for field in ("upper_lr", "lower_lr"):
            checks.check_rate(f"{name}({field})", getattr(self, field))
            rule = field.replace("lr", "rule")
            usual = getattr(type(self), rule)
            if getattr(self, field) is None and getattr(self, rule) is not usual:
                raise ValueError(
                    f"{name}({field}=None) is chosen for optax.{usual.__name__} only: with another {rule}, give a rate."
                )
        checks.check_rate(f"{type(self.weighting).__name__}(lr)", self.weighting.lr)
        self.weighting.check(problem.size)
        self.hypergradient.check()
        if plateau.needs_value(self.lower_rule) and not self.replays:
            raise ValueError(
                f"{name}(lower_rule={self.lower_rule}): {name} does not tell its lower steps their losses."
            )
        if self.hypergradient.needs_replay:
            if not self.replays:
                raise ValueError(f"{name}(hypergradient={self.hypergradient}): {name} has no lower steps to replay.")
            checks.check_replay(self.lower_rule)

    def check_size(self, problem: Problem, x: Any, y: tuple) -> None:
        """Refuses, or warns of, more memory than there is; for solvers that keep much."""

    def start(self, problem: Problem, x: Any, y: tuple, key: jax.Array, steps: Any) -> State:
        """The first state, without checks; pure."""
        dtype = jnp.promote_types(jnp.result_type(*jax.tree.leaves(x)), jnp.float32)
        weights, weighting = self.weighting.init(problem.size, dtype)
        keys = jax.random.split(jax.random.fold_in(key, 1), 3)
        automatic = self.start_rates(problem, x, y, weights, keys[0], steps)
        samples = problem.draw_upper(keys[1])
        hypergradient = self.upper_level(automatic.lower).init(problem, x, y, samples)
        # Optimisers keep moments, whose shapes do not depend on the rate.
        lower = tuple(jax.vmap(self.lower_rule(0.1).init)(y_group) for y_group in y)
        upper = self.upper_rule(0.1).init(x)
        step = jnp.zeros((), jnp.int32)
        state = State(step, x, y, weights, upper, lower, hypergradient, weighting, automatic)
        return self.start_trackers(problem, state, keys[2])

    def start_rates(
        self, problem: Problem, x: Any, y: tuple, weights: jax.Array, key: jax.Array, steps: Any
    ) -> measured.Automatic:
        """What the rates that were not given are made of."""
        which = (self.follows_curvature, self.upper_lr is None, self.weighs_automatically)
        return measured.start(problem, x, y, weights, key, steps, which)

    @property
    def weighs_automatically(self) -> bool:
        """Whether gamma is to be chosen."""
        return self.weighting.moves and self.weighting.lr is None

    def start_trackers(self, problem: Problem, state: State, key: jax.Array) -> State:
        """For solvers that carry more than this; the others carry nothing."""
        return state

    def refresh(self, problem: Problem, state: State, key: jax.Array, iterations: Any = 1) -> State:
        """Between chunks of steps: measures again what automatic rates need, by so many power iterations."""
        automatic = measured.refresh(problem, state.x, state.y, state.weights, key, state.automatic, iterations)
        return state._replace(automatic=automatic)

    def measures(self, state: State) -> bool:
        """Whether `refresh` has anything to measure."""
        return state.automatic.condition is not None

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """One step."""
        raise NotImplementedError

    # ------------------------------------------------------------------ the moves of a step

    @property
    def follows_curvature(self) -> bool:
        """Whether steps measure the curvature of the lower problems."""
        return self.lower_lr is None or self.hypergradient.needs_curvature

    def lower_rates(self, problem: Problem, state: State, automatic: measured.Automatic) -> tuple[jax.Array, ...]:
        """beta, one per task, per group."""
        given = rate_at(self.lower_lr, state.step)
        if given is None:
            assert automatic.lower is not None
            return measured.lower_rates(automatic.lower)
        return tuple(jnp.full(group.size, given, state.weights.dtype) for group in problem.groups)

    def follow_curvature(self, problem: Problem, state: State, samples: tuple) -> measured.Automatic:
        """One power iteration on every lower problem, where anything asks for it."""
        if state.automatic.lower is None:
            return state.automatic
        known = curvature.follow_lower(problem, state.x, state.y, samples, state.automatic.lower)
        return state.automatic._replace(lower=known)

    def descend(self, problem: Problem, state: State, key: jax.Array, steps: int = 1) -> Lowered:
        """y_i <- y_i - beta_i grad_y g_i(x, y_i), so many times."""
        samples = draw_steps(problem, key, steps)
        automatic = self.follow_curvature(problem, state, first_of(samples))
        rate = self.lower_rates(problem, state, automatic)
        walks = tuple(map(Walk, state.y, state.lower, rate, samples))
        y, optimiser = descend(problem, self.lower_rule, steps, state.x, walks)
        return Lowered(y, optimiser, rate, automatic, walks)

    def lower_move(self, y: tuple, optimiser: tuple, gradients: tuple, rate: tuple) -> tuple[tuple, tuple]:
        """y_i <- y_i - beta_i u_i, where the u_i are known: y and the optimisers, per group."""

        def one(y: Any, optimiser: Any, u: Any, rate: jax.Array) -> tuple:
            updates, optimiser = self.lower_rule(rate).update(u, optimiser, y)
            return optax.apply_updates(y, updates), optimiser

        moved = [jax.vmap(one)(*group) for group in zip(y, optimiser, gradients, rate, strict=True)]
        ys, optimisers = zip(*moved, strict=True)
        return tuple(ys), tuple(optimisers)

    def upper_level(self, lower: tuple[curvature.Lower, ...] | None) -> Upper:
        """The estimator, with the measured lower curvatures that this solver lends to it."""
        return Upper(self.hypergradient, None if lower is None else tuple(group.value for group in lower))

    def move(
        self, problem: Problem, state: State, seen: Evaluation, automatic: measured.Automatic
    ) -> tuple[Any, Any, measured.Automatic, jax.Array, jax.Array]:
        """x <- projection of (x - alpha direction): x, its optimiser, the rates' state, alpha and |direction|."""
        direction = seen.direction
        norm = optax.tree.norm(direction).astype(state.weights.dtype)
        rate = rate_at(self.upper_lr, state.step)
        if rate is None:
            assert automatic.upper is not None
            direction, upper = measured.cut(direction, norm, automatic.upper)
            rate = measured.upper_rate(upper, state.step, automatic.horizon)
            automatic = automatic._replace(upper=upper)
        loss = jnp.vdot(state.weights, seen.losses)
        updates, optimiser = plateau.update(self.upper_rule(rate), direction, state.upper, state.x, loss)
        x = problem.constraint.project(optax.apply_updates(state.x, updates))
        return x, optimiser, automatic, jnp.asarray(rate * plateau.reduction(optimiser), norm.dtype), norm

    def weights_rate(
        self, state: State, losses: jax.Array, automatic: measured.Automatic
    ) -> tuple[jax.Array, measured.Automatic]:
        """gamma, and the rates' state after it; 0 for weights that do not move."""
        rate = rate_at(self.weighting.lr, state.step)
        if rate is None and automatic.worst is not None:
            rate, automatic = measured.weights_rate(automatic, losses, state.step)
        return jnp.asarray(0.0 if rate is None else rate, state.weights.dtype), automatic

    def reweigh(
        self, state: State, losses: jax.Array, automatic: measured.Automatic
    ) -> tuple[jax.Array, Any, measured.Automatic, jax.Array]:
        """Weights <- weights moved by the losses: weights, their state, the rates' state and gamma."""
        rate, automatic = self.weights_rate(state, losses, automatic)
        weights, weighting = self.weighting.update(state.weights, losses, state.weighting, rate)
        return weights, weighting, automatic, rate

    def finish(self, problem: Problem, state: State, lowered: Lowered, seen: Evaluation) -> tuple[State, Info]:
        """Moves x and the weights, both from what was seen at the old x and the old weights."""
        x, upper, automatic, upper_rate, norm = self.move(problem, state, seen, lowered.automatic)
        weights, weighting, automatic, weights_rate = self.reweigh(state, seen.losses, automatic)
        state = state._replace(
            step=state.step + 1,
            x=x,
            y=lowered.y,
            weights=weights,
            upper=upper,
            lower=lowered.optimiser,
            hypergradient=seen.state,
            weighting=weighting,
            automatic=automatic,
        )
        used = [rate * plateau.reduction(o) for rate, o in zip(lowered.rate, lowered.optimiser, strict=True)]
        return state, Info(seen.losses, norm, upper_rate, problem.join(used), weights_rate)

    def replace(self, **options: Any) -> Self:
        """The same solver with other options."""
        return dataclasses.replace(self, **options)  # type: ignore[type-var]


@jax.jit
def _start(solver: BilevelSolver, problem: Problem, x: Any, y: tuple, key: jax.Array, steps: jax.Array) -> State:
    return solver.start(problem, x, y, key, steps)


def measure(solver: BilevelSolver, problem: Problem, state: State, key: jax.Array, iterations: Any) -> State:
    """`solver.refresh`, compiled; the number of iterations is data, so that first and later measurements are one.

    The driver compiles the same function in the same way, and gets the same program.
    """
    return jax.jit(type(solver).refresh)(solver, problem, state, key, iterations)
