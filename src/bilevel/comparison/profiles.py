"""What a run of a solver costs on a problem: oracle calls, seconds, bytes; and how many steps a budget buys.

An oracle call is one value, gradient or product of one task on one row of data, as papers count them: a full pass over
N rows is N calls. A value that comes with a gradient is free (see `bl.cost`). All that a run asks for counts: first
values and tables, loops that grow, and what automatic rates measure. Evaluations on all the data do not.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from bilevel._cost.given_rates import GivenRates, rates_of, with_rates
from bilevel._cost.run_cost import RunCost, RunCounter
from bilevel._run.driver import run_one
from bilevel._run.progress import Quiet
from bilevel._run.reached import INTERRUPTED
from bilevel._run.run import Run
from bilevel.problem.problem import Problem
from bilevel.problems import Ready
from bilevel.solvers._base.solver import Solver

EVALUATIONS = 50
CHECKED_STEPS = 32  # that must stay finite, however short the run
LONGEST = 2_000_000  # steps
TIMED_SECONDS = 1.0
TOO_SMALL_TO_DIVERGE = GivenRates(1e-6, 1e-3, 1e-6, 1e-3)


class OverBudgetError(ValueError):
    """What a solver does before its first step exceeds the budget."""


class Used(NamedTuple):
    """Oracle calls per task along a run."""

    steps: np.ndarray  # 0, then those that are evaluated
    calls: np.ndarray  # up to each of them
    besides: float  # of all these, not in steps: first values, tables, rates that are measured

    @classmethod
    def of(cls, cost: RunCost) -> Used:
        """At the steps at which a run of this length is evaluated."""
        steps = np.arange(0, cost.length + 1, evaluated_every(cost.length))
        steps = np.union1d(steps, [cost.length])
        return cls(steps, cost.rows[steps], cost.start.rows + cost.measuring.rows)


class Profile(NamedTuple):
    """What a run costs."""

    calls: float  # per step and task, on average; NaN for problems that are not bilevel, where they are not counted
    seconds: float  # per step, alone on the machine
    bytes: int  # of the solver's state
    used: Used | None = None  # along the run; None = the average in every step

    def calls_at(self, steps: Any) -> Any:
        """The calls up to these steps."""
        return steps * self.calls if self.used is None else np.interp(steps, self.used.steps, self.used.calls)


class Plan(NamedTuple):
    """How long a run is, and what it costs."""

    steps: int
    profile: Profile


class Budget(NamedTuple):
    """What every run may use: oracle calls per task, or seconds of steps, or just steps."""

    calls: float | None = None
    seconds: float | None = None
    steps: int | None = None


def evaluated_every(steps: int) -> int:
    """Steps between two evaluations of a run."""
    return max(1, steps // EVALUATIONS)


def with_given(solver: Solver, rates: GivenRates) -> Solver:
    """The solver with other rates in place of those that it was given; what it chooses, it still chooses."""
    known = rates_of(solver)
    kept = (new if old is not None else None for new, old in zip(rates, known, strict=True))
    return with_rates(solver, GivenRates(*kept))


def plan(solver: Solver, ready: Ready, budget: Budget, y: Any = None) -> Plan:
    """How many steps a budget buys, by counting calls and timing steps; which numbers rates are makes no difference."""
    typical = with_given(solver, TOO_SMALL_TO_DIVERGE)
    state = typical.init(ready.problem, ready.x, y, key=jax.random.key(0), steps=1)
    memory = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    seconds = seconds_a_step(Run(ready.problem, typical, ready.x, y, 0, 1, 1))
    steps = budget.steps if budget.seconds is None else max(1, int(budget.seconds / seconds))
    if not isinstance(ready.problem, Problem):
        assert steps is not None
        return Plan(steps, Profile(float("nan"), seconds, memory))
    cost = counted(typical, ready, Budget(budget.calls, None, steps), y)
    return Plan(cost.length, Profile(cost.rows[-1] / cost.length, seconds, memory, Used.of(cost)))


def counted(solver: Solver, ready: Ready, budget: Budget, y: Any = None) -> RunCost:
    """The run of so many steps, or the longest that so many calls buy."""
    counter = RunCounter(ready.problem, solver, ready.x, y)
    first = counter.count(CHECKED_STEPS)
    if budget.calls is None:
        assert budget.steps is not None
        return counter.count(budget.steps)
    if first.start.rows > budget.calls:
        raise OverBudgetError(
            f"before its first step it makes {first.start.rows:,.0f} calls per task, more than the budget of "
            f"{budget.calls:,.0f}."
        )
    if first.steps.rows == 0:
        raise ValueError("compare(calls=...): a step makes no calls that are counted: give seconds.")
    if budget.calls * CHECKED_STEPS / first.steps.rows > LONGEST:
        raise ValueError(
            f"compare(calls={budget.calls!r}): that is more than {LONGEST:,} steps of {type(solver).__name__}, which "
            "would take too long: give fewer."
        )
    return counter.within(budget.calls)


def seconds_a_step(run: Run) -> float:
    """Seconds a step, evaluations left out: the difference between a longer run and a shorter one."""

    def took(steps: int) -> float:
        began = time.perf_counter()
        result = run_one(dataclasses.replace(run, steps=steps, every=steps), Quiet())
        if result.status == INTERRUPTED:  # Ctrl-C is for all of the comparison, not for this run
            raise KeyboardInterrupt
        return time.perf_counter() - began

    for steps in (2, 22):  # they compile; the longer one measures automatic rates again on its way
        took(steps)
    short, steps = took(2), 20
    while True:
        longer = took(steps + 2) - short
        if longer > TIMED_SECONDS or steps > 20_000:
            return max(longer, 1e-9) / steps
        steps *= 4
