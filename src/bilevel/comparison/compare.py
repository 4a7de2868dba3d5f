"""`compare`: any solvers on one problem at equal budgets, each with rates tuned on the same grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bilevel._core import values
from bilevel._studies.experiment import Experiment
from bilevel._studies.record_files import RecordFiles
from bilevel._studies.records import MemoryRecords
from bilevel.comparison.benchmarks import benchmark, own_benchmark
from bilevel.comparison.candidates import Candidate
from bilevel.comparison.chosen import choose, recommended_for, refusal
from bilevel.comparison.profiles import Budget
from bilevel.comparison.result import Comparison, default_target
from bilevel.comparison.runner import TUNING_SEED, Runner
from bilevel.comparison.tuning import Grid, tunable, tuned_on
from bilevel.problem.base import BaseProblem
from bilevel.problem.problem import Problem
from bilevel.solvers._base.solver import Solver

GRID = Grid()


def compare(
    problem: str | BaseProblem,
    x: Any = None,
    y: Any = None,
    *,
    solvers: Sequence[str] | Mapping[str, Solver] | None = None,
    calls: float | None = None,
    seconds: float | None = None,
    seeds: int = 10,
    grid: Grid | None = GRID,
    automatic: Sequence[str] | None = None,
    target: float | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Runs solvers on one problem with equal budgets and several seeds.

    Solvers chosen by name run as min-max methods, also those that average the tasks as published. Their three rates
    are tuned on the same grid, by the worst validation loss at the end of runs on draws of their own: all of them with
    a quarter of the budget on one draw, the best three with all of it on three. Rates with which a run ends early, or
    above ten times the first loss, are never preferred. Test data steer nothing.

    Solvers given as objects run as they are given: their weighting and the rates that they were given stay, and only
    rates that are None are tuned.

    Args:
        problem: a name ("ball", "noisy-ball", "sinusoids", "letter", "fashion"), or a `bl.Problem`.
        x: where x starts, for a problem of yours.
        y: where the tasks' variables start, likewise.
        solvers: names, or a dict of solvers by label; "paper" is MORBiT as the paper has it, for as many steps, where
            the paper has the problem. None = this, and every bilevel solver that can run on the problem.
        calls: the budget in oracle calls per task, a call being one value, gradient or product on one row; of a
            `bl.Problem` only.
        seconds: the budget in seconds of steps instead; None for both = the calls of a run of what `bl.recommended`
            says, or as many steps on problems of another kind.
        seeds: runs of each solver.
        grid: the rates to try; None = none: automatic rates, or those that the solvers were given.
        automatic: names of solvers that run with automatic rates too; None = that which
            `bl.recommended` says, if it is among them.
        target: a worst validation loss; calls and seconds until it are reported. None = where MORBiT as the
            paper has it ends, or else MORBiT, or else the median solver.
        out: folder for runs, table and figure, in a folder for each problem; finished runs there are not made again.
            None = no files are written.
        progress: show progress bars where there is a terminal.
        say: told what was done.
    """
    where = _benchmark(problem, x, y)
    _check(calls, seconds, seeds, grid, target, out)
    chosen = choose(solvers, where)
    _check_automatic(automatic, chosen.solvers)
    where.require()
    ready = where.start(TUNING_SEED, "")
    if calls is not None and not isinstance(ready.problem, Problem):
        kind = type(ready.problem).__name__
        raise ValueError(f"compare(calls={calls!r}): calls are counted on a bl.Problem, not on a {kind}: give seconds.")
    folder = None if out is None else Path(out) / where.name
    records = MemoryRecords() if folder is None else RecordFiles(folder)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    runner = Runner(where, ready, records, range(seeds), Budget(calls, seconds), progress, say)
    able, skipped = _able(runner, chosen.solvers, grid, solvers is None)
    also = (recommended_for(ready.problem).name,) if automatic is None else automatic
    candidates = [runner.paper()] if chosen.paper else []
    for name, solver in able.items():
        candidates += _candidates(runner, name, solver, grid, name in also)
    if not candidates:
        name, why = next(iter(skipped.items()))
        raise ValueError(f"compare(problem=...): there is no solver to run. {name}: {why}")
    candidates.sort(key=lambda candidate: candidate.order)
    found = Comparison(
        where.title, candidates, skipped, default_target(candidates) if target is None else float(target)
    )
    if folder is not None:
        found.write(folder)
    return found


def _able(
    runner: Runner, solvers: Mapping[str, Solver], grid: Grid | None, leave_out: bool
) -> tuple[dict[str, Solver], dict[str, str]]:
    """The solvers that can run, and why others cannot: these are left out, or raise where they were asked for."""
    able, skipped = {}, {}
    for name, solver in solvers.items():
        as_run = solver if grid is None else next(iter(tuned_on(grid, solver).values()))
        why = refusal(as_run, runner.ready, runner.benchmark.y)
        if why and not leave_out:
            raise ValueError(f"compare(solvers=...): {name} cannot run on this problem: {why}")
        why = why or (runner.too_slow(name, solver) if leave_out else None)
        if why:
            skipped[name] = why
        else:
            able[name] = solver
    return able, skipped


def _candidates(runner: Runner, name: str, solver: Solver, grid: Grid | None, also: bool) -> list[Candidate]:
    """A solver with tuned rates where it has any to tune, and as it is where that is wanted or all there is."""
    tunes = grid is not None and any(tunable(solver))
    found = [runner.tuned(name, solver, grid)] if grid is not None and tunes else []
    return [*found, runner.as_it_is(name, solver)] if also or not tunes else found


def _benchmark(problem: str | BaseProblem, x: Any, y: Any) -> Experiment:
    if isinstance(problem, str):
        if x is not None or y is not None:
            raise ValueError("compare(x=..., y=...) goes with a problem of yours: a named one has its own.")
        return benchmark(problem)
    if not isinstance(problem, BaseProblem):
        raise TypeError(f"compare(problem=...) got {type(problem).__name__}: it needs a name or a bl.Problem.")
    if x is None:
        raise ValueError("compare(x=None): it needs where x starts.")
    return own_benchmark(problem, x, y)


def _check_automatic(automatic: Sequence[str] | None, solvers: Mapping[str, Solver]) -> None:
    if isinstance(automatic, str):
        raise ValueError(f"compare(automatic={automatic!r}): it needs a list of names.")
    for name in automatic or ():
        if name not in solvers:
            raise ValueError(f"compare(automatic=...) names {name!r}, which is not among the solvers compared.")
        if not getattr(solvers[name], "chooses_rates", False):
            raise ValueError(f"compare(automatic=...) names {name!r}, which chooses no rates.")


def _check(calls: Any, seconds: Any, seeds: Any, grid: Any, target: Any, out: Any) -> None:
    if calls is not None and seconds is not None:
        raise ValueError("compare(calls=..., seconds=...): one budget, not both.")
    for name, value in (("calls", calls), ("seconds", seconds)):
        if value is not None and not values.is_positive(value):
            raise ValueError(f"compare({name}={value!r}): a budget is a number above 0.")
    values.whole("compare(seeds)", seeds)
    if grid is not None and not all(len(rates) for rates in grid):
        raise ValueError(f"compare(grid={grid!r}): it needs one rate or more of x, of y and of the weights.")
    if target is not None and not values.is_number(target):
        raise ValueError(f"compare(target={target!r}): it needs a number.")
    if out is not None and Path(out).is_file():
        raise NotADirectoryError(f"compare(out={str(out)!r}): it is a file, and it needs a folder.")
