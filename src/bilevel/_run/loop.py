"""The compiled loop: the only place where steps are looped over.

How many steps a call takes is data, so neither the number of steps nor how often a run is evaluated changes what is
compiled. Step k draws from fold_in(key, k), so how a run is cut into calls does not change it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core import pytrees
from bilevel._run import last_visit
from bilevel._run.averaging import LateAverage, add
from bilevel._run.averaging import Variables as Variables
from bilevel._run.devices import Layout
from bilevel.problem.problem import BaseProblem
from bilevel.solvers._base.solver import Solver
from bilevel.solvers._base.some_tasks import SomeTasks
from bilevel.solvers._base.state import Info, State

Count = int | jax.Array


class Watch(NamedTuple):
    """What is summed up between evaluations."""

    squares: jax.Array  # of the direction's norm
    travel: jax.Array  # of the weights: sum of |changes|
    low: jax.Array  # the smallest and the largest value of each weight
    high: jax.Array

    @classmethod
    def start(cls, weights: jax.Array) -> Watch:
        """Nothing seen yet."""
        zero = jnp.zeros((), weights.dtype)
        return cls(zero, zero, weights, weights)

    def see(self, norm: jax.Array) -> Watch:
        """One step more."""
        return self._replace(squares=self.squares + norm**2)

    def weigh(self, before: jax.Array, after: jax.Array) -> Watch:
        """One move of the weights more."""
        travel = self.travel + jnp.sum(jnp.abs(after - before))
        return Watch(self.squares, travel, jnp.minimum(self.low, after), jnp.maximum(self.high, after))


class Carry(NamedTuple):
    """What compiled calls hand on to each other."""

    state: State
    average: Variables | LateAverage
    random: Variables
    info: Info  # of the last step
    watch: Watch
    finite: jax.Array  # losses and direction in every step; x, y and the weights after the last


# Traced once, for `first` and for `steps`, and compiled as part of the latter.
@functools.partial(jax.jit, inline=True)
def _step(solver: Solver, problem: Any, state: State, key: jax.Array) -> tuple[State, Info]:
    return (solver.visit if isinstance(solver, SomeTasks) else solver.step)(problem, state, key)


def first(solver: Solver, problem: BaseProblem, state: State, key: jax.Array) -> Carry:
    """What is carried before the first step."""
    point = Variables.of(state)
    late = isinstance(solver, SomeTasks)
    average = LateAverage.start(state, not last_visit.is_needed(solver, problem)) if late else point
    nothing = _nothing_seen(solver, problem, state, key)
    return Carry(state, average, point, nothing, Watch.start(state.weights), jnp.array(True))


def _nothing_seen(solver: Solver, problem: BaseProblem, state: State, key: jax.Array) -> Info:
    """What a step reports, where none was taken."""
    _, info = jax.eval_shape(_step, solver, problem, state, key)
    unknown = lambda a: np.nan if jnp.issubdtype(a.dtype, jnp.inexact) else 0  # noqa: E731
    return jax.tree.map(lambda a: np.full(a.shape, unknown(a), a.dtype), info)


def gone_on_with(
    solver: Solver, problem: BaseProblem, layout: Layout | None, key: jax.Array, start_key: jax.Array, carry: Carry
) -> Carry:
    """What may have been carried on another number of devices, where steps draw others, and perhaps more, tasks."""
    sampling = carry.state.sampling
    if not isinstance(solver, SomeTasks) or int(sampling.parts) == (1 if layout is None else layout.devices):
        return carry
    state = _moved(solver, problem, carry.state, start_key)
    nothing = _nothing_seen(solver, problem, state, key)
    fits = carry.info.losses.shape == nothing.losses.shape
    carry = carry._replace(state=state, info=carry.info if fits else nothing)
    return carry if layout is None else layout.laid_out(carry)


@jax.jit
def _moved(solver: SomeTasks, problem: Any, state: State, key: jax.Array) -> State:
    return solver.moved(problem, state, key)


@functools.partial(jax.jit, static_argnames="layout")
def steps(
    solver: Solver,
    problem: BaseProblem,
    carries: tuple[Carry, ...],
    keys: tuple[jax.Array, ...],
    stops: tuple[Count, ...],
    picks: tuple[Count, ...],
    layout: Layout | None = None,
) -> tuple[Carry, ...]:
    """Steps of every lane up to its stop; a lane that is there already keeps its value.

    A lane is one run of a batch; where there is one only, nothing is batched. The lanes are stacked in here, so that
    outside every lane is a value of its own. On several devices there is one lane.
    """
    if len(carries) == 1:
        return (_steps(solver, problem, layout, carries[0], keys[0], stops[0], picks[0]),)
    lanes = (pytrees.stack(carries), pytrees.stack(keys), jnp.stack(stops), jnp.stack(picks))
    after = jax.vmap(functools.partial(_steps, solver, problem, layout))(*lanes)
    return tuple(pytrees.index(after, i) for i in range(len(carries)))


def _moved_finitely(norm: jax.Array, x: Any) -> jax.Array:
    """Whether the direction was finite. A solver may not know its norm, which is NaN then: so x is looked at."""
    return jax.lax.cond(jnp.isnan(norm), lambda: pytrees.all_finite(x), lambda: jnp.isfinite(norm))


def _steps(
    solver: Solver,
    problem: BaseProblem,
    layout: Layout | None,
    carry: Carry,
    key: jax.Array,
    stop: Count,
    pick: Count,
) -> Carry:
    """Steps of one lane; the state before step `pick`, with y after it, becomes the random iterate.

    That is the pairing (x^t, y^{t+1}) of the theory for solvers that move y first. Where x moves first, y^{t+1} belongs
    to x^{t+1}, and y is kept as it was before the step too.
    """
    laid_out = (lambda carry: carry) if layout is None else layout.constrained

    def one(carry: Carry) -> Carry:
        before = carry.state if layout is None else layout.with_whole_x(carry.state)
        state, info = _step(solver, problem, before, jax.random.fold_in(key, before.step))
        watch = carry.watch.see(info.direction_norm)
        if isinstance(carry.average, LateAverage):
            average = carry.average.see(state)
        else:
            average = add(carry.average, Variables.of(state), state.step, state.weights.dtype)
            watch = watch.weigh(before.weights, state.weights)
        finite = jnp.all(jnp.isfinite(info.losses)) & _moved_finitely(info.direction_norm, state.x)
        return laid_out(Carry(state, average, carry.random, info, watch, finite))

    # Three stretches, before the picked step, the step itself and after it, in a loop so that `one` is compiled once.
    ends = jnp.stack([jnp.minimum(pick, stop), jnp.minimum(pick + 1, stop), jnp.asarray(stop)])

    def stretch(carry: Carry, part: tuple[jax.Array, jax.Array]) -> tuple[Carry, None]:
        number, end = part
        more = lambda state: (state.step < end) & jnp.logical_not(solver.has_ended(state))  # noqa: E731
        go = lambda carry: more(carry.state) & carry.finite  # noqa: E731
        carry = (_in_parts(solver, problem, go, one) if isinstance(solver, SomeTasks) else _whole(go, one))(carry)
        state, kept = carry.state, carry.random
        here, after = (pick < stop) & (number == 0), (pick < stop) & (number == 1)
        choose = lambda when, new, old: jax.tree.map(lambda n, o: jnp.where(when, n, o), new, old)  # noqa: E731
        kept = Variables(
            choose(here, state.x, kept.x),
            choose(here if solver.moves_x_first else after, state.y, kept.y),
            choose(here, state.weights, kept.weights),
        )
        return laid_out(carry._replace(random=kept)), None

    carry = jax.lax.scan(stretch, carry, (jnp.arange(3), ends))[0]
    state = carry.state
    return carry._replace(finite=carry.finite & pytrees.all_finite((state.x, state.y, state.weights)))


def _whole(go: Callable[[Carry], jax.Array], one: Callable[[Carry], Carry]) -> Callable[[Carry], Carry]:
    """Whole steps."""
    return lambda carry: jax.lax.while_loop(go, one, carry)


def _in_parts(
    solver: SomeTasks, problem: Any, go: Callable[[Carry], jax.Array], one: Callable[[Carry], Carry]
) -> Callable[[Carry], Carry]:
    """Visits, and between them moves of the weights where they are due.

    Two loops, one inside the other: in a single loop the condition whether the weights move would copy all that it may
    move in every step, which costs n numbers.
    """

    def settled(carry: Carry) -> Carry:
        before = carry.state
        assert isinstance(carry.average, LateAverage)
        state = solver.settle(problem, before)
        watch = carry.watch.weigh(before.weights, state.weights)
        return carry._replace(state=state, average=carry.average.weigh(before, state), watch=watch)

    def block(carry: Carry) -> Carry:
        due = lambda carry: solver.is_due(problem, carry.state)  # noqa: E731
        carry = jax.lax.while_loop(lambda carry: go(carry) & ~due(carry), one, carry)
        return jax.lax.cond(carry.finite & due(carry), settled, lambda carry: carry, carry)

    return lambda carry: jax.lax.while_loop(go, block, carry)
