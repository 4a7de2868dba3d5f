"""What a whole run costs: what happens before the first step, every step, and rates that are measured along the way."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._cost.counting import Tally, counted_problem
from bilevel._cost.report import Cost, DivergedError, are_finite, check
from bilevel._run import loop
from bilevel._run.run import Run
from bilevel.problem import initial_point
from bilevel.problem.problem import Problem
from bilevel.solvers._base.solver import FIRST_MEASUREMENT, Solver, measure
from bilevel.solvers._base.state import State

WINDOW = 48  # steps whose calls are compared with those of later ones
UNOPTIMISED = {"xla_backend_optimization_level": 0}
TRIES = 8  # lengths that are counted to find the longest run of a budget


class RunCost(NamedTuple):
    """Calls of a whole run, per task; what a call is, `Cost` says. Evaluations on all the data are no part of it."""

    start: Cost  # before the first step: first values, tables, rates that are measured
    steps: Cost  # of all steps together
    measuring: Cost  # of rates that are measured again along the run
    rows: np.ndarray  # of data, used up to every step; rows[0] before the first

    @property
    def total(self) -> Cost:
        """All of it."""
        return Cost(*map(sum, zip(self.start, self.steps, self.measuring, strict=True)))

    @property
    def length(self) -> int:
        """How many steps the run has."""
        return len(self.rows) - 1


class RunCounter:
    """Counts the calls of runs of one solver on one problem, with the draws of seed 0.

    What happens before the first step is counted by doing it. Steps are counted by taking them: all of them, unless a
    window of steps makes the same calls early in the run and at its end, and is taken for every window between. So
    loops that grow and refreshes at random are counted step by step. A solver that refreshes at intervals has a field
    `period`, and windows are whole periods. What is measured along the run is counted at the points that it reaches.

    Args:
        problem: what is solved.
        solver: how.
        x: where the shared variable starts.
        y: where the tasks' variables start, as for `solve`.

    Raises:
        DivergedError: from `count` and `within`, where the run diverges.
    """

    def __init__(self, problem: Problem, solver: Solver, x: Any, y: Any = None):
        check(problem, solver)
        self.problem, self.solver, self.x, self.y = problem, solver, x, y
        self._tally = Tally()
        self._counting = counted_problem(problem, self._tally)
        # Compiling takes longer than a few windows of steps, and less long than a whole run.
        self._quick_step, self._fast_step = jax.jit(solver.step, compiler_options=UNOPTIMISED), jax.jit(solver.step)
        self._key = jax.random.key(0)
        self._first, self._start = self._begin()
        self._state, self._each = self._first, []  # the steps counted so far, and the state after them

    def count(self, steps: int) -> RunCost:
        """A run of this many steps."""
        each, measured = self._steps(steps), self._measurements(steps)
        used = each[:, -1].copy()
        for step, calls in measured.items():
            used[step - 1] += calls[-1]
        rows = self._start[-1] + np.concatenate([[0.0], np.cumsum(used)])
        measuring = sum(measured.values(), np.zeros_like(self._start))
        return RunCost(Cost(*self._start), Cost(*each.sum(axis=0)), Cost(*measuring), rows)

    def within(self, rows: float) -> RunCost:
        """The longest run that was found to use no more rows than these; one step, where even that uses more."""
        best, steps, tried = None, WINDOW, set()
        while steps not in tried and len(tried) < TRIES:
            tried.add(steps)
            found = self.count(steps)
            if found.rows[-1] <= rows and (best is None or found.length > best.length):
                best = found
            steps = self._next_length(found, rows)
        return self.count(1) if best is None else best

    def _begin(self) -> tuple[State, np.ndarray]:
        """The first state, and the calls that were made for it."""
        solver, key = self.solver, jax.random.fold_in(self._key, 0)
        x = initial_point.arrays(self.x, "x")
        y = self.problem.starting_y(self.y, jax.random.fold_in(key, 0))

        def begin() -> State:
            start = jax.jit(solver.start, compiler_options=UNOPTIMISED)
            state = start(self._counting, x, y, key, jnp.asarray(WINDOW, jnp.int32))
            if not solver.measures(state):
                return state
            return measure(solver, self._counting, state, jax.random.fold_in(key, 2), FIRST_MEASUREMENT)

        return self._counted(begin)

    def _counted(self, action: Callable[[], Any]) -> tuple[Any, np.ndarray]:
        """What an action returns, and the calls per task that it makes."""
        self._tally.counts.clear()
        self._tally.next_step()
        found = jax.block_until_ready(action())  # counts are complete when the numbers are
        return found, np.array([self._tally.counts[name] / self.problem.size for name in Cost._fields])

    def _steps(self, steps: int) -> np.ndarray:
        """The calls of every step."""
        period = int(getattr(self.solver, "period", 1))
        window = period * math.ceil(WINDOW / period)
        if steps > 3 * window:
            early = self._in_order(2 * window, steps)[window:]
            last = (steps // window - 1) * window
            _, late = self._walk(self._state._replace(step=jnp.asarray(last, jnp.int32)), last, window, steps)
            if np.array_equal(early, late):
                repeated = np.resize(early, (steps - window, early.shape[1]))
                return np.concatenate([self._in_order(window, steps), repeated])
        return self._in_order(steps, steps)

    def _in_order(self, count: int, steps: int) -> np.ndarray:
        """The calls of the first steps of a run, each counted once."""
        known = len(self._each)
        if known < count:
            self._state, more = self._walk(self._state, known, count - known, steps)
            self._each.extend(more)
        return np.array(self._each[:count])

    def _walk(self, state: State, first: int, count: int, steps: int) -> tuple[State, np.ndarray]:
        """Takes some steps, and counts each."""
        calls, key = [], jax.random.fold_in(self._key, 1)
        step = self._quick_step if count <= 2 * WINDOW else self._fast_step
        for k in range(first, first + count):
            (state, info), made = self._counted(
                lambda state=state, k=k: step(self._counting, state, jax.random.fold_in(key, k))
            )
            if not (self._tally.finite and are_finite((state.x, state.y, info.losses))):
                raise DivergedError(self.solver, k + 1, steps)
            calls.append(made)
        return state, np.array(calls)

    def _measurements(self, steps: int) -> dict[int, np.ndarray]:
        """The calls of every measurement of a run, by the step it comes after."""
        if not self.solver.measures(self._first):
            return {}
        run, found = Run(self.problem, self.solver, self.x, self.y, 0, steps), {}
        carry = loop.first(self.solver, self.problem, run.start(), run.key)
        for k in self._refreshes(steps):
            (carry,) = loop.steps(self.solver, self.problem, (carry,), (run.key,), (k,), (steps,))
            if not bool(carry.finite):
                raise DivergedError(self.solver, int(carry.state.step), steps)
            again = lambda state=carry.state, k=k: measure(self.solver, self._counting, state, run.refresh_key(k), 1)  # noqa: E731
            state, found[k] = self._counted(again)
            carry = carry._replace(state=state)
        return found

    def _refreshes(self, steps: int) -> list[int]:
        """When a run of this length measures."""
        run = Run(self.problem, self.solver, self.x, self.y, 0, steps)
        return [k for k in range(1, steps) if run.refreshes_at(k)]

    def _next_length(self, found: RunCost, rows: float) -> int:
        """How many steps to count next, towards the longest run that uses no more than these rows."""
        if not any(found.measuring) and found.rows[-1] > rows:  # its first steps are the shorter run
            return max(1, int(np.searchsorted(found.rows, rows, side="right")) - 1)
        each = max(found.steps.rows / found.length, 1e-9)
        measurement = found.measuring.rows / max(1, len(self._refreshes(found.length)))
        over = lambda steps: found.start.rows + steps * each + len(self._refreshes(steps)) * measurement > rows  # noqa: E731
        return max(1, bisect.bisect_left(range(1, 2 + int(rows / each)), True, key=over))
