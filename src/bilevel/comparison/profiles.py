"""What a step of a solver costs on a problem: oracle calls, seconds, bytes.

An oracle call is one value, gradient or product of one task on one row of data, as papers count them: a full pass over
N rows is N calls. A value that comes with a gradient is free (see `bl.cost`).
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, NamedTuple

import jax

from bilevel._cost.given_rates import GivenRates, with_rates
from bilevel._cost.report import cost
from bilevel._run.driver import run_one
from bilevel._run.progress import Quiet
from bilevel._run.run import INTERRUPTED, Run
from bilevel.comparison.tuning import tunable
from bilevel.problem.problem import Problem
from bilevel.problems import Ready
from bilevel.solvers._base.solver import Solver

COUNTED_STEPS = 32  # whole periods of the methods that refresh at intervals, or nearly
TIMED_SECONDS = 1.0
TOO_SMALL_TO_DIVERGE = GivenRates(1e-6, 1e-3, 1e-6, 1e-3)


class Profile(NamedTuple):
    """What a step costs."""

    calls: float  # per step and task; NaN for problems that are not bilevel, where they are not counted
    seconds: float  # per step, alone on the machine
    bytes: int  # of the solver's state


class Budget(NamedTuple):
    """What every run may use: oracle calls per task, or seconds; neither = the calls of a run as recommended."""

    calls: float | None
    seconds: float | None

    def steps(self, profile: Profile) -> int:
        """How many steps it buys."""
        if self.calls is not None and profile.calls == 0:
            raise ValueError("compare(calls=...): a step makes no calls that are counted: give seconds.")
        spent = [(self.calls, profile.calls), (self.seconds, profile.seconds)]
        return max(1, *(int(budget / each) for budget, each in spent if budget is not None))


def profile(solver: Solver, ready: Ready, y: Any = None) -> Profile:
    """Counts the calls of a step, times it and measures the memory of the state; automatic rates cost some more."""
    typical = solver if tunable(solver).upper else with_rates(solver, TOO_SMALL_TO_DIVERGE)
    calls = float("nan")
    if isinstance(ready.problem, Problem):
        calls = cost(ready.problem, typical, ready.x, y, steps=COUNTED_STEPS).rows
    state = typical.init(ready.problem, ready.x, y, key=jax.random.key(0), steps=1)
    memory = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    return Profile(calls, _seconds(Run(ready.problem, typical, ready.x, y, 0, 1, 1)), memory)


def _seconds(run: Run) -> float:
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
