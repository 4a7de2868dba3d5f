"""A step that sees some of the tasks: their rows are taken out, any solver's own step is taken, and they are put back.

What it estimates, and why it is unbiased: `bilevel.sampling`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from bilevel._core import pytrees
from bilevel.problem.group import Group, TaskView
from bilevel.problem.on_devices import own_rows
from bilevel.problem.per_task import Everywhere, InOrder, PerTask
from bilevel.problem.problem import Problem
from bilevel.sampling.all import All
from bilevel.sampling.losses import Owed
from bilevel.solvers._base import drawing
from bilevel.solvers._base.catching_up import caught_up, steps_at_a_visit
from bilevel.solvers._base.last_point import LastStep
from bilevel.solvers._base.rows import Rows
from bilevel.solvers._base.state import Info, State
from bilevel.weightings import Average

if TYPE_CHECKING:
    from bilevel.solvers._base.bilevel import BilevelSolver

WEIGHTS_POWER = 1.5  # of m / n, which a chosen rate of the weights is multiplied by: see `bilevel.sampling`
MOVES_PER_ROUND = 8  # moves of the weights in the n / m steps in which a task is visited once
DRAWING = (
    2**32 - 1
)  # folded into a step's key to draw tasks, less the group; the rest is the solver's, as if it saw all


class Sampled(NamedTuple):
    """What sampling carries."""

    urns: Everywhere[Any]
    parts: jax.Array  # the number of parts, one a device, that the urns are of
    counted: InOrder[jax.Array]  # how much each task counts in what x descends
    owed: Owed | None  # None where the weights do not move
    last: LastStep | None  # None where the solver does not look at it


class Seen(NamedTuple):
    """The tasks of a step."""

    rows: Rows
    share: jax.Array  # how often each is drawn in a step on average


class Ahead(NamedTuple):
    """What coming steps will draw."""

    places: PerTask[jax.Array]  # of every group, one row a step
    known: jax.Array  # how many of these steps are known
    before_move: jax.Array  # how many steps there are before the next move of the weights


def counts(solver: BilevelSolver, problem: Problem) -> tuple[int, ...]:
    """How many tasks a step sees of each group."""
    return drawing.counts(solver.sampling, problem)


def steps_between(solver: BilevelSolver, problem: Problem) -> int:
    """The weights move every so many steps."""
    return max(1, problem.size // (MOVES_PER_ROUND * sum(counts(solver, problem))))


def start(solver: BilevelSolver, problem: Problem, state: State, key: jax.Array) -> Sampled:
    """Full urns, and the table with every task's loss at the start: one look at all tasks."""
    counted = solver.weights_of_x(state)
    urns = drawing.fill(solver.sampling, problem, counted, key)
    parts = jnp.asarray(drawing.parts(problem), jnp.int32)
    last = LastStep.start(counted) if solver.compares_points else None
    if not solver.weighting.moves:
        return Sampled(urns, parts, InOrder(counted), None, last)

    def loss(task: TaskView, y: Any, key: jax.Array) -> jax.Array:
        return task.upper(state.x, y, task.draw_upper(key).upper)

    def of_group(group: Group, y: Any) -> jax.Array:
        return group.each(loss, y, group.keys(key), block=group.block(group.validation))

    losses = problem.join(PerTask(tuple(of_group(*own) for own in zip(problem.groups, state.y, strict=True))))
    return Sampled(urns, parts, InOrder(counted), Owed.start(losses.astype(state.weights.dtype)), last)


def moved(solver: BilevelSolver, problem: Problem, state: State, key: jax.Array) -> State:
    """A state that was kept on another number of devices, with the urns of these; `key` is that of the start."""
    carried: Sampled = state.sampling
    urns = drawing.fill(solver.sampling, problem, carried.counted.value, key)
    parts = jnp.asarray(drawing.parts(problem), jnp.int32)
    return state._replace(sampling=carried._replace(urns=urns, parts=parts))


def draw(solver: BilevelSolver, problem: Problem, state: State, urns: Everywhere[Any], key: jax.Array) -> Seen:
    """The tasks of a step."""
    keys = [jax.random.fold_in(key, DRAWING - g) for g in range(len(problem.groups))]
    groups = zip(problem.groups, urns, counts(solver, problem), keys, strict=True)
    draws = [drawing.draw(solver.sampling, group, urn, state.weights, count, own) for group, urn, count, own in groups]
    rows = Rows.of(problem, PerTask(tuple(own.places for own in draws)))
    return Seen(rows, jnp.concatenate([own.share for own in draws]))


def known_draws(solver: BilevelSolver, problem: Problem, state: State, keys: jax.Array) -> Ahead:
    """What coming steps draw, with these keys; known are the steps up to the next but one move of the weights."""
    carried: Sampled = state.sampling
    between, owed = steps_between(solver, problem), carried.owed
    keys = keys if owed is None else keys[: 2 * between]

    def places(urns: Everywhere[Any]) -> PerTask[jax.Array]:
        return jax.lax.map(lambda key: draw(solver, problem, state, urns, key).rows.places, keys)

    now, count = places(carried.urns), jnp.asarray(len(keys))
    if owed is None:
        return Ahead(now, count, count)
    later = places(refilled(solver, problem, carried.urns, carried.counted.value))
    left = jnp.maximum(between - owed.steps, 1)
    first = jnp.arange(len(keys)) < left
    both = jax.tree.map(lambda a, b: jnp.where(first[:, None], a, b), now, later)
    return Ahead(both, jnp.minimum(left + between, count), left)


