"""The runs of a study as the driver makes them: the only place here that knows it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from bilevel._run.driver import Plan
from bilevel._run.progress import Bar, Quiet
from bilevel._run.solving import Job, solve_all
from bilevel.problem.problem import Grouped
from bilevel.results.result import Result
from bilevel.results.results import Results
from bilevel.solvers._base.solver import Solver


class Run(NamedTuple):
    """One run to be made."""

    problem: Grouped
    solver: Solver
    x: Any
    y: Any
    seed: int
    steps: int
    every: int


def run_one(run: Run, shown: Bar | None = None, halt: threading.Event | None = None) -> Result:
    """Makes a run; `halt` ends it early."""
    return _job(run).run(Plan(run.steps, run.every, None, None), shown or Quiet(), halt)


def run_all(runs: Sequence[Run], progress: bool) -> Results:
    """Makes runs of one length at once; Ctrl-C ends all of them and returns what they have reached."""
    return solve_all([_job(run) for run in runs], Plan(runs[0].steps, runs[0].every, None, None), progress)


@contextmanager
def divergence_is_data() -> Iterator[None]:
    """Runs that diverge do not warn in here: a study counts and reports them.

    To be entered by the thread that starts the others, and for all of them: filters belong to the whole process.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\w+ diverged: at step")
        yield


def _job(run: Run) -> Job:
    return Job(run.problem, run.solver, run.x, run.y, run.seed)
