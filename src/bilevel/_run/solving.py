"""`solve`: runs a solver on a problem, once or with many seeds."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, overload

import jax
import numpy as np

from bilevel._run.driver import Callback, Drive, Plan
from bilevel._run.progress import Bar, Quiet, bar
from bilevel._run.together import run_together
from bilevel.problem import checks
from bilevel.problem.problem import Grouped
from bilevel.results.result import Result
from bilevel.results.results import Results
from bilevel.solvers._base.solver import Solver
from bilevel.solvers.recommendation import recommended


@overload
def solve(
    problem: Grouped,
    solver: Solver | None = None,
    x: Any = None,
    y: Any = None,
    *,
    steps: int,
    seed: int = 0,
    seeds: None = None,
    every: int | None = None,
    progress: bool = True,
    patience: int | None = None,
    callback: Callback | None = None,
) -> Result: ...
@overload
def solve(
    problem: Grouped,
    solver: Solver | None = None,
    x: Any = None,
    y: Any = None,
    *,
    steps: int,
    seed: int = 0,
    seeds: int | Sequence[int],
    every: int | None = None,
    progress: bool = True,
    patience: int | None = None,
    callback: Callback | None = None,
) -> Results: ...
def solve(
    problem: Grouped,
    solver: Solver | None = None,
    x: Any = None,
    y: Any = None,
    *,
    steps: int,
    seed: int = 0,
    seeds: int | Sequence[int] | None = None,
    every: int | None = None,
    progress: bool = True,
    patience: int | None = None,
    callback: Callback | None = None,
) -> Result | Results:
    """Runs a solver on a problem.

    Args:
        problem: what to solve: a `bl.Problem`, or of another kind, a `bl.MinMaxProblem` or `bl.MultiBlockProblem`.
        solver: how, for instance `bl.MORBiT()`; each is for one kind of problem. None = what we recommend for a
            `bl.Problem`: `bl.Tandem()` where steps see batches and there are 1,000 or more, `bl.MORBiT()` otherwise.
        x: where the shared variable starts, any pytree of floating arrays; a Flax NNX or Equinox model is one, and its
            functions (activations) stay as they are.
        y: where the tasks' variables start: one pytree for all tasks, a dict by task name, or a function of
            (key, task); None = the tasks brought theirs, or the problem has no y.
        steps: how many steps.
        seed: of everything random.
        seeds: run with so many seeds at once, from `seed` on, or with these seeds; None = once, with `seed`. On a CPU a
            thread per core, on accelerators one batched run.
        every: evaluate on all the data every so many steps; None = steps // 50.
        progress: show a progress bar where there is a terminal.
        patience: stop after so many evaluations without a lower worst validation loss; None = never.
        callback: called with each evaluation (a dict with step, validation, test, weights, ...); True stops the run.

    Returns:
        A `Result`, or with `seeds` a `Results`, a sequence of them. Ctrl-C ends the run early and returns what there
        is; a run that diverges ends with a warning and returns its last finite state.

    >>> import bilevel as bl
    >>> known = bl.problems.enclosing_ball()
    >>> result = bl.solve(known.problem, x=known.x, steps=2000, progress=False)
    >>> bool(abs(result.worst - known.value) < 0.01)
    True
    """
    solver = recommended(problem, steps) if solver is None and isinstance(problem, Grouped) else solver
    plan = _check(problem, solver, steps, every, patience, callback)
    assert solver is not None
    if seeds is None:
        _check_seed("seed", seed)
        job = Job(problem, solver, x, y, seed)
        with bar(type(solver).__name__, steps, progress) as shown:
            return job.run(plan, shown)
    numbers = range(seed, seed + seeds) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds
    if not isinstance(numbers, Sequence) or isinstance(numbers, str) or len(numbers) == 0:
        raise ValueError(f"solve(seeds={seeds!r}): it needs a whole number, 1 or more, or a list of seeds.")
    for number in numbers:
        _check_seed("seeds", number)
    jobs = [Job(problem, solver, x, y, number) for number in numbers]
    alone = patience is not None or callback is not None  # then runs end at different times
    way = solve_all if alone or jax.default_backend() == "cpu" else solve_batched
    return way(jobs, plan, progress)


class Job(NamedTuple):
    """One run to be made."""

    problem: Grouped
    solver: Solver
    x: Any
    y: Any
    seed: int

    def run(self, plan: Plan, shown: Bar, halt: threading.Event | None = None) -> Result:
        """Makes it."""
        return self.drive(plan, halt).go(self.start(plan), shown)

    def start(self, plan: Plan) -> Any:
        """The first state."""
        key = jax.random.fold_in(jax.random.key(self.seed), 0)
        return self.solver.init(self.problem, self.x, self.y, key=key, steps=plan.steps)

    def drive(self, plan: Plan, halt: threading.Event | None = None) -> Drive:
        """What makes it."""
        return Drive(self.problem, self.solver, self.seed, plan, halt)


def solve_all(jobs: Sequence[Job], plan: Plan, progress: bool = True) -> Results:
    """Many runs at once, one thread per core: on a CPU that beats batching them by `vmap`, and equals single runs.

    Ctrl-C ends all of them and returns what there is.
    """
    halt = threading.Event()
    with bar(f"{len(jobs)} runs", len(jobs) * plan.steps, progress) as shown, _pool() as pool:
        # The first run compiles what all of them use; meanwhile the others would only compile it again.
        jobs[0].run(plan._replace(steps=1, every=1, callback=None), Quiet())
        parts = shown.split(len(jobs))
        futures = [pool.submit(job.run, plan, part, halt) for job, part in zip(jobs, parts, strict=True)]
        try:
            return Results([future.result() for future in futures])
        except KeyboardInterrupt:
            halt.set()
            return Results([future.result() for future in futures])


def solve_batched(jobs: Sequence[Job], plan: Plan, progress: bool = True) -> Results:
    """Many seeds of one problem in one batched run; one that diverges is run again alone, which tells where and why."""
    with bar(f"{len(jobs)} runs", len(jobs) * plan.steps, progress) as shown:
        found = run_together([job.drive(plan) for job in jobs], [job.start(plan) for job in jobs], plan, shown)
        return Results([job.run(plan, Quiet()) if r is None else r for job, r in zip(jobs, found, strict=True)])


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="bilevel")


def _check(problem: Any, solver: Any, steps: Any, every: Any, patience: Any, callback: Any) -> Plan:
    if not isinstance(problem, Grouped):
        raise TypeError(f"solve(problem=...) got {type(problem).__name__}: it needs a bl.Problem.")
    if not hasattr(solver, "step") or isinstance(solver, type):
        raise TypeError(f"solve(solver=...) got {solver!r}: it needs a solver object, such as bl.MORBiT().")
    checks.check_kind(solver, problem)
    checks.check_count("steps", steps)
    every = max(1, steps // 50) if every is None else every
    checks.check_count("every", every)
    if patience is not None:
        checks.check_count("patience", patience)
    if callback is not None and not callable(callback):
        raise TypeError(f"solve(callback=...) got {callback!r}: it needs a function of one evaluation.")
    return Plan(steps, every, patience, callback)


def _check_seed(name: str, seed: Any) -> None:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"solve({name}={seed!r}): it needs a whole number, 0 or more.")