def few(seen: Seen, state: State) -> State:
    """The state of a problem of these tasks, whose weights make its direction an estimate of that of all."""
    weights = state.sampling.counted.value[seen.rows.numbers] / seen.share
    return seen.rows.take(state._replace(weights=None, weighting=None, sampling=()))._replace(
        weights=weights, weighting=()
    )


def visit(solver: BilevelSolver, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
    """A step without the move of the weights: x, and what belongs to the tasks that it sees."""
    carried: Sampled = state.sampling
    seen = draw(solver, problem, state, carried.urns, key)
    small, last = few(seen, state), carried.last
    start, tasks = small, seen.rows.problem(problem)
    # With weights that do not move, as they are moved by all that several steps have seen.
    own = solver.replace(weighting=Average())
    more = steps_at_a_visit(solver, problem.size, tasks.size)
    if more:
        start = caught_up(own, tasks, small, key, more)
    if last is not None:
        start = solver.with_last_point(start, last.of(*seen, carried.counted, state.step))
        last = last.see(seen.rows, state.step)
    if sum(counts(solver, problem)) == problem.size:  # nothing that is known of a task is of long ago
        own = own.replace(sampling=All())
    after, info = own.step(tasks, start, key)
    after, info = _slowed(solver, problem, state, after, info)
    rate, owed, rates = info.weights_rate, carried.owed, after.rates
    if owed is not None:
        there = state._replace(weighting=pytrees.index(state.weighting, seen.rows.numbers), rates=rates)
        there, rate = solver.weights_rate(there, info.losses)
        rates = there.rates
        rate = rate * (_seen_share(solver, problem) ** WEIGHTS_POWER if solver.needs.weights else 1)
        owed = owed.see(seen.rows.numbers, seen.share, info.losses, rate)
    same = {"weights": None, "weighting": None, "sampling": None}
    whole = seen.rows.put(state._replace(**same), small._replace(**same), after._replace(rates=rates, **same))
    carried = carried._replace(owed=owed, last=last)
    whole = whole._replace(weights=state.weights, weighting=state.weighting, sampling=carried)
    return whole, info._replace(weights_rate=rate, seen=seen.rows.numbers)


def _slowed(solver: BilevelSolver, problem: Problem, state: State, after: State, info: Info) -> tuple[State, Info]:
    """With a chosen rate, x goes a part of the way where it looks at a y and a v that are of the last visit.

    They lag behind x by n / m steps then, and x would swing around where they think it is.
    """
    if not (solver.moves_at_once and solver.needs.upper and solver.rates.chooses):
        return after, info
    part = _seen_share(solver, problem)
    x = jax.tree.map(lambda old, new: old + (part * (new - old)).astype(old.dtype), state.x, after.x)
    return after._replace(x=x), info._replace(upper_rate=part * info.upper_rate)


def _seen_share(solver: BilevelSolver, problem: Problem) -> float:
    return sum(counts(solver, problem)) / problem.size


def due(solver: BilevelSolver, problem: Problem, state: State) -> jax.Array:
    """Whether the weights are to move now."""
    owed = state.sampling.owed
    return jnp.array(False) if owed is None else owed.steps >= steps_between(solver, problem)


def settle(solver: BilevelSolver, problem: Problem, state: State) -> State:
    """The move of the weights."""
    owed: Owed | None = state.sampling.owed
    if owed is None:
        return state
    weights, weighting = solver.update_weights(state.weights, owed.losses(), state.weighting, owed.rate)
    before, last = state.sampling.counted, state.sampling.last
    state = state._replace(weights=weights, weighting=weighting)
    counted = solver.weights_of_x(state)
    # By what tasks counted before this move: so the tasks of the steps up to the next move are known before they begin,
    # and their rows can be read ahead. Any shares give unbiased estimates.
    urns = refilled(solver, problem, state.sampling.urns, before.value)
    last = None if last is None else last.weigh(before, state.step)
    return state._replace(sampling=Sampled(urns, state.sampling.parts, InOrder(counted), owed.paid(), last))


def refilled(solver: BilevelSolver, problem: Problem, urns: Everywhere[Any], counted: jax.Array) -> Everywhere[Any]:
    """The urns of tasks that count so much."""
    return drawing.refill(solver.sampling, problem, urns, counted)


def step(solver: BilevelSolver, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
    """A whole step."""
    state, info = visit(solver, problem, state, key)
    if state.sampling.owed is None:
        return state, info
    if steps_between(solver, problem) == 1:
        return settle(solver, problem, state), info
    # A condition on n numbers copies them; the driver's loop has `visit` and `settle` in loops of their own.
    move = lambda state: settle(solver, problem, state)  # noqa: E731
    return jax.lax.cond(due(solver, problem, state), move, lambda state: state, state), info


def spread(values: Any, problem: Problem, seen: Seen) -> Any:
    """Rows for all tasks from those of a few; for the others, of numbers the largest, of vectors the first.

    So start curvatures: the few are measured, and the others find their own when they are visited.
    """

    def group(own: Any, whole: Group) -> Any:
        one = lambda a: jnp.max(a, axis=0) if a.ndim == 1 else a[0]  # noqa: E731
        return own_rows(jax.tree.map(lambda a: jnp.broadcast_to(one(a), (whole.size, *a.shape[1:])), own), whole.on)

    def whole(node: Any) -> Any:
        if not isinstance(node, PerTask):
            return node
        return PerTask(tuple(group(own, g) for own, g in zip(node, problem.groups, strict=True)))

    filled = jax.tree.map(whole, values, is_leaf=lambda node: isinstance(node, PerTask))
    return seen.rows.put(filled, filled, values)
