"""What a step and a whole run cost, in calls of the losses and their derivatives.

A whole run is what happens before the first step, every step, and rates that are measured along the way.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core import values
from bilevel._core.types import T, Tree
from bilevel._run import loop
from bilevel._run.run import Run
from bilevel.diagnostics.call_counting import Tally, counted_problem
from bilevel.problem import initial_point
from bilevel.problem.problem import Problem
from bilevel.solvers._base.solver import FIRST_MEASUREMENT, Solver, measure
from bilevel.solvers._base.state import State

UNOPTIMISED = {"xla_backend_optimization_level": 0}  # compiling takes longer than running a few steps
WINDOW = 48  # steps whose calls are compared with those of later ones
TRIES = 8  # lengths that are counted to find the longest run of a budget
KINDS = ("f", "grad f", "g", "grad g", "A v", "J v")


class Cost(NamedTuple):
    """Calls per step and task, on average over a run.

    A call is one evaluation on one batch, however many rows it has. A value that comes with a gradient, and a gradient
    on the way to a product, are free. A gradient in x, in y or in both at one point on one batch is one call, however
    many passes the solver makes for it.
    """

    upper_values: float  # f
    upper_gradients: float  # f_x, f_y
    lower_values: float  # g
    lower_gradients: float  # g_x, g_y
    hessian_products: float  # A v,  A = d2g/dy2; of f too, where a method takes them
    jacobian_products: float  # J v or J' u,  J = d2g/dxdy
    rows: float  # of data, over all these calls

    @property
    def total(self) -> float:
        """All calls, of whatever kind."""
        return sum(self) - self.rows

    @property
    def calls(self) -> list[str]:
        """The calls of each kind, in words: ["2 grad f", "1 grad g"]."""
        return [f"{count:.4g} {name}" for name, count in zip(KINDS, self, strict=False) if count]

    def __str__(self) -> str:
        calls = ", ".join(self.calls) or "no calls"
        return f"{calls}: {self.total:.4g} calls on {self.rows:.4g} rows, per step and task"


class DivergedError(ValueError):
    """A run whose calls were counted diverged."""

    def __init__(self, solver: Solver, step: int, steps: int):
        self.step, self.steps = step, steps
        super().__init__(
            f"cost(solver={type(solver).__name__}(...)) diverged at step {step} of {steps}, and only a run that stays "
            "finite can be counted: give smaller rates (upper_lr, lower_lr, that of v or of the estimator), or fewer "
            "steps."
        )


def cost(problem: Problem, solver: Solver, x: object, y: object = None, steps: int = 20) -> Cost:
    """Counts the calls of f, g and their derivatives that a step makes, by running steps.

    Args:
        problem: what to run on.
        solver: for instance `bl.MORBiT()`; with automatic rates a step also follows the curvature of g.
        x: where the shared variable starts.
        y: where the tasks' variables start, as for `solve`.
        steps: how many steps to run; for methods that refresh at intervals, or whose loops grow, a whole number of
            periods, or the length of a typical run.

    What happens before the first step and between chunks of steps (first values, measured rates, evaluations) is not
    counted. Tasks that are stacked run their loops together: one that ends a loop early, as conjugate gradients may,
    counts until the last has ended. Counting is slow and holds a copy of x per task: use a small problem, on which most
    methods make the same calls.

    Raises:
        DivergedError: a ValueError, where the run diverges. Calls are told apart by the points they are made at, and
            points that are not finite all look alike.

    >>> import bilevel as bl
    >>> known = bl.problems.opposed_slopes()
    >>> solver = bl.MORBiT(upper_lr=0.1, lower_lr=0.3, hypergradient=bl.hypergradients.Neumann(terms=5, lr=0.3))
    >>> print(bl.cost(known.problem, solver, known.x))
    1 grad f, 1 grad g, 4 A v, 1 J v: 7 calls on 7 rows, per step and task
    """
    check_arguments(problem, solver)
    values.whole("steps", steps, of="cost")
    key = jax.random.key(0)
    state = solver.init(problem, x, y, key=key, steps=steps)
    tally = Tally()
    step = jax.jit(solver.step, compiler_options=UNOPTIMISED)  # which calls are made does not depend on it
    counting = counted_problem(problem, tally)
    for k in range(steps):
        tally.next_step()
        state, info = step(counting, state, jax.random.fold_in(key, k))
        # The counts are complete only when the numbers are computed.
        jax.block_until_ready((state, info))
        if not (tally.finite and are_finite((state.x, state.y, info.losses))):
            raise DivergedError(solver, k + 1, steps)
    return Cost(*(tally.counts[name] / (steps * problem.size) for name in Cost._fields))


def check_arguments(problem: object, solver: object) -> None:
    """Refuses arguments that are not a problem and a solver, and the two in the wrong order."""
    if hasattr(problem, "step") and isinstance(solver, Problem):
        raise TypeError(
            f"cost({type(problem).__name__}(...), {type(solver).__name__}(...)): the problem comes first, as in "
            "bl.solve: cost(problem, solver, x)."
        )
    if not isinstance(problem, Problem):
        raise TypeError(f"cost(problem=...) got {type(problem).__name__}: it needs a bl.Problem.")
    if not hasattr(solver, "step") or isinstance(solver, type):
        raise TypeError(f"cost(solver=...) got {solver!r}: it needs a solver object, such as bl.MORBiT().")
    if problem.distribution is not None:
        raise ValueError(
            "cost(problem=...) has tasks of a bl.TaskDistribution, and counts calls a task of a list: give a "
            "bl.Problem of tasks.sample(64, seed=0), and a solver without sampling."
        )


def are_finite(values: object) -> bool:
    """Whether all numbers are."""
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(values))


class RunCost(NamedTuple):
    """Calls of a whole run, per task, as `Cost` counts them. Evaluations on all the data are not part of it."""

    start: Cost  # before the first step: first values, tables, rates that are measured
    steps: Cost  # of all steps together
    measuring: Cost  # of rates that are measured again along the run
    rows: np.ndarray  # of data, used up to every step; rows[0] before the first

    @property
    def total(self) -> Cost:
        """All calls of the run."""
        return Cost(*map(sum, zip(self.start, self.steps, self.measuring, strict=True)))

    @property
    def length(self) -> int:
        """The number of steps."""
        return len(self.rows) - 1


class RunCounter:
    """Counts the calls of runs of one solver on one problem, with the draws of seed 0.

    The start is counted by making it, and steps are counted by taking them: all of them, unless a window of steps makes
    the same calls early in the run and at its end, and then stands for every window between. So loops that grow and
    refreshes at random are counted step by step. A solver that refreshes at intervals has a field `period`, and windows
    are whole periods. Measurements of rates along the run are counted at the points that it reaches.

    Args:
        problem: what is solved.
        solver: how.
        x: where the shared variable starts.
        y: where the tasks' variables start, as for `solve`.

    Raises:
        DivergedError: from `count` and `within`, where the run diverges.
    """

    def __init__(self, problem: Problem, solver: Solver, x: Tree, y: Tree = None):
        check_arguments(problem, solver)
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
        """The longest run found that uses no more than these rows; one step where even that uses more."""
        best, steps, tried = None, WINDOW, set()
        while steps not in tried and len(tried) < TRIES:
            tried.add(steps)
            found = self.count(steps)
            if found.rows[-1] <= rows and (best is None or found.length > best.length):
                best = found
            steps = self._next_length(found, rows)
        return self.count(1) if best is None else best

    def _begin(self) -> tuple[State, np.ndarray]:
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

    def _counted(self, action: Callable[[], T]) -> tuple[T, np.ndarray]:
        self._tally.counts.clear()
        self._tally.next_step()
        found = jax.block_until_ready(action())  # counts are complete when the numbers are
        return found, np.array([self._tally.counts[name] / self.problem.size for name in Cost._fields])

    def _steps(self, steps: int) -> np.ndarray:
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
            carry = loop.steps(self.solver, self.problem, carry, run.key, k, steps)
            if not bool(carry.finite):
                raise DivergedError(self.solver, int(carry.state.step), steps)
            again = lambda state=carry.state, k=k: measure(self.solver, self._counting, state, run.refresh_key(k), 1)  # noqa: E731
            state, found[k] = self._counted(again)
            carry = carry._replace(state=state)
        return found

    def _refreshes(self, steps: int) -> list[int]:
        run = Run(self.problem, self.solver, self.x, self.y, 0, steps)
        return [k for k in range(1, steps) if run.refreshes_at(k)]

    def _next_length(self, found: RunCost, rows: float) -> int:
        """The next number of steps to count, towards the longest run that uses no more than these rows."""
        if not any(found.measuring) and found.rows[-1] > rows:  # its first steps are the shorter run
            return max(1, int(np.searchsorted(found.rows, rows, side="right")) - 1)
        each = max(found.steps.rows / found.length, 1e-9)
        measurement = found.measuring.rows / max(1, len(self._refreshes(found.length)))
        over = lambda steps: found.start.rows + steps * each + len(self._refreshes(steps)) * measurement > rows  # noqa: E731
        return max(1, bisect.bisect_left(range(1, 2 + int(rows / each)), True, key=over))
