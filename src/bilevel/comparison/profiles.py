"""Solvers that compete: which can run on a problem, what their steps cost, and with which rates they are tried.

An oracle call is one value, gradient or product of one task on one row of data, as papers count them: a full pass over
N rows is N calls. A value that comes with a gradient is free (see `bl.cost`).
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from bilevel import solvers
from bilevel._cost.catalogue import find
from bilevel._cost.report import cost
from bilevel._run.driver import run_one
from bilevel._run.progress import Quiet
from bilevel._run.run import Run
from bilevel.problem import checks, initial_point
from bilevel.problems import Ready
from bilevel.solvers.recommendation import recommended
from bilevel.weightings import SimplexAscent

COUNTED_STEPS = 32  # whole periods of the methods that refresh now and then, or nearly
TIMED_SECONDS = 1.0


class Grid(NamedTuple):
    """The rates that every solver is tried with; None would let it choose."""

    upper: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 1.0)
    lower: tuple[float, ...] = (1e-2, 1e-1, 4e-1)
    weights: tuple[float, ...] = (1e-2, 1e-1)

    def rates(self) -> dict[str, tuple[float, float, float]]:
        """(upper, lower, weights) by what they are called."""
        return {f"{a:g} {b:g} {c:g}": (a, b, c) for a, b, c in itertools.product(*self)}


class Entrant(NamedTuple):
    """A solver and what is known of its steps on a problem."""

    name: str
    solver: Any
    calls: float  # per step and task
    seconds: float  # per step, alone on the machine
    bytes: int  # of its state


def by_name(names: Sequence[str]) -> dict[str, Any]:
    """Solvers of these names as min-max methods, rates automatic."""
    return {find(name).name: robust(getattr(solvers, find(name).name)()) for name in names}


def everyone() -> dict[str, Any]:
    """Every bilevel solver as a min-max method."""
    every = {name: getattr(solvers, name) for name in solvers.__all__}
    return {name: robust(solver()) for name, solver in every.items() if solver.card.problem == "bilevel"}


def usual(problem: Any) -> tuple[str, Any]:
    """What `bl.solve` takes where no solver is given."""
    solver = recommended(problem)
    return type(solver).__name__, solver


def robust(solver: Any) -> Any:
    """The same solver with weights that follow the worst tasks."""
    return solver.replace(weighting=SimplexAscent()) if hasattr(solver, "weighting") else solver


def with_rates(solver: Any, rates: tuple[float, float, float]) -> Any:
    """The same solver with rates of x, y and the weights; an estimator's own is y's."""
    upper, lower, weights = rates
    options: dict[str, Any] = {"weighting": dataclasses.replace(solver.weighting, lr=weights)}
    estimator = getattr(solver, "hypergradient", None)
    if estimator is not None and hasattr(estimator, "lr"):
        options["hypergradient"] = dataclasses.replace(estimator, lr=lower)
    return solver.replace(upper_lr=upper, lower_lr=lower, **options)


def is_automatic(solver: Any) -> bool:
    """Whether it chooses its rates."""
    return solver.upper_lr is None


def refusal(solver: Any, ready: Ready, y: Any = None) -> str | None:
    """Why a solver cannot run on a problem, in a sentence; None where it can."""
    try:
        checks.check_kind(solver, ready.problem)
        solver.check(ready.problem)
        x = initial_point.arrays(ready.x, "x")
        solver.check_size(ready.problem, x, initial_point.lower_points(ready.problem, y, jax.random.key(0)))
    except (TypeError, ValueError, MemoryError) as error:
        return str(error)
    return None


def enter(name: str, solver: Any, ready: Ready, y: Any = None) -> Entrant:
    """Counts the calls of a step, times it and weighs the state; automatic rates cost some more."""
    typical = solver if is_automatic(solver) else with_rates(solver, (1e-6, 1e-3, 1e-6))  # too small to diverge
    counted = cost(typical, ready.problem, ready.x, y, steps=COUNTED_STEPS)
    one = Run(ready.problem, typical, ready.x, y, 0, steps=1)
    weight = sum(leaf.nbytes for leaf in jax.tree.leaves(one.start()))
    return Entrant(name, solver, counted.rows, _seconds(one), weight)


def _seconds(one: Run) -> float:
    """Seconds a step, evaluations left out: the difference between a longer run and a shorter one."""

    def run(steps: int) -> float:
        began = time.perf_counter()
        run_one(dataclasses.replace(one, steps=steps, every=steps), Quiet())
        return time.perf_counter() - began

    for steps in (2, 22):  # they compile; the longer one measures automatic rates again on its way
        run(steps)
    short, steps = run(2), 20
    while True:
        longer = run(steps + 2) - short
        if longer > TIMED_SECONDS or steps > 20_000:
            return max(longer, 1e-9) / steps
        steps *= 4


def steps_for(entrant: Entrant, calls: float | None, seconds: float | None) -> int:
    """How many steps a budget buys."""
    affordable = calls / entrant.calls if calls is not None else seconds / entrant.seconds  # type: ignore[operator]
    return max(1, int(affordable))
