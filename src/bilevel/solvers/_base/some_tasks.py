"""Wrapper of a solver for steps that see some of the tasks: takes their rows, makes a step, and puts the rows back.

`bl.sampling` says what a step estimates, and why it is unbiased. A run wraps its solver once, in `SomeTasks`; the
solver does not know about it.

A task that is seen rarely takes extra lower steps first. Between two visits, n / m steps apart, x moves far, and one
lower step moves y_i only a part of the way to the new x. The direction of x is then wrong in every task that a step
sees, and x follows it: on 160,000 small regressions, 16 in a step, |x| grew from 2 to 14, and with it the losses of
tasks whose y fitted a smaller x. So before the solver's own step a task takes extra steps,

    y_i <- y_i - beta_i grad_y g_i(x, y_i; fresh rows),    beta_i = 1 / L_i,  L_i at least |A u| of these very rows

with u the gradient, of length 1. For a quadratic g no such step makes g larger on its rows. That matters: several steps
at a rate that was measured on the rows of the first one multiply y by up to (L' / L - 1) each, where other rows have a
larger curvature L', and such runs diverged.

Cost: 1.7 times the processor time of a step on these regressions, with 64 of 100,000 in a step. One extra step instead
of three costs a third of that, and its x is between the two.

A slower x costs nothing but is worse: with a rate of x times (m / n)^(1/2) the regressions are as good, but 10,000
sinusoids, 64 in a step, are hardly learnt in the same steps (worst tenth 8.6 instead of 0.29). Tasks that are seen more
often take no extra steps: these sinusoids end at 0.22 with them and at 0.08 without; with 16 in a step they make no
difference there, nor on 16,000 points of an enclosing ball. Extra steps are for automatic rates of y, and for solvers
that do not compare a point with the last one; users who give rates also give `lower_steps`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bilevel._core import pytrees
from bilevel._core.module import part
from bilevel._core.types import Count, Tree
from bilevel.hypergradients.upper import Point
from bilevel.lower.steps import draw_steps, lower_gradients
from bilevel.problem.group import Group, TaskView
from bilevel.problem.on_devices import own_rows
from bilevel.problem.per_task import Everywhere, InOrder, PerTask
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Sample
from bilevel.rates.given import Scaled
from bilevel.rates.protocol import Needs, RatesState, curvatures
from bilevel.solvers._base import drawing
from bilevel.solvers._base.bilevel import BilevelSolver
from bilevel.solvers._base.solver import Solver
from bilevel.solvers._base.state import Info, State
from bilevel.solvers._base.task_subset import Rows
from bilevel.solvers._base.tracking import LastStep
from bilevel.solvers.sampling import Owed
from bilevel.weightings import Average

WEIGHTS_POWER = 1.5  # of m / n, which a chosen rate of the weights is multiplied by: see `bl.sampling`
MOVES_PER_ROUND = 8  # moves of the weights in the n / m steps in which a task is visited once
# Folded into a step's key to draw tasks, less the number of the group; the rest is the solver's, as if it saw all.
DRAWING = 2**32 - 1
STEPS = 3  # extra lower steps
RARELY = 512  # steps between two visits of a task from which on it takes them
KEY = 2**31  # folded into a step's key, for the rows of these


class Sampled(NamedTuple):
    """State of the sampling."""

    urns: Everywhere[Tree]
    parts: jax.Array  # the number of parts, one a device, that have urns
    counted: InOrder[jax.Array]  # the share of each task in the objective of x
    owed: Owed | None  # None if the weights do not move
    last: LastStep | None  # None if the solver does not use it


class Seen(NamedTuple):
    """The tasks of a step."""

    rows: Rows
    share: jax.Array  # how often each is drawn in a step on average


class Ahead(NamedTuple):
    """The draws of coming steps."""

    places: PerTask[jax.Array]  # of every group, one row a step
    known: jax.Array  # how many of these steps are known
    before_move: jax.Array  # how many steps there are before the next move of the weights


@part
class SeenRarely(Scaled):
    """Rates of tasks whose curvatures may be old. Only the way to follow the curvature differs."""

    def follow(
        self, problem: Problem, x: Tree, y: PerTask, rows: PerTask[Sample], state: RatesState, stale: bool = False
    ) -> RatesState:
        """Follows curvatures that are as old as the last visit of these tasks."""
        return super().follow(problem, x, y, rows, state, stale=True)


@part
class SomeTasks(Solver):
    """A bilevel solver whose steps see the tasks that its `sampling` draws.

    A step is a `visit` and, if it `is_due`, a move of the weights, `settle`. The driver runs the two in separate loops:
    a condition inside the step would copy n numbers every time.
    """

    solver: BilevelSolver

    @property
    def moves_x_first(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the solver does."""
        return self.solver.moves_x_first

    @property
    def needs(self) -> Needs:
        """The needs of the solver; its direction is noisy."""
        return self.solver.needs._replace(sampled=True)

    @property
    def has_chosen_rates(self) -> bool:
        """As the solver has."""
        return self.solver.has_chosen_rates

    def counts(self, problem: Problem) -> tuple[int, ...]:
        """How many tasks a step sees of each group."""
        return drawing.counts(self.solver.sampling, problem)

    def seen_share(self, problem: Problem) -> float:
        """The share of the tasks that a step sees."""
        return sum(self.counts(problem)) / problem.size

    def steps_between(self, problem: Problem) -> int:
        """The weights move every so many steps."""
        return max(1, problem.size // (MOVES_PER_ROUND * sum(self.counts(problem))))

    # ------------------------------------------------------------------ starting

    def start(self, problem: Problem, x: Tree, y: PerTask[Tree], key: jax.Array, steps: jax.Array) -> State:
        """The first state; rates are measured on tasks that are drawn."""
        first, keys = self.solver.first(problem, x, y), self.solver.start_keys(key)
        first = first._replace(sampling=self.start_sampling(problem, first, jax.random.fold_in(key, 3)))
        seen = self.draw(problem, first, first.sampling.urns, keys[0])
        few = few_of(seen, first)
        point = Point(few.x, few.y, few.weights, PerTask(((),) * len(first.y)))
        rates = self.solver.rates.init(seen.rows.problem(problem), point, self.needs, keys[0], steps)
        return self.solver.started(problem, first, spread(rates, problem, seen), keys)

    def start_sampling(self, problem: Problem, state: State, key: jax.Array) -> Sampled:
        """Full urns, and the table of every task's loss at the start, from one evaluation of all tasks."""
        counted = self.solver.weights_of_x(state)
        urns = drawing.fill(self.solver.sampling, problem, counted, key)
        parts = jnp.asarray(drawing.parts(problem), jnp.int32)
        last = LastStep.start(counted) if self.solver.compares_points else None
        if not self.solver.weighting.moves:
            return Sampled(urns, parts, InOrder(counted), None, last)

        def loss(task: TaskView, y: Tree, key: jax.Array) -> jax.Array:
            return task.upper(state.x, y, task.draw_upper(key).upper)

        def of_group(group: Group, y: Tree) -> jax.Array:
            return group.each(loss, y, group.keys(key), block=group.block(group.validation))

        losses = problem.join(PerTask(tuple(of_group(*own) for own in zip(problem.groups, state.y, strict=True))))
        return Sampled(urns, parts, InOrder(counted), Owed.start(losses.astype(state.weights.dtype)), last)

    def moved(self, problem: Problem, state: State, key: jax.Array) -> State:
        """A state from another number of devices, with urns for these devices; `key` is that of the start."""
        carried: Sampled = state.sampling
        urns = drawing.fill(self.solver.sampling, problem, carried.counted.value, jax.random.fold_in(key, 3))
        parts = jnp.asarray(drawing.parts(problem), jnp.int32)
        return state._replace(sampling=carried._replace(urns=urns, parts=parts))

    def measures(self, state: State) -> bool:
        """Whether `refresh` has anything to measure."""
        return self.solver.measures(state)

    def refresh(self, problem: Problem, state: State, key: jax.Array, iterations: Count = 1) -> State:
        """Measures again what automatic rates need, on tasks that are drawn, halfway to uniform weights."""
        seen = self.draw(problem, state, state.sampling.urns, key)
        few = few_of(seen, state)
        point = Point(few.x, few.y, (few.weights + 1 / (problem.size * seen.share)) / 2, few.v, curvatures(few.rates))
        rates = self.solver.rates.refresh(seen.rows.problem(problem), point, few.rates, key, iterations)
        return state._replace(rates=seen.rows.put(state.rates, few.rates, rates))

    # ------------------------------------------------------------------ drawing

    def draw(self, problem: Problem, state: State, urns: Everywhere[Tree], key: jax.Array) -> Seen:
        """The tasks of a step."""
        sampling = self.solver.sampling
        keys = [jax.random.fold_in(key, DRAWING - g) for g in range(len(problem.groups))]
        groups = zip(problem.groups, urns, self.counts(problem), keys, strict=True)
        draws = [drawing.draw(sampling, group, urn, state.weights, count, own) for group, urn, count, own in groups]
        rows = Rows.of(problem, PerTask(tuple(own.places for own in draws)))
        return Seen(rows, jnp.concatenate([own.share for own in draws]))

    def known_draws(self, problem: Problem, state: State, keys: jax.Array) -> Ahead:
        """The draws of coming steps with these keys, known up to the next move of the weights but one."""
        carried: Sampled = state.sampling
        between, owed = self.steps_between(problem), carried.owed
        keys = keys if owed is None else keys[: 2 * between]

        def places(urns: Everywhere[Tree]) -> PerTask[jax.Array]:
            return jax.lax.map(lambda key: self.draw(problem, state, urns, key).rows.places, keys)

        now, count = places(carried.urns), jnp.asarray(len(keys))
        if owed is None:
            return Ahead(now, count, count)
        later = places(self.refilled(problem, carried.urns, carried.counted.value))
        left = jnp.maximum(between - owed.steps, 1)
        first = jnp.arange(len(keys)) < left
        both = jax.tree.map(lambda a, b: jnp.where(first[:, None], a, b), now, later)
        return Ahead(both, jnp.minimum(left + between, count), left)

    def refilled(self, problem: Problem, urns: Everywhere[Tree], counted: jax.Array) -> Everywhere[Tree]:
        """The urns of tasks that count so much."""
        return drawing.refill(self.solver.sampling, problem, urns, counted)

    # ------------------------------------------------------------------ the step

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """A visit, and the move of the weights if it is due."""
        state, info = self.visit(problem, state, key)
        if state.sampling.owed is None:
            return state, info
        if self.steps_between(problem) == 1:
            return self.settle(problem, state), info
        move = lambda state: self.settle(problem, state)  # noqa: E731
        return jax.lax.cond(self.is_due(problem, state), move, lambda state: state, state), info

    def visit(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """A step without the move of the weights: x, and what belongs to the tasks that it sees."""
        carried: Sampled = state.sampling
        seen = self.draw(problem, state, carried.urns, key)
        small, last = few_of(seen, state), carried.last
        start, tasks = small, seen.rows.problem(problem)
        # With fixed weights: `settle` moves them, by the losses of several steps.
        own = self.solver.replace(weighting=Average())
        if sum(self.counts(problem)) < problem.size:
            own = own.replace(rates=SeenRarely(own.rates, 1.0))
        more = extra_lower_steps(self.solver, problem.size, tasks.size)
        if more:
            start = after_extra_lower_steps(own, tasks, small, key, more)
        if last is not None:
            start = self.solver.with_last_point(start, last.of(*seen, carried.counted, state.step))
            last = last.see(seen.rows, state.step)
        after, info = own.step(tasks, start, key)
        after, info = self._slowed(problem, state, after, info)
        rate, owed, rates = info.weights_rate, carried.owed, after.rates
        if owed is not None:
            there = state._replace(weighting=pytrees.index(state.weighting, seen.rows.numbers), rates=rates)
            there, rate = self.solver.weights_rate(there, info.losses)
            rates = there.rates
            rate = rate * (self.seen_share(problem) ** WEIGHTS_POWER if self.solver.needs.weights else 1)
            owed = owed.see(seen.rows.numbers, seen.share, info.losses, rate)
        same = {"weights": None, "weighting": None, "sampling": None}
        whole = seen.rows.put(state._replace(**same), small._replace(**same), after._replace(rates=rates, **same))
        carried = carried._replace(owed=owed, last=last)
        whole = whole._replace(weights=state.weights, weighting=state.weighting, sampling=carried)
        return whole, info._replace(weights_rate=rate, seen=seen.rows.numbers)

    def _slowed(self, problem: Problem, state: State, after: State, info: Info) -> tuple[State, Info]:
        """With an automatic rate, x moves only a part of the way if y and v are as old as the last visit.

        They lag behind x by n / m steps, and x would oscillate.
        """
        solver = self.solver
        if not (solver.moves_at_once and solver.needs.upper and solver.rates.chooses):
            return after, info
        part = self.seen_share(problem)
        x = jax.tree.map(lambda old, new: old + (part * (new - old)).astype(old.dtype), state.x, after.x)
        return after._replace(x=x), info._replace(upper_rate=part * info.upper_rate)

    def is_due(self, problem: Problem, state: State) -> jax.Array:
        """Whether the weights are to move now: every n // (8 m) steps."""
        owed = state.sampling.owed
        return jnp.array(False) if owed is None else owed.steps >= self.steps_between(problem)

    def settle(self, problem: Problem, state: State) -> State:
        """The move of the weights, by what the steps since their last move have seen."""
        owed: Owed | None = state.sampling.owed
        if owed is None:
            return state
        solver = self.solver
        weights, weighting = solver.update_weights(state.weights, owed.losses(), state.weighting, owed.rate)
        before, last = state.sampling.counted, state.sampling.last
        state = state._replace(weights=weights, weighting=weighting)
        counted = solver.weights_of_x(state)
        # With the shares from before this move: so the draws up to the next move are known now, and their rows can be
        # read ahead. Estimates are unbiased with any shares.
        urns = self.refilled(problem, state.sampling.urns, before.value)
        last = None if last is None else last.weigh(before, state.step)
        return state._replace(sampling=Sampled(urns, state.sampling.parts, InOrder(counted), owed.paid(), last))


def few_of(seen: Seen, state: State) -> State:
    """The state of these tasks, with weights that make their direction an unbiased estimate of that of all."""
    weights = state.sampling.counted.value[seen.rows.numbers] / seen.share
    return seen.rows.take(state._replace(weights=None, weighting=None, sampling=()))._replace(
        weights=weights, weighting=()
    )


def spread(values: Tree, problem: Problem, seen: Seen) -> Tree:
    """Rows for all tasks from the rows of a few: the others get the largest number, or the first vector.

    Curvatures start this way: a few are measured, and the other tasks find their own when they are visited.
    """

    def group(own: Tree, whole: Group) -> Tree:
        one = lambda a: jnp.max(a, axis=0) if a.ndim == 1 else a[0]  # noqa: E731
        return own_rows(jax.tree.map(lambda a: jnp.broadcast_to(one(a), (whole.size, *a.shape[1:])), own), whole.on)

    def whole(node: Tree) -> Tree:
        if not isinstance(node, PerTask):
            return node
        return PerTask(tuple(group(own, g) for own, g in zip(node, problem.groups, strict=True)))

    filled = jax.tree.map(whole, values, is_leaf=lambda node: isinstance(node, PerTask))
    return seen.rows.put(filled, filled, values)


def extra_lower_steps(solver: BilevelSolver, tasks: int, drawn: int) -> int:
    """How many lower steps a task takes before the solver's own, where a step sees some of the tasks."""
    rarely = tasks >= RARELY * drawn
    return STEPS if rarely and solver.needs.lower and solver.rates.chooses and not solver.compares_points else 0


def after_extra_lower_steps(solver: BilevelSolver, problem: Problem, state: State, key: jax.Array, steps: int) -> State:
    """The state of the tasks of a step after these lower steps."""
    samples = draw_steps(problem, jax.random.fold_in(key, KEY), steps)

    def one(state: State, rows: Tree) -> tuple[State, None]:
        state, beta = solver.lower_rates(problem, state, rows)
        return solver.move_lower(state, lower_gradients(problem, state.x, state.y, rows), beta), None

    rows_of_steps = jax.tree.map(lambda rows: jnp.swapaxes(rows, 0, 1), samples)
    return jax.lax.scan(one, state, rows_of_steps, length=steps)[0]
