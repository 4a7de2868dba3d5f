"""Wrapper of a solver for new tasks: a step fits their y, makes the solver's step, and drops the tasks.

A run wraps its solver once, in `FreshTasks`. `bl.sampling.Fresh` explains a step line by line. The state of such a run
holds what is shared; in `rates`, one row for each task of a step, of which the next tasks reuse only the directions of
largest curvature; and the starting y of the tasks that the run is evaluated on, which does not move.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bilevel._core import linear, pytrees
from bilevel._core.linear import hessian_product
from bilevel._core.module import leaf, part
from bilevel._core.types import Count, Tree
from bilevel.problem.constraints import Constraint
from bilevel.problem.group import TaskView, UpperSample
from bilevel.problem.per_task import PerTask, for_groups, is_of_tasks
from bilevel.problem.problem import Problem
from bilevel.rates.curvature import LowerCurvature
from bilevel.rates.given import Scaled
from bilevel.rates.protocol import Needs, RatesState
from bilevel.solvers._base.bilevel import BilevelSolver
from bilevel.solvers._base.solver import Solver
from bilevel.solvers._base.state import Halves, Info, State
from bilevel.solvers.sampling import All, Fresh
from bilevel.weightings import Average
from bilevel.weightings.base import uniform

POWER_ITERATIONS = 4  # power iterations on a new task, from the direction of the last task in its place
LEAST_MEASURED = 3  # power iterations of a measurement, as nothing is known about new tasks


@part
class Standing(Constraint):
    """The set {x}: a step on it moves only values of tasks. The compiler then drops the direction of x."""

    x: Tree = leaf()

    def project(self, x: Tree) -> Tree:
        """The one point."""
        return self.x


@part
class AtStart(Scaled):
    """Rates whose lower rates are those of step 0: those of a run may fall to zero, but a new task starts anew."""

    def lower(self, problem: Problem, state: RatesState, step: jax.Array) -> PerTask[jax.Array]:
        """beta_i of step 0."""
        return super().lower(problem, state, jnp.zeros_like(step))


class Drawn(NamedTuple):
    """New tasks, and a state of them."""

    problem: Problem
    state: State


@part
class FreshTasks(Solver):
    """A bilevel solver whose steps see only new tasks of a distribution."""

    solver: BilevelSolver

    @property
    def moves_x_first(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the solver does."""
        return self.solver.moves_x_first

    @property
    def needs(self) -> Needs:
        """The needs of the solver, without a rate of weights: every step computes new weights."""
        return self.solver.needs._replace(weights=False)

    @property
    def has_chosen_rates(self) -> bool:
        """As the solver has."""
        return self.solver.rates.chooses and (self.needs.upper or self.needs.lower)

    @property
    def sampling(self) -> Fresh:
        """The number of tasks of a step, and how their y is fitted."""
        return self.solver.sampling  # type: ignore[return-value]

    @property
    def plain(self) -> BilevelSolver:
        """The solver on the tasks of one step: it sees all of them, and their weights are given."""
        return self.solver.replace(weighting=Average(), sampling=All())

    def start(self, problem: Problem, x: Tree, y: PerTask[Tree], key: jax.Array, steps: jax.Array) -> State:
        """The first state; y is where the tasks of the evaluation start, all of them at one point."""
        draw_key, key = jax.random.split(key)
        drawn = self.new_tasks(problem, draw_key)
        begun = self.plain.start(drawn, x, spread(y, drawn.size), key, steps)
        dtype = begun.weights.dtype
        return _kept(begun)._replace(
            y=y, weights=uniform(problem.size, dtype), sampling=self.solver.weighting.start_draws(dtype)
        )

    def new_tasks(self, problem: Problem, key: jax.Array) -> Problem:
        """As many as a step sees."""
        assert problem.distribution is not None
        return problem.distribution.fresh(problem, key, self.sampling.tasks)

    def begin_step(self, problem: Problem, state: State, key: jax.Array) -> Drawn:
        """New tasks with y fitted to the x of the state."""
        draw_key, start_key, curve_key, key = jax.random.split(key, 4)
        drawn, own = self.new_tasks(problem, draw_key), self.plain
        y = spread(state.y, drawn.size)
        begun = own.start(drawn, state.x, y, start_key, state.rates.horizon)
        rates = state.rates
        if rates.curvature is not None:
            rates = rates._replace(curvature=_remeasured(drawn, state.x, y, curve_key, rates.curvature))
        memory = jax.tree.map(
            lambda kept, new: new if kept is None else kept,
            state.memory,
            begun.memory,
            is_leaf=lambda node: node is None or is_of_tasks(node),
        )
        there = begun._replace(step=state.step, x=state.x, upper=state.upper, rates=rates, memory=memory)
        return Drawn(drawn, after_lower_steps(own, drawn, there, key, self.sampling.catch_up))

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """A whole step."""
        begin_key, look_key, key = jax.random.split(key, 3)
        drawn, there = self.begin_step(problem, state, begin_key)
        losses = looked_at(drawn, there, look_key).astype(state.weights.dtype)
        weights, carried = self.solver.weighting.weigh_draw(losses, state.sampling)
        after, info = self.plain.step(drawn, there._replace(weights=weights), key)
        # The step did not see the tasks of the evaluation; their rates only fill the shape.
        rate = jnp.full(problem.size, jnp.max(info.lower_rate))
        after = _kept(after)._replace(y=state.y, weights=state.weights, sampling=carried)
        return after, info._replace(lower_rate=rate)

    def measures(self, state: State) -> bool:
        """Whether `refresh` has anything to measure."""
        return self.solver.measures(state)

    def refresh(self, problem: Problem, state: State, key: jax.Array, iterations: Count = 1) -> State:
        """Measures again what automatic rates need, on new tasks."""
        begin_key, look_key, key = jax.random.split(key, 3)
        drawn, there = self.begin_step(problem, state, begin_key)
        losses = looked_at(drawn, there, look_key).astype(state.weights.dtype)
        weights, _ = self.solver.weighting.weigh_draw(losses, state.sampling)
        # Halfway to uniform weights, as of all tasks.
        point = self.plain.point(there._replace(weights=(weights + 1 / drawn.size) / 2))
        least = jnp.maximum(iterations, LEAST_MEASURED)
        return state._replace(rates=self.solver.rates.refresh(drawn, point, there.rates, key, least))

    def fit(self, problem: Problem, x: Tree, y: PerTask[Tree]) -> PerTask[Tree]:
        """y of the tasks of the evaluation, after as many steps at a fixed x as new tasks get, on the same rows."""
        start_key, key = jax.random.split(jax.random.key(0))
        own, there = self.plain, problem.replace(distribution=None)
        state = own.start(there, x, y, start_key, jnp.ones((), jnp.int32))
        return after_lower_steps(own, there, state, key, self.sampling.catch_up + 1).y


