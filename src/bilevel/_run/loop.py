"""The compiled loop: the only place where steps are looped over.

How many steps a call takes is data, so neither the number of steps nor how often a run is evaluated changes what is
compiled. Step k draws from fold_in(key, k), so how a run is cut into calls does not change it.

The loop also carries the average of the iterates, and the random iterate: reservoir sampling, decided by the seed
alone, picks the step.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from bilevel._core import pytrees
from bilevel._core.types import Tree
from bilevel._run import final_refit
from bilevel._run.devices import Layout
from bilevel.problem.problem import BaseProblem, Problem
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


def _step_of(solver: Solver) -> Callable[..., tuple[State, Info]]:
    """The step of the class of a solver."""
    return _traced_once(SomeTasks.visit if isinstance(solver, SomeTasks) else type(solver).step)


@functools.cache
def _traced_once(step: Callable[..., tuple[State, Info]]) -> Callable[..., tuple[State, Info]]:
    """A step that is traced once, for `first` and for `steps`, and compiled as part of the latter."""
    return jax.jit(step, inline=True)


def first(solver: Solver, problem: BaseProblem, state: State, key: jax.Array) -> Carry:
    """What is carried before the first step."""
    point = Variables.of(state)
    late = isinstance(solver, SomeTasks)
    average = LateAverage.start(state, not final_refit.is_needed(solver, problem)) if late else point
    nothing = _nothing_seen(solver, problem, state, key)
    return Carry(state, average, point, nothing, Watch.start(state.weights), jnp.array(True))


def _nothing_seen(solver: Solver, problem: BaseProblem, state: State, key: jax.Array) -> Info:
    """What a step reports, where none was taken."""
    _, info = jax.eval_shape(_step_of(solver), solver, problem, state, key)
    unknown = lambda a: np.nan if jnp.issubdtype(a.dtype, jnp.inexact) else 0  # noqa: E731
    return jax.tree.map(lambda a: np.full(a.shape, unknown(a), a.dtype), info)


def resumed(
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
def _moved(solver: SomeTasks, problem: Problem, state: State, key: jax.Array) -> State:
    return solver.moved(problem, state, key)


@functools.partial(jax.jit, static_argnames="layout")
def steps(
    solver: Solver,
    problem: BaseProblem,
    carry: Carry,
    key: jax.Array,
    stop: Count,
    pick: Count,
    layout: Layout | None = None,
) -> Carry:
    """Steps up to `stop`; the state before step `pick`, with y after it, becomes the random iterate.

    That is the pairing (x^t, y^{t+1}) of the theory for solvers that move y first. Where x moves first, y^{t+1} belongs
    to x^{t+1}, and y is kept as it was before the step too.
    """
    step = _step_of(solver)
    laid_out = (lambda carry: carry) if layout is None else layout.constrained

    def one(carry: Carry) -> Carry:
        before = carry.state if layout is None else layout.with_whole_x(carry.state)
        state, info = step(solver, problem, before, jax.random.fold_in(key, before.step))
        norm = info.direction_norm
        watch = carry.watch._replace(squares=carry.watch.squares + norm**2)
        if isinstance(carry.average, LateAverage):
            average = carry.average.see(state)
        else:
            average = add(carry.average, Variables.of(state), state.step, state.weights.dtype)
            watch = watch.weigh(before.weights, state.weights)
        finite = jnp.all(jnp.isfinite(info.losses))
        # A solver may not know the norm of its direction, which is NaN then: so x is looked at.
        finite &= jax.lax.cond(jnp.isnan(norm), lambda: pytrees.all_finite(state.x), lambda: jnp.isfinite(norm))
        return laid_out(Carry(state, average, carry.random, info, watch, finite))

    # Three stretches, before the picked step, the step itself and after it, in a loop so that `one` is compiled once.
    ends = jnp.stack([jnp.minimum(pick, stop), jnp.minimum(pick + 1, stop), jnp.asarray(stop)])

    def stretch(carry: Carry, part: tuple[jax.Array, jax.Array]) -> tuple[Carry, None]:
        number, end = part
        more = lambda state: (state.step < end) & jnp.logical_not(solver.has_ended(state))  # noqa: E731
        go = lambda carry: more(carry.state) & carry.finite  # noqa: E731
        if isinstance(solver, SomeTasks):
            carry = _in_parts(solver, problem, go, one)(carry)
        else:
            carry = jax.lax.while_loop(go, one, carry)
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


@jax.jit
def steps_of_lanes(
    solver: Solver,
    problem: BaseProblem,
    carries: tuple[Carry, ...],
    keys: tuple[jax.Array, ...],
    stops: tuple[Count, ...],
    picks: tuple[Count, ...],
) -> tuple[Carry, ...]:
    """`steps` of the runs of a batch, on one device; one that is at its stop already keeps its value.

    They are stacked in here, so that outside every lane is a value of its own.
    """
    lanes = (pytrees.stack(carries), pytrees.stack(keys), jnp.stack(stops), jnp.stack(picks))
    after = jax.vmap(functools.partial(steps, solver, problem))(*lanes)
    return tuple(pytrees.index(after, i) for i in range(len(carries)))


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


BLOCK = 2**16  # draws at once; a run may have more steps than fit into memory


class Reservoir:
    """Step k replaces the random iterate with probability 1 / (k + 1), so that all steps so far are equally likely.

    The draws are made as the run comes to them. How far ahead that is changes none of them.

    >>> reservoir = Reservoir(seed=0)
    >>> reservoir.pick(0, 1), reservoir.pick(0, 1000) == Reservoir(seed=0).pick(0, 1000)
    (0, True)
    """

    def __init__(self, seed: int):
        self._generator = np.random.default_rng(seed)
        self._drawn, self._picks = 0, list[int]()

    def pick(self, step: int, stop: int) -> int | None:
        """The last step in [step, stop) that replaces the random iterate; None where none does."""
        while self._drawn < stop:
            numbers = np.arange(self._drawn + 1, self._drawn + BLOCK + 1)
            self._picks += (np.flatnonzero(self._generator.random(BLOCK) * numbers < 1) + self._drawn).tolist()
            self._drawn += BLOCK
        until = bisect.bisect_left(self._picks, stop)
        return self._picks[until - 1] if until > bisect.bisect_left(self._picks, step) else None


POWER = 3  # weights ~ k^3: nearly half of the run counts, its end the most


class Variables(NamedTuple):
    """What an iterate consists of."""

    x: Tree
    y: Tree
    weights: jax.Array

    @classmethod
    def of(cls, state: State) -> Variables:
        """The point that a state is at."""
        return cls(state.x, state.y, state.weights)


def add(average: Tree, point: Tree, step: jax.Array, dtype: DTypeLike) -> Tree:
    """The average after step k: a <- a + (1 + p) / (k + p) (point - a)."""
    share = (1 + POWER) / (step.astype(dtype) + POWER)
    return jax.tree.map(lambda a, p: a + (share * (p - a)).astype(a.dtype), average, point)


def rested(average: Tree, point: Tree, since: jax.Array, until: jax.Array, dtype: DTypeLike) -> Tree:
    """The average after step `until` of what has been at one point since step `since`, where the average was this.

    A step from j - 1 to j keeps (j - 1) / (j + p) of the distance; the product over the steps telescopes.
    """
    kept = jnp.ones_like(since, dtype)
    for i in range(1 + POWER):
        # As floats first: the ratio of two int32 is a float32, also where the run is in float64.
        kept = kept * (since + i).astype(dtype) / jnp.maximum(until + i, 1).astype(dtype)
    kept = jnp.where(since == until, 1, kept)
    return jax.tree.map(lambda a, p: p + (kept * (a - p)).astype(a.dtype), average, point)


class LateAverage(NamedTuple):
    """The average where the weights move every so many steps only: theirs is brought up to date when they move.

    Where a step moves y of some of the tasks, y has no average: at the end of the run it is fitted to the average of x.
    """

    point: Variables  # with y None where it has no average
    weights: jax.Array  # the step of which the average of the weights is

    @classmethod
    def start(cls, state: State, all_move: bool) -> LateAverage:
        """Before the first step; `all_move` says whether every step moves y of all tasks."""
        point = Variables.of(state)
        return cls(point if all_move else point._replace(y=None), jnp.zeros((), jnp.int32))

    def see(self, after: State) -> LateAverage:
        """After a step that moved x and y."""
        average, new = (self.point.x, self.point.y), (after.x, None if self.point.y is None else after.y)
        x, y = add(average, new, after.step, after.weights.dtype)
        return self._replace(point=self.point._replace(x=x, y=y))

    def weigh(self, before: State, after: State) -> LateAverage:
        """After a move of the weights."""
        dtype, step = after.weights.dtype, after.step
        current = rested(self.point.weights, before.weights, self.weights, step - 1, dtype)
        weights = add(current, after.weights, step, dtype)
        return LateAverage(self.point._replace(weights=weights), step)

    def at(self, state: State) -> Variables:
        """The average now, of everything; of y that has none, as it is."""
        weights = rested(self.point.weights, state.weights, self.weights, state.step, state.weights.dtype)
        return Variables(self.point.x, state.y if self.point.y is None else self.point.y, weights)


@jax.jit
def average_of(average: Variables | LateAverage, state: State) -> Variables:
    """The average of the iterates up to a state."""
    return average.at(state) if isinstance(average, LateAverage) else average