def spread(y: PerTask[Tree], count: int) -> PerTask[Tree]:
    """The common start, for so many tasks."""
    return for_groups(lambda own: jax.tree.map(lambda a: jnp.broadcast_to(a[0], (count, *a.shape[1:])), own), y)


def _remeasured(
    problem: Problem, x: Tree, y: PerTask[Tree], key: jax.Array, known: PerTask[LowerCurvature]
) -> PerTask[LowerCurvature]:
    """The curvature of new tasks. Like tasks share directions of curvature; the values are their own."""

    def one(task: TaskView, y: Tree, key: jax.Array, known: LowerCurvature) -> LowerCurvature:
        sample = task.draw(key)
        product = lambda v: hessian_product(task.lower, x, y, v, sample)  # noqa: E731
        value, vector = linear.power_iteration(product, known.vector, POWER_ITERATIONS)
        # A flat start leaves no direction to continue from.
        vector = jax.tree.map(lambda new, generic: jnp.where(value > 0, new, generic), vector, pytrees.generic(y))
        value = value.astype(known.value.dtype)
        return LowerCurvature(value, vector, value)

    return problem.each(one, y, problem.keys(key), known)


def after_lower_steps(own: BilevelSolver, problem: Problem, state: State, key: jax.Array, steps: int) -> State:
    """The state after the solver's own steps at a fixed x: values of tasks move, shared ones do not."""
    here = problem.replace(constraint=Standing(state.x))
    still = own.replace(rates=AtStart(own.rates, 1.0))
    shared, first = Halves.of(state)

    def one(k: jax.Array, tasks: State) -> State:
        after, _ = still.step(here, Halves(shared, tasks).join(), jax.random.fold_in(key, k))
        return Halves.of(after).tasks

    return Halves(shared, jax.lax.fori_loop(0, steps, one, first)).join()


def looked_at(problem: Problem, state: State, key: jax.Array) -> jax.Array:
    """f_i(x, y_i) of every task, on rows that are drawn for this."""

    def loss(task: TaskView, y: Tree, sample: UpperSample) -> jax.Array:
        return task.upper(state.x, y, sample.upper)

    return problem.join(problem.each(loss, state.y, problem.draw_upper(key)))


def _kept(state: State) -> State:
    """The parts of a state of new tasks that the next step uses."""
    memory = Halves.of(state._replace(weights=(), weighting=())).shared.memory
    return state._replace(lower=(), v=(), weighting=(), memory=memory)
